"""The arguments of the `openai` engine, the addresses of its endpoints, and their proxies."""

import os
import re
import urllib.request
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import urlsplit

from lmms_eval_mai.engines.arguments import NO_EFFECT, Arguments, Count, Number
from lmms_eval_mai.errors import ArgumentError

ADDRESS = re.compile(r"https?://([\w.-]+|\[[\da-f:.]+\])(:\d{1,5})?(/[^@?#\s]*)?", re.IGNORECASE)
LOOPBACK = re.compile(r"localhost|127\.[\d.]+|::1")


class OpenAIOptions(Arguments):
    """Arguments of the engine, `small_<name>` / `large_<name>` / `<name>` for both."""

    model: str | None = None
    """Name under which the endpoint serves the model. Needed only if the endpoint serves several models."""
    api_key_env: Annotated[str, NO_EFFECT] = "OPENAI_API_KEY"
    """Environment variable with the key. The key itself is never an argument, because lmms-eval prints arguments."""
    retry_for: Annotated[Number, NO_EFFECT] = 120.0
    """A failed request is retried until this many seconds after its first failure. When the run starts, also the
    seconds to wait until an endpoint answers."""
    request_timeout: Annotated[Number, NO_EFFECT] = 600.0
    """Seconds that one request may take. A request that takes longer is not retried. 0: no limit."""
    chat_template_kwargs: Mapping[str, Any] | None = None
    """Arguments of the model's chat template, such as {"reasoning_effort": "low"}. A server that reports
    its context (vLLM, SGLang) always gets `enable_thinking`. Another one gets it in native calls, and in all calls if
    this argument is given: give {} if its model thinks by itself."""
    concurrency: Annotated[Count, NO_EFFECT] = 256
    """Largest number of open requests per endpoint."""


def addresses(side: str, given: str) -> list[str]:
    """Read `http://a:8000/v1`, or several as `[http://a:8000/v1,http://b:8000/v1]`. Raises `ArgumentError`."""
    given = given.strip()
    urls = given[1:].removesuffix("]").split(",") if given.startswith("[") else [given]
    urls = [url.strip(" \"'").rstrip("/") for url in urls]
    for url in urls:
        if not ADDRESS.fullmatch(url):
            shown = url.partition("?")[0].rpartition("@")[2]  # without a password and a key
            raise ArgumentError(f"{side}={shown} is not the address of an endpoint: expected http://HOST:PORT/v1.")
    return urls


def proxy_of(url: str) -> tuple[str, str | None]:
    """Return the variable that sets a proxy for this address (`HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY`, or in small
    letters), and the proxy. None: there is none, or the address is of this machine or in `NO_PROXY`.

    aiohttp's own `trust_env` is not used: it reads `~/.netrc` in a thread for each request, and refuses to send a key
    to a host with an entry there.
    """
    parts = urlsplit(url)
    if LOOPBACK.fullmatch(parts.hostname or "") or urllib.request.proxy_bypass(parts.netloc):
        return "", None
    names = (name for kind in (parts.scheme, "all") for name in (f"{kind}_proxy", f"{kind}_proxy".upper()))
    name = next((name for name in names if name in os.environ), "")  # an empty one switches proxies off
    proxy = os.environ.get(name) or None
    return name, f"http://{proxy}" if proxy and "://" not in proxy else proxy
