"""The arguments of the `openai` engine: the addresses of its endpoints, its options, the key and the proxy."""

import dataclasses
import os
import urllib.request
from urllib.parse import urlsplit

from lmms_eval_mai.engines.arguments import number, positive_int
from lmms_eval_mai.errors import ArgumentError, EngineStartError

PERFORMANCE_ARGUMENTS = {"api_key_env", "retry_for", "request_timeout", "concurrency"}
"""Arguments that cannot change an answer: a resumed run may have other values."""


@dataclasses.dataclass(frozen=True)
class OpenAIOptions:
    """Arguments of the engine, `small_<name>` / `large_<name>` / `<name>` for both."""

    model: str | None = None
    """Name under which the endpoint serves the model. Needed only if the endpoint serves several models."""
    api_key_env: str = "OPENAI_API_KEY"
    """Environment variable with the key. The key itself is never an argument, because lmms-eval prints arguments."""
    retry_for: float = 120.0
    """A failed request is retried until this many seconds after its first failure. Seconds in which it waits for other
    requests (`concurrency`) do not count. When the run starts, also the seconds to wait until an endpoint answers."""
    request_timeout: float = 600.0
    """Seconds that one request may take. A request that takes longer is not retried."""
    concurrency: int = 256
    """Largest number of open requests per endpoint."""
    max_pixels: int | None = None
    """Larger images are made smaller before they are sent."""

    def __post_init__(self) -> None:
        number("retry_for", self.retry_for)
        number("request_timeout", self.request_timeout, least=0.001)
        for name in ("concurrency", "max_pixels"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, positive_int(name, value))


def parse_addresses(side: str, given: str) -> list[str]:
    """Read one address, `http://a:8000/v1`, or several, `[http://a:8000/v1,http://b:8000/v1]`. Raises
    `ArgumentError`."""
    urls = [url.strip().strip("\"'").rstrip("/") for url in given.strip().strip("[]").split(",")]
    for url in urls:
        parts = urlsplit(url)
        if parts.username or parts.password or parts.query:
            raise ArgumentError(
                f"{side}: the address of {parts.hostname} contains a user name, a password or a query, which lmms-eval "
                "would print. Remove this part from the address. Put the key into the environment variable "
                f"OPENAI_API_KEY, or into the one that {side}_api_key_env names."
            )
        try:
            is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # of the port
            is_valid = False
        if not is_valid:
            shown = url.partition("?")[0].rpartition("@")[2]  # a wrong address may have a password that was not found
            raise ArgumentError(f"{side}={shown} is not the address of an endpoint: expected http://HOST:PORT/v1.")
    return urls


def read_api_key(variable: str) -> str:
    """Return the key in an environment variable, "" if it is not set. Raises `ArgumentError`."""
    key = os.environ.get(variable, "").strip()  # a mounted secret may end with a line break
    if not (key.isascii() and key.isprintable()):
        raise ArgumentError(
            f"The key in {variable} contains characters that are not printable ASCII. Set {variable} to a valid key."
        )
    return key


def proxy_of(url: str) -> str | None:
    """Return the proxy that `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY` set for this address. Raises
    `EngineStartError`.

    aiohttp's own `trust_env` is not used: it reads `~/.netrc` in a thread for each request, and refuses to send a key
    to a host with an entry there.
    """
    parts = urlsplit(url)
    if urllib.request.proxy_bypass(parts.netloc):
        return None
    proxies = urllib.request.getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if proxy and not proxy.startswith(("http://", "https://")):
        raise EngineStartError(
            f"The environment sets a proxy for {url} that is not an HTTP proxy. Set {parts.scheme.upper()}_PROXY to "
            f"http://HOST:PORT, or add {parts.hostname} to NO_PROXY."
        )
    return proxy
