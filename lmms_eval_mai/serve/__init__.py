"""The server of `lmms-eval-mai serve`: the cascade behind an OpenAI-compatible API. Its settings are here.

`app.py` checks the key, refuses with 429 if the server is full, and reads the body. `chat_request.py` checks its
fields, sizes and images, and `question.py` turns the chat into a `Question`. `service.py` asks it on the engines, and
`app.py` makes the reply from its trace.

HTTP is on the event loop of the main thread, and the engines are on a loop of their own (`run/engines.py`). Requests
are parsed and images are decoded in other threads.
"""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from lmms_eval_mai.engines.arguments import Arguments
from lmms_eval_mai.method.methods import METHODS, Method

Limit = Annotated[float, Field(gt=0, le=1e6)]


class Settings(Arguments):
    """Names and limits of a server. `lmms-eval-mai serve --help` shows the docstrings of its options."""

    model_name: str
    """The name of the pair in `/v1/models` and in the field `model` of requests."""
    methods: Mapping[str, Method] = METHODS
    """The methods that requests may name."""
    max_queue: Annotated[int, Field(ge=0)] = 256
    """how many requests may wait, besides those that max_open_samples allows at the same time"""
    request_timeout: Limit = 600.0
    """seconds for one request, from the end of its body to its answer"""
    max_body_mib: Limit = 20.0
    """the largest body of a request, its images included"""
    max_image_megapixels: Limit = 64.0
    """the largest size of all images of a request together"""
    max_images: int = 64
    """Images of a request."""
    max_text_mib: float = 1.0
    """The largest body without its images. JSON may need 100 times its size in memory."""
    body_timeout: float = 30.0
    """Seconds in which the body of a request must arrive."""
    api_key: Annotated[str | None, Field(repr=False)] = None
    """The key that requests to `/v1` must have. None: no key is needed."""
    local_hosts_only: bool = False
    """Whether the header `Host` of requests must be a name of this machine."""
