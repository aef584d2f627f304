"""The metrics and the health of the server, and its engines' crashes."""

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.serving import chat, chat_records, serving, wait_until, written

pytestmark = pytest.mark.slow


def value(text: str, name: str, **labels: str) -> float:
    """Return the value of a metric."""
    wanted = ",".join(f'{label}="{labels[label]}"' for label in sorted(labels))
    found = re.search(rf"^{re.escape(name)}\{{{re.escape(wanted)}\}} (\S+)$", text, re.MULTILINE)
    assert found is not None, f"{name} {wanted} is not in:\n{text}"
    return float(found.group(1))


def test_metrics_count_replies_exits_calls_tokens_and_seconds(tmp_path: Path) -> None:
    with serving({"api_key": "key"}, **written(tmp_path, *chat_records(6))) as server:
        server.client.headers["Authorization"] = "Bearer key"
        for number in range(6):
            server.ask(stream=False) if number % 2 else server.post(chat(stream=True))
        server.refused(chat(temperature=-1))
        server.client.get("/v1/models", headers={"Authorization": "Bearer other"})
        text = server.client.get("/metrics", headers={"Authorization": ""}).text
    for exit in ("agree_short", "agree_think", "transfer"):
        assert value(text, "mai_exits_total", mode="cascade", exit=exit) == 2
        assert value(text, "mai_request_seconds_count", exit=exit) == 2
    for status, count in {"200": 6, "400": 1, "401": 1}.items():
        assert value(text, "mai_replies_total", status=status) == count
    calls = {("small", "short"): 6, ("large", "short"): 6, ("small", "think"): 4, ("large", "transfer"): 2}
    for (side, stage), count in calls.items():
        assert value(text, "mai_call_seconds_count", side=side, stage=stage) == count
    assert value(text, "mai_tokens_total", side="small", kind="output") == 6 * 5 + 4 * 20
    assert value(text, "mai_tokens_total", side="large", kind="prompt") == 800
    assert value(text, "mai_requests", state="open") == value(text, "mai_requests", state="queued") == 0
    assert value(text, "mai_engine_up", side="small") == value(text, "mai_engine_up", side="large") == 1


def test_requests_are_asked_again_after_a_crash_of_an_engine(tmp_path: Path, warnings: list[str]) -> None:
    small, large = chat_records(2, seconds=0.0)
    for record in large:  # request 0 is in flight when request 1 crashes the engine
        record |= {"seconds": 2.0} if record["doc_id"] == 0 else {"fault": "death"}
    with (
        serving(**written(tmp_path, small, large), time_scale=0.5, engine_restarts=10) as server,
        ThreadPoolExecutor(1) as pool,
    ):
        asked = pool.submit(server.ask)
        wait_until(lambda: server.client.get("/health").json()["requests"] == 1)
        status, error = server.refused(chat())
        assert status == 422 and error["code"] == "engine_crashed_by_request"
        assert asked.result(60)["choices"][0]["message"]["content"] == "answer 0"
        text = server.client.get("/metrics").text
        assert server.client.get("/health").status_code == 200
    assert any("restarting the large engine" in warning for warning in warnings)
    assert value(text, "mai_replies_total", status="200") == value(text, "mai_replies_total", status="422") == 1


def test_health_is_503_while_an_engine_is_down(tmp_path: Path) -> None:
    small, large = chat_records(3)
    large[0]["fault"] = "death"
    arguments = written(tmp_path, small, large) | {"engine_restarts": 0}
    with serving(**arguments) as server:
        assert server.client.get("/health").json() == {"status": "ok", "down": [], "requests": 0}
        response = server.post(chat())
        assert response.status_code == 503 and response.json()["error"]["code"] == "engine_down"
        assert int(response.headers["Retry-After"]) > 0
        health = server.client.get("/health")
        assert health.status_code == 503 and health.json()["down"] == ["large"]
        text = server.client.get("/metrics").text
        assert (value(text, "mai_engine_up", side="large"), value(text, "mai_engine_up", side="small")) == (0, 1)
        assert value(text, "mai_errors_total", side="large", error="EngineCrashed") == 1


def test_health_is_503_while_an_engine_has_calls_and_answers_none(tmp_path: Path) -> None:
    small, large = chat_records(2)
    large[0]["fault"] = "hang"
    with serving(**written(tmp_path, small, large)) as server, ThreadPoolExecutor(1) as pool:
        hanging = pool.submit(server.refused, chat())
        wait_until(lambda: server.service.asked == 1)
        assert server.client.get("/health").status_code == 200
        server.change(request_timeout=0)  # for `/health`; the hanging request has its limit already
        wait_until(lambda: server.client.get("/health").json()["down"] == ["large"])
        assert value(server.client.get("/metrics").text, "mai_engine_up", side="large") == 0
        server.change(request_timeout=60)
        assert server.ask()["choices"][0]["message"]["content"] == "answer 1"
        assert server.client.get("/health").status_code == 200
        threading.Thread(target=server.service.stop).start()
        assert hanging.result(20)[0] == 503
