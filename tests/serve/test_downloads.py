"""Images at http addresses: they are downloaded only if the server allows their host."""

import base64
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from support.serving import Running, image_url, scripted, serving, user

from lmms_eval_mai.serve.downloads import public_socket_of

pytestmark = pytest.mark.slow

IMAGE = base64.b64decode(image_url().split(",")[1])


class Host(ThreadingHTTPServer):
    """A server of images on loopback. It counts its requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.paths: list[str] = []
        self.stopped = threading.Event()

    def at(self, path: str, host: str = "127.0.0.1") -> str:
        """Return the address of an image."""
        return f"http://{host}:{self.server_address[1]}/{path}"


class _Handler(BaseHTTPRequestHandler):
    server: Host

    def do_GET(self) -> None:
        path = self.path[1:]
        self.server.paths.append(path)
        if path == "hanging":
            self.server.stopped.wait(20)
        content = {"image": IMAGE, "text": b"no image", "half": bytes(60_000), "large": bytes(200_000)}.get(path, b"")
        named = self.server.at("image", "localhost")
        redirect = {"to-image": "image", "to-name": named, "to-file": "file:///etc/hosts", "circle": "circle"}
        self.send_response(302 if path in redirect else 404 if path == "missing" else 200)
        if path in redirect:
            self.send_header("Location", redirect[path])
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *values: Any) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with Host() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.stopped.set()
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    own = {"allowed_media_domains": ("127.0.0.1",), "max_body_bytes": 100_000}
    with serving(own, **scripted(tmp_path_factory.mktemp("scripts"), 40)) as running:
        yield running


def refusal(api: Running, *urls: str) -> tuple[int, str]:
    """Return the status and the message for a question about these images."""
    status, error = api.refused({"model": "pair", "messages": [user("Is there a dog?", *urls)]})
    assert error["param"] == "messages"
    return status, error["message"]


def test_images_at_allowed_hosts_are_downloaded(api: Running, host: Host) -> None:
    host.paths.clear()
    urls = (host.at("image"), image_url(), host.at("to-image"))
    response = api.post({"model": "pair", "messages": [user("Is there a dog?", *urls)]})
    assert response.status_code == 200 and response.json()["choices"][0]["message"]["content"].startswith("answer ")
    assert sorted(host.paths) == ["image", "image", "to-image"]


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("missing", 400, "replied with the status 404"),
        ("text", 400, "Image 1 cannot be read"),
        ("large", 413, "larger than"),
        ("hanging", 400, "did not arrive within 0.2 s"),
        ("to-name", 400, "downloads no images from its host"),
        ("to-file", 400, "is not an http address"),
    ],
)
def test_image_that_cannot_be_downloaded_is_an_error_of_the_request(
    api: Running, host: Host, path: str, status: int, text: str
) -> None:
    own = api.service.settings
    if path == "hanging":
        api.change(image_timeout=0.2)
    try:
        found, message = refusal(api, host.at(path))
    finally:
        api.service.settings = own
    assert found == status and text in message


def test_limit_of_the_size_counts_all_images_of_a_request(api: Running, host: Host) -> None:
    assert refusal(api, host.at("half"))[0] == 400
    status, message = refusal(api, host.at("half"), host.at("half"))
    assert status == 413 and "larger than" in message


def test_redirects_that_never_end_are_an_error_of_the_request(api: Running, host: Host) -> None:
    host.paths.clear()
    assert "more than 3 redirects" in refusal(api, host.at("circle"))[1]
    assert host.paths == ["circle"] * 4


def test_private_addresses_are_not_connected_if_all_hosts_are_allowed(host: Host, tmp_path: Path) -> None:
    host.paths.clear()
    with serving({"allowed_media_domains": ("*",)}, **scripted(tmp_path, 1)) as api:
        for url in (host.at("image"), host.at("image", "localhost"), host.at("image", "[::ffff:127.0.0.1]")):
            status, message = refusal(api, url)
            assert status == 400 and "has no public address" in message
    assert host.paths == []


PRIVATE = ["10.0.0.1", "169.254.169.254", "224.0.0.1", "::1", "fe80::1%1", "fec0::1", "::10.0.0.1", "::ffff:10.0.0.1"]
PRIVATE += ["2002:a00:1::1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::a00:1"]  # 6to4 and NAT64


@pytest.mark.parametrize("address", PRIVATE)
def test_only_public_addresses_get_a_socket(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with pytest.raises(OSError, match="not public"):
        public_socket_of((family, socket.SOCK_STREAM, 6, "", (address, 80)))


@pytest.mark.parametrize("address", ["8.8.8.8", "2600::1", "64:ff9b::808:808"])
def test_public_addresses_get_a_socket(address: str) -> None:
    family = socket.AF_INET  # also for IPv6, which some machines do not have: no connection is made
    public_socket_of((family, socket.SOCK_STREAM, 6, "", (address, 80))).close()


def test_server_that_allows_no_hosts_downloads_nothing(host: Host, tmp_path: Path) -> None:
    host.paths.clear()
    with serving(**scripted(tmp_path, 1)) as api:
        status, message = refusal(api, host.at("image"))
    assert status == 400 and "downloads no images" in message and host.paths == []


def test_hosts_whose_names_are_resolved_slowly_do_not_delay_other_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve, ended = socket.getaddrinfo, threading.Event()

    def resolve_slowly(host: Any, *rest: Any, **options: Any) -> Any:
        if host != "slow.example":
            return resolve(host, *rest, **options)
        ended.wait(60)
        raise socket.gaierror("unknown name")

    monkeypatch.setattr(socket, "getaddrinfo", resolve_slowly)
    with serving({"allowed_media_domains": ("*",), "image_timeout": 0.05}, **scripted(tmp_path, 8)) as api:
        try:
            for _ in range(4):  # together more names than asyncio has threads for them
                assert "did not arrive" in refusal(api, *["http://slow.example/x.png"] * 8)[1]
            assert api.ask()["choices"]
        finally:
            ended.set()
