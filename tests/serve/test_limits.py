"""Limits of requests and connections: the bounded queue, timeouts, clients that disconnect or misbehave, and the end of
the engines."""

import contextlib
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.serving import Running, chat, chat_records, scripted, serving, wait_until, written

pytestmark = pytest.mark.slow

GET = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


def with_hanging_first_request(folder: Path, count: int = 12) -> dict[str, Any]:
    """Return model arguments whose engines answer one call at a time, and never the calls of the first request."""
    small, large = chat_records(count)
    for record in (*small, *large):
        if record["doc_id"] == 0:
            record["fault"] = "hang"
    return written(folder, small, large) | {"slots": 1, "max_open_samples": 1}


def connect(server: Running, text: bytes = b"") -> socket.socket:
    """Send bytes on a connection of its own, which the caller closes."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(20)
    connection.connect(("127.0.0.1", server.port))
    connection.sendall(text)
    return connection


def post(body: bytes, size: int | None = None) -> bytes:
    """Return a request with this body. `size`: the announced size."""
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body) if size is None else size}\r\n\r\n".encode() + body


def ask_on(server: Running, **fields: Any) -> socket.socket:
    """Send a question on a connection of its own, which the caller closes."""
    return connect(server, post(httpx.Request("POST", server.url, json=chat(**fields)).content))


def received_until(connection: socket.socket, end: bytes) -> bytes:
    """Return the bytes of the server up to this end."""
    reply = b""
    while not reply.endswith(end):
        reply += connection.recv(1000)
    return reply


def is_closed(connection: socket.socket) -> bool:
    """Wait for bytes of the server, and return whether it has closed the connection without any."""
    try:
        return connection.recv(1000) == b""
    except ConnectionError:
        return True


def test_full_queue_gives_status_429_and_a_client_that_disconnects_frees_both_engines(tmp_path: Path) -> None:
    with serving({"max_queue": 1}, **with_hanging_first_request(tmp_path)) as server, ThreadPoolExecutor(1) as pool:
        hanging = ask_on(server)
        wait_until(lambda: server.service.asked == 1)
        waiting = ask_on(server)
        wait_until(lambda: server.service.asked == 2)
        response = server.post(chat())
        assert response.status_code == 429 and response.json()["error"]["code"] == "queue_full"
        assert int(response.headers["Retry-After"]) >= 1
        waiting.close()  # a client that waits gives its place in the queue back
        wait_until(lambda: server.service.admission.count == 1)
        last = pool.submit(server.ask)
        wait_until(lambda: server.service.asked == 3)
        assert not last.done()
        hanging.close()
        assert last.result(20)["choices"][0]["message"]["content"] == "answer 2"
        wait_until(lambda: server.service.admission.count == 0)


def test_request_that_takes_too_long_gets_status_504_and_its_calls_are_cancelled(tmp_path: Path) -> None:
    with serving({"request_timeout": 0.2}, **with_hanging_first_request(tmp_path)) as server:
        status, error = server.refused(chat())
        assert status == 504 and error["code"] == "request_timeout"
        server.change(request_timeout=60)
        assert server.ask()["choices"][0]["message"]["content"] == "answer 1"


def test_heads_without_bodies_take_no_place_and_get_status_408(tmp_path: Path) -> None:
    limits = {"max_queue": 0, "body_timeout": 3}
    with serving(limits, **scripted(tmp_path), max_open_samples=1) as server, contextlib.ExitStack() as stack:
        heads = [stack.enter_context(connect(server, post(b"{", size=9))) for _ in range(5)]
        assert server.ask()["choices"][0]["message"]["content"] == "answer 0"
        for head in heads:
            assert head.recv(1000).startswith(b"HTTP/1.1 408 ")


def test_bodies_that_are_still_arriving_have_at_most_the_bytes_of_the_free_places(tmp_path: Path) -> None:
    limits = {"max_queue": 0, "max_body_bytes": 1000}
    with serving(limits, **scripted(tmp_path), max_open_samples=1) as server:
        with connect(server, post(b"x" * 950, size=1000)):
            wait_until(lambda: server.post(chat()).status_code == 429)
        wait_until(lambda: server.post(chat()).status_code == 200)


def test_connection_of_a_client_that_does_not_send_its_headers_is_closed(tmp_path: Path) -> None:
    with serving({"body_timeout": 0.2}, **scripted(tmp_path)) as server:
        for start in (b"", b"GET /health HTTP/1.1\r\nX: "):
            with connect(server, start) as connection:
                assert is_closed(connection)


def test_connection_with_too_large_headers_or_a_wrong_body_after_the_reply_is_closed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(**scripted(tmp_path)) as server, connect(server, GET) as connection:
        assert received_until(connection, b"}").startswith(b"HTTP/1.1 200 ")
        connection.sendall(b"GET /health HTTP/1.1\r\nX: ")
        with contextlib.suppress(ConnectionError):
            for _ in range(20):
                connection.sendall(b"x" * 10_000)
        # The first bytes may be those of the status 400, which uvicorn sends in up to three parts.
        assert any(is_closed(connection) for _ in range(4))
        with connect(server, b"POST /v1/models HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n") as other:
            assert received_until(other, b"}").startswith(b"HTTP/1.1 405 ")
            other.sendall(b"no size\r\n")
            assert is_closed(other)
    assert not caplog.records


def test_client_that_sends_a_request_before_it_has_its_reply_is_disconnected(tmp_path: Path) -> None:
    with serving(**with_hanging_first_request(tmp_path)) as server:
        with connect(server, GET * 2) as connection:
            assert is_closed(connection)
        with ask_on(server) as connection:
            wait_until(lambda: server.service.asked == 1)
            connection.sendall(GET)
            assert is_closed(connection)
        assert server.ask()["choices"][0]["message"]["content"] == "answer 1"


def test_a_connection_too_many_gets_status_503(tmp_path: Path) -> None:
    with serving({"max_connections": 2}, **scripted(tmp_path)) as server:
        with connect(server), connect(server), connect(server) as last:
            assert last.recv(1000).startswith(b"HTTP/1.1 503 ")
            assert is_closed(last)
        wait_until(lambda: server.client.get("/health").status_code == 200)


def test_client_that_does_not_read_its_reply_is_disconnected_and_does_not_delay_the_end(tmp_path: Path) -> None:
    text = "x" * 10_000_000  # more than the buffers of the sockets take
    models = written(tmp_path, [], [{"task": "chat", "doc_id": 0, "stage": "task", "text": text}])
    story = chat() | {"messages": [{"role": "user", "content": "Tell a story."}]}
    with serving({"sending_timeout": 0.3}, **models) as server:
        body = httpx.Request("POST", server.url, json=story).content
        with connect(server, post(body)) as connection:
            wait_until(lambda: server.service.asked == 1)
            server.stop()
            server.join()
            received = 0
            with contextlib.suppress(ConnectionError):
                while part := connection.recv(1 << 20):
                    received += len(part)
        assert received < len(text)


def test_requests_get_status_503_after_the_engines_were_stopped(tmp_path: Path) -> None:
    with serving(**with_hanging_first_request(tmp_path)) as server, ThreadPoolExecutor(1) as pool:
        hanging = pool.submit(server.post, chat())
        wait_until(lambda: server.service.asked == 1)
        threading.Thread(target=server.service.stop).start()
        response = hanging.result(20)
        assert response.status_code == 503 and response.json()["error"]["code"] == "server_stopping"
        status, error = server.refused(chat())
        assert status == 503 and error["code"] == "engine_down"
