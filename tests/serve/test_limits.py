"""Requests in flight: the bounded queue, timeouts, clients that disconnect, and the end of the server."""

import contextlib
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.serving import Running, chat, chat_records, serving, wait_until, written

pytestmark = pytest.mark.slow


def with_hanging_first_request(folder: Path, count: int = 12) -> dict[str, Any]:
    """Return model arguments whose engines answer one call at a time, and never the calls of the first request."""
    small, large = chat_records(count)
    for record in (*small, *large):
        if record["doc_id"] == 0:
            record["fault"] = "hang"
    return written(folder, small, large) | {"slots": 1, "max_open_samples": 1}


def disconnect(server: Running) -> socket.socket:
    """Send a request on a connection of its own, which the caller closes."""
    body = httpx.Request("POST", server.url, json=chat()).content
    connection = socket.create_connection(("127.0.0.1", server.port))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


def test_full_queue_gives_status_429_and_a_client_that_disconnects_frees_both_engines(tmp_path: Path) -> None:
    with serving({"max_queue": 1}, **with_hanging_first_request(tmp_path)) as server, ThreadPoolExecutor(1) as pool:
        hanging = disconnect(server)
        wait_until(lambda: server.service.asked == 1)
        waiting = pool.submit(server.ask)
        wait_until(lambda: server.service.asked == 2)
        response = httpx.post(f"{server.url}/v1/chat/completions", json=chat())
        assert response.status_code == 429 and response.json()["error"]["code"] == "queue_full"
        assert int(response.headers["Retry-After"]) >= 1
        assert not waiting.done()
        hanging.close()
        assert waiting.result(20)["choices"][0]["message"]["content"] == "answer 1"
        wait_until(lambda: server.service.admission.count == 0)


def test_client_that_disconnects_while_it_waits_gives_its_place_in_the_queue_back(tmp_path: Path) -> None:
    with serving({"max_queue": 1}, **with_hanging_first_request(tmp_path)) as server, ThreadPoolExecutor(1) as pool:
        first = disconnect(server)
        wait_until(lambda: server.service.asked == 1)
        second = disconnect(server)
        wait_until(lambda: server.service.asked == 2)
        second.close()
        wait_until(lambda: server.service.admission.count == 1)
        third = pool.submit(server.ask)
        wait_until(lambda: server.service.asked == 3)
        first.close()
        assert third.result(20)["choices"][0]["message"]["content"] == "answer 2"


def test_request_that_takes_too_long_gets_status_504_and_its_calls_are_cancelled(tmp_path: Path) -> None:
    with serving({"request_timeout": 0.2}, **with_hanging_first_request(tmp_path)) as server:
        status, error = server.refused(chat())
        assert status == 504 and error["code"] == "request_timeout"
        server.change(request_timeout=60)
        assert server.ask()["choices"][0]["message"]["content"] == "answer 1"


def test_body_that_does_not_arrive_gets_status_408(tmp_path: Path) -> None:
    with (
        serving(**with_hanging_first_request(tmp_path)) as server,
        socket.create_connection(("127.0.0.1", server.port)) as connection,
    ):
        server.change(body_timeout=0.1)
        connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
        connection.settimeout(20)
        assert connection.recv(1000).startswith(b"HTTP/1.1 408 ")
        wait_until(lambda: server.service.admission.count == 0)


def is_closed(connection: socket.socket) -> bool:
    """Wait for bytes of the server, and return whether it has closed the connection without any."""
    connection.settimeout(20)
    try:
        return connection.recv(1000) == b""
    except ConnectionError:
        return True


def test_connection_of_a_client_that_does_not_send_its_headers_is_closed(tmp_path: Path) -> None:
    with serving({"body_timeout": 0.2}, **with_hanging_first_request(tmp_path, 1)) as server:
        for start in (b"", b"GET /health HTTP/1.1\r\nX: "):
            with socket.create_connection(("127.0.0.1", server.port)) as connection:
                connection.sendall(start)
                assert is_closed(connection)


def test_connection_with_too_large_headers_is_closed(tmp_path: Path) -> None:
    with (
        serving(**with_hanging_first_request(tmp_path, 1)) as server,
        socket.create_connection(("127.0.0.1", server.port)) as connection,
    ):
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        reply = connection.recv(1000)
        connection.settimeout(20)
        while not reply.endswith(b"}"):
            part = connection.recv(1000)
            assert part, reply
            reply += part
        connection.sendall(b"GET /health HTTP/1.1\r\nX: ")
        with contextlib.suppress(ConnectionError):
            for _ in range(20):
                connection.sendall(b"x" * 10_000)
        assert is_closed(connection)


def test_many_clients_get_each_its_own_answer(tmp_path: Path) -> None:
    count = 60
    small, large = chat_records(count)
    arguments = written(tmp_path, small, large) | {"max_open_samples": 7}
    with serving({"max_queue": count}, **arguments) as server, ThreadPoolExecutor(16) as pool:
        replies = list(pool.map(lambda _: server.ask(), range(count)))
    answers = [reply["choices"][0]["message"]["content"] for reply in replies]
    assert sorted(answers) == sorted(f"answer {number}" for number in range(count))
    assert len({reply["id"] for reply in replies}) == count
    assert server.service.admission.count == 0


def test_requests_in_flight_are_answered_before_the_server_stops(tmp_path: Path) -> None:
    small, large = chat_records(3, seconds=0.3)
    with serving(**written(tmp_path, small, large)) as server, ThreadPoolExecutor(3) as pool:
        replies = [pool.submit(server.ask) for _ in range(3)]
        wait_until(lambda: server.service.asked == 3)
        server.stop()
        found = {reply.result(20)["choices"][0]["message"]["content"] for reply in replies}
        assert found == {"answer 0", "answer 1", "answer 2"}
        server.join()
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{server.url}/health")


def test_requests_get_status_503_after_the_engines_were_stopped(tmp_path: Path) -> None:
    with serving(**with_hanging_first_request(tmp_path)) as server, ThreadPoolExecutor(1) as pool:
        hanging = pool.submit(server.post, chat())
        wait_until(lambda: server.service.asked == 1)
        threading.Thread(target=server.service.stop).start()
        response = hanging.result(20)
        assert response.status_code == 503 and response.json()["error"]["code"] == "server_stopping"
        status, error = server.refused(chat())
        assert status == 503 and error["code"] == "engine_down"
