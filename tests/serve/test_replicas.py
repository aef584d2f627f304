"""A server whose models have several servers of their own: one of them may be killed."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from support.servers import free_port
from support.serving import serving, wait_until

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).resolve().parents[2] / "tools" / "scripted_server.py"
REQUESTS, KILLED_AFTER = 80, 20


def answers(url: str) -> bool:
    """Return whether a server answers."""
    try:
        return httpx.get(f"{url}/models").status_code == 200
    except httpx.TransportError:
        return False


def test_every_request_is_answered_once_if_a_replica_is_killed() -> None:
    ports = [free_port(), free_port()]
    urls = [f"http://127.0.0.1:{port}/v1" for port in ports]
    replicas = [
        subprocess.Popen([sys.executable, str(PROGRAM), "--port", str(port), "--seconds", "0.1"]) for port in ports
    ]
    answered = threading.Semaphore(0)
    try:
        wait_until(lambda: all(answers(url) for url in urls) or any(one.poll() is not None for one in replicas))
        assert [one.poll() for one in replicas] == [None, None]
        pair = f"[{','.join(urls)}]"
        with serving(small=pair, large=pair) as server, ThreadPoolExecutor(16) as pool:

            def ask(_: int) -> tuple[str, str]:
                reply = server.ask()
                answered.release()
                return reply["id"], reply["choices"][0]["message"]["content"]

            asked = [pool.submit(ask, number) for number in range(REQUESTS)]
            for _ in range(KILLED_AFTER):
                assert answered.acquire(timeout=60)
            replicas[1].kill()
            replies = [one.result(60) for one in asked]
            assert server.client.get("/health").status_code == 200
            metrics = server.client.get("/metrics").text
    finally:
        for replica in replicas:
            replica.kill()
            replica.wait()
    assert {text for _, text in replies} == {"Yes"} and len({name for name, _ in replies}) == REQUESTS
    assert "mai_errors_total{" not in metrics
    for side in ("small", "large"):  # no call was counted twice
        assert f'mai_call_seconds_count{{side="{side}",stage="short"}} {REQUESTS}.0' in metrics
