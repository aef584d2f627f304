"""The settings of the server."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Settings:
    """The settings of the server, except those of the engines (`run.config.Config`)."""

    model_name: str
    """Name of the pair in `/v1/models` and in the field `model` of requests."""
    max_queue: int = 256
    """Number of requests that may wait for a free place among the open samples. Further requests get the status 429."""
    request_timeout: float = 600.0
    """Seconds from the end of a request's body to its reply, the wait in the queue included. A request that takes
    longer gets the status 504, and its calls are cancelled."""
    body_timeout: float = 30.0
    """Seconds in which a client must send the head of its request, and then the body."""
    max_body_bytes: int = 20 * 2**20
    """Largest body of a request."""
    max_pixels: int = 64_000_000
    """Pixels of all images of a request together. They are counted before an image is decoded."""
    max_images: int = 64
    """Images of a request."""
    allowed_media_domains: tuple[str, ...] = ()
    """Hosts from which images are downloaded, in lower case. `*`: all hosts with a public address. Empty: the server
    downloads no images."""
    image_timeout: float = 10.0
    """Seconds for the download of one image."""
    max_characters: int = 1_000_000
    """Characters of all texts of a request together."""
    api_key: str | None = field(default=None, repr=False)
    """The key that requests to `/v1` must have. None: no key is needed."""
