"""Downloads the images of a request, only from hosts that the server allows (`--allowed-media-domains`).

Each address and each redirect is checked. A host that is allowed by its name may be in a private network. With `*`, all
other hosts are allowed too, but only at public addresses: the check is made on the address that is connected, after the
name was resolved.
"""

import asyncio
import dataclasses
import ipaddress
import socket
from collections.abc import Collection, Sequence
from typing import Any

import aiohttp
from yarl import URL

from lmms_eval_mai.serve.errors import RequestError, bad_request
from lmms_eval_mai.serve.images import EncodedImage, RemoteImage
from lmms_eval_mai.serve.settings import Settings
from lmms_eval_mai.serve.turns import Turn, remote_images_of

ALL_PUBLIC = "*"
MAX_REDIRECTS = 3
PARALLEL = 8
"""Images of one request that are downloaded at the same time."""
GLOBAL_IPV6 = ipaddress.ip_network("2000::/3")
"""All public addresses of IPv6 are in it. The module `ipaddress` takes some others for public ones."""
NAT64 = ipaddress.ip_network("64:ff9b::/96")
"""IPv4 addresses for machines that have only IPv6 (RFC 6052)."""


async def download_images(turns: Sequence[Turn], settings: Settings) -> tuple[Turn, ...]:
    """Return the turns with their remote images downloaded. The images of a request together may be as large as the
    body of a request. Raises `RequestError`."""
    remote = list(remote_images_of(turns))
    if not remote:
        return tuple(turns)
    places, left = asyncio.Semaphore(PARALLEL), _Limit(settings.max_body_bytes)

    async def download(image: RemoteImage) -> EncodedImage:
        async with places:
            return EncodedImage(image.number, await _download(image, settings, left))

    tasks = [asyncio.ensure_future(download(image)) for image in remote]
    try:
        found = {image.number: image for image in await asyncio.gather(*tasks)}
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return tuple(
        dataclasses.replace(
            turn,
            content=tuple(found[part.number] if isinstance(part, RemoteImage) else part for part in turn.content),
        )
        for turn in turns
    )


@dataclasses.dataclass
class _Limit:
    """The bytes that the downloads of a request may still have."""

    left: int


async def _download(image: RemoteImage, settings: Settings, limit: _Limit) -> bytes:
    """Return the file at the address of an image. Raises `RequestError`."""
    try:
        async with asyncio.timeout(settings.image_timeout):
            url = URL(image.url)
            for _ in range(1 + MAX_REDIRECTS):
                found = await _get(image, url, settings, limit)
                if isinstance(found, bytes):
                    return found
                url = found
    except TimeoutError:
        raise _failed(image, f"it did not arrive within {settings.image_timeout:g} s") from None
    except (aiohttp.ClientError, OSError):  # without the reason, which would describe the network of the server
        raise _failed(image, "its host does not answer, or has no public address") from None
    except ValueError:  # yarl's error about an address, also UnicodeError
        raise _failed(image, "its address is invalid") from None
    raise _failed(image, f"there are more than {MAX_REDIRECTS} redirects")


async def _get(image: RemoteImage, url: URL, settings: Settings, limit: _Limit) -> bytes | URL:
    """Return the file at an address, or the address of a redirect. Raises `RequestError` if the host is not allowed,
    and the errors of aiohttp."""
    listed = _is_listed(image, url, settings.allowed_media_domains)
    async with (
        aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(socket_factory=socket_of if listed else public_socket_of),
            auto_decompress=False,  # a small compressed body may be a huge file
            headers={"Accept-Encoding": "identity", "User-Agent": "lmms-eval-mai"},
        ) as session,
        session.get(url, allow_redirects=False) as response,
    ):
        if response.status in (301, 302, 303, 307, 308) and "Location" in response.headers:
            return url.join(URL(response.headers["Location"]))
        if response.status != 200:
            raise _failed(image, f"its host replied with the status {response.status}")
        parts = []
        async for part in response.content.iter_any():
            limit.left -= len(part)
            if limit.left < 0:
                text = f"The images of this request are larger than {settings.max_body_bytes / 2**20:g} MiB together."
                raise RequestError(413, f"{text} Send smaller images.", "request_too_large", "messages")
            parts.append(part)
        return b"".join(parts)


def _is_listed(image: RemoteImage, url: URL, allowed: Collection[str]) -> bool:
    """Return whether the host of an address is allowed by its name. False: it is allowed as a public host. Raises
    `RequestError` for all other hosts."""
    if url.scheme not in ("http", "https") or not url.host:
        raise _failed(image, "its address, or that of a redirect, is not an http address")
    if url.host.lower() in allowed:
        return True
    if ALL_PUBLIC not in allowed:
        raise _failed(image, "this server downloads no images from its host (--allowed-media-domains)")
    return False


def socket_of(address: Any) -> socket.socket:
    """Return a socket for an entry of `socket.getaddrinfo`."""
    family, kind, protocol, _, _ = address
    return socket.socket(family, kind, protocol)


def public_socket_of(address: Any) -> socket.socket:
    """Return a socket for an entry of `socket.getaddrinfo`. Raises `OSError` if its address is not public."""
    host = _ipv4_inside(ipaddress.ip_address(address[4][0].partition("%")[0]))
    is_public = host.is_global and not host.is_multicast and (host.version == 4 or host in GLOBAL_IPV6)
    if not is_public:
        raise OSError("The address is not public.")
    return socket_of(address)


def _ipv4_inside(host: ipaddress.IPv4Address | ipaddress.IPv6Address) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return the IPv4 address to which the network sends packets for this IPv6 address, or the address itself."""
    if not isinstance(host, ipaddress.IPv6Address):
        return host
    if host in NAT64:
        return ipaddress.IPv4Address(int(host) & 0xFFFF_FFFF)
    return host.ipv4_mapped or host.sixtofour or host


def _failed(image: RemoteImage, reason: str) -> RequestError:
    text = f"Image {image.number} cannot be downloaded: {reason}. Send the image itself, as data:image/png;base64,..."
    return bad_request(text, "invalid_image_url", "messages")
