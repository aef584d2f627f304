"""Limits of requests and connections, the end of the engines, health and metrics."""

import contextlib
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from support.pair import EXITS, written
from support.serving import Running, chat, chat_records, scripted, serving, wait_until

pytestmark = pytest.mark.slow


def connect(server: Running, text: bytes = b"") -> socket.socket:
    """Send bytes on a connection of its own, which the caller closes."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(20)
    connection.connect(("127.0.0.1", int(server.url.rpartition(":")[2])))
    connection.sendall(text)
    return connection


def post(body: bytes, size: int | None = None) -> bytes:
    """Return a request with this body. `size`: the announced size."""
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body) if size is None else size}\r\n\r\n".encode() + body


def ask_on(server: Running, **fields: object) -> socket.socket:
    """Send a question on a connection of its own, which the caller closes."""
    return connect(server, post(httpx.Request("POST", server.url, json=chat(**fields)).content))


def test_full_queue_gives_status_429_and_a_client_that_disconnects_frees_both_engines(tmp_path: Path) -> None:
    with serving({"max_queue": 1}, **scripted(tmp_path, hanging=True)) as server, ThreadPoolExecutor(1) as pool:
        hanging = ask_on(server)
        wait_until(lambda: server.service.asked == 1)
        waiting = ask_on(server)
        wait_until(lambda: server.service.asked == 2)
        response = server.post(chat())
        assert response.status_code == 429 and response.json()["error"]["code"] == "queue_full"
        assert int(response.headers["Retry-After"]) >= 1
        waiting.close()  # a client that waits gives its place in the queue back
        wait_until(lambda: server.requests() == 1)
        last = pool.submit(server.ask)
        wait_until(lambda: server.service.asked == 3)
        assert not last.done()
        hanging.close()
        assert last.result(20)["choices"][0]["message"]["content"] == "answer 2"
        wait_until(lambda: server.requests() == 0)


def test_client_that_leaves_in_the_middle_of_a_stream_is_counted_as_499(tmp_path: Path) -> None:
    made = chat_records(2)
    for record in made["large"]:
        record |= {"fault": "hang"} if record["prompt"] == "transfer" else {}
    with serving(**written(tmp_path, made)) as server:
        with ask_on(server, stream=True, mai={"method": "full_rt"}) as leaving:
            while b"reasoning_content" not in leaving.recv(1 << 16):
                pass
        wait_until(lambda: server.requests() == 0)
        metrics = server.client.get("/metrics").text
        assert 'mai_replies_total{status="499"} 1.0' in metrics and 'status="200"' not in metrics


def test_body_that_arrives_slowly_takes_a_place_until_status_408_and_silent_clients_do_not_delay_the_end(
    tmp_path: Path,
) -> None:
    limits = {"max_queue": 0, "body_timeout": 3}
    with contextlib.ExitStack() as stack, serving(limits, **scripted(tmp_path), max_open_samples=1) as server:
        for start in (b"", b"GET /health HTTP/1.1\r\nX: "):
            stack.enter_context(connect(server, start))
        slow = stack.enter_context(connect(server, post(b"{", size=9)))
        wait_until(lambda: server.requests() == 1)
        assert server.refused(chat())[0] == 429
        assert slow.recv(1000).startswith(b"HTTP/1.1 408 ")
        assert server.ask()["choices"][0]["message"]["content"] == "answer 0"


def test_metrics_count_replies_exits_calls_tokens_and_seconds(tmp_path: Path) -> None:
    with serving(**scripted(tmp_path, 6)) as server:
        for number in range(6):
            server.post(chat(stream=bool(number % 2)))
        server.refused(chat(temperature=-1))
        text = server.client.get("/metrics").text
    labels = [f'mai_exits_total{{exit="{exit}",method="mai"}} 2.0' for exit in EXITS]
    labels += [f'mai_request_seconds_count{{exit="{exit}"}} 2.0' for exit in EXITS]
    labels += ['mai_replies_total{status="200"} 6.0', 'mai_replies_total{status="400"} 1.0']
    labels += [
        'mai_call_seconds_count{prompt="think",side="small"} 4.0',
        'mai_tokens_total{kind="output",side="small"} 230.0',
    ]
    labels += ['mai_requests{state="open"} 0.0', 'mai_requests{state="queued"} 0.0', 'mai_engine_up{side="large"} 1.0']
    assert [label for label in labels if label not in text] == []


def test_a_request_that_takes_too_long_ends_with_504_and_health_is_503_until_its_calls_are_cancelled(
    tmp_path: Path,
) -> None:
    script = scripted(tmp_path, hanging=True)
    with serving({"request_timeout": 3}, **script) as server, ThreadPoolExecutor(1) as pool:
        hanging = pool.submit(server.refused, chat(stream=True))
        wait_until(lambda: server.service.asked == 1)
        assert server.client.get("/health").status_code == 200
        server.service.settings = server.service.settings.model_copy(update={"request_timeout": 0})
        wait_until(lambda: server.client.get("/health").json()["down"] == ["small", "large"])
        assert 'mai_engine_up{side="large"} 0.0' in server.client.get("/metrics").text
        status, error = hanging.result(20)
        assert (status, error["code"]) == (504, "request_timeout")
        wait_until(lambda: server.client.get("/health").json() == {"status": "ok", "down": [], "requests": 0})
