"""Requests that the server refuses: each gets a status and a sentence, and no drawn body gets the status 500."""

import base64
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.answers import EXAMPLES
from support.endpoints import ScriptedServer, served
from support.pair import written
from support.serving import Running, chat, image_url, scripted, serving, user, wait_until

from lmms_eval_mai.contract import CallKey, EngineConfig, Prompt
from lmms_eval_mai.engines.vllm.conversion import sample_error
from lmms_eval_mai.serve.errors import to_request_error

KEY = {"Authorization": "Bearer the key"}
LIMITS = {"api_key": "the key", "max_body_mib": 0.1, "max_image_megapixels": 0.001, "max_images": 3}
LIMITS |= {"max_text_mib": 0.002, "local_hosts_only": True}
STORY = {"model": "pair", "messages": [{"role": "user", "content": "Tell a story."}]}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(LIMITS, **scripted(tmp_path_factory.mktemp("scripts"), 2000)) as running:
        yield running


def messages(*given: dict[str, Any]) -> dict[str, Any]:
    return {"model": "pair", "messages": list(given)}


IMAGE = "messages[0].content[0].image_url"
WRONG: dict[str, tuple[Any, int, str, str | None]] = {
    "no JSON": (b"{", 400, "invalid_json", None),
    "lone surrogate": (b'{"model": "pair", "\\ud800": 1}', 400, "invalid_json", None),
    "a list": ([1], 400, "invalid_value", None),
    "no model": ({"messages": STORY["messages"]}, 400, "invalid_value", "model"),
    "nearly a field": (chat(temprature=1), 400, "invalid_value", "temprature"),
    "unknown option": (chat(mai={"mehtod": "small"}), 400, "invalid_value", "mai.mehtod"),
    "infinite": (json.dumps(chat(temperature=1)).replace("1}", "1e999}").encode(), 400, "invalid_value", "temperature"),
    "tools": (chat(tool_choice="required", n=2, tools=[{}]), 400, "invalid_value", "tools"),
    "many stops": (chat(stop=["x"] * 17), 400, "invalid_value", "stop"),
    "unknown method": (chat(mai={"method": "cascade"}), 400, "invalid_value", "mai.method"),
    "threshold without effect": (chat(mai={"min_confidence": 0.9}), 400, "invalid_value", "mai.min_confidence"),
    "equal options": (chat(mai={"options": ["a", "a"]}), 400, "invalid_value", None),
    "letter without options": (chat(mai={"kind": "letter"}), 400, "invalid_value", "mai.kind"),
    "five options of mmbench": (chat(mai={"benchmark": "mmbench_en_dev", "options": list("abcde")}), 400,
                                "invalid_value", "mai.benchmark"),
    "no messages": (messages(), 400, "invalid_value", "messages"),
    "image of the assistant": (messages(user("Hm?", image_url()) | {"role": "assistant"}, user("Hm?")), 400,
                               "invalid_value", "messages[0].content"),
    "answer last": (messages({"role": "assistant", "content": "Hm."}), 400, "invalid_value", "messages[0].role"),
    "late system": (messages(user("Hi."), user("Hm.") | {"role": "system"}, user("Hm?")), 400, "invalid_value",
                    "messages[1].role"),
    "no text in the last turn": (messages({"role": "user", "content": None}), 400, "invalid_value",
                                 "messages[0].content"),
    "image of the web": (messages(user("Hm?", "http://127.0.0.1/x.png")), 400, "invalid_image", IMAGE),
    "no base64": (messages(user("Hm?", "data:image/png;base64,%%")), 400, "invalid_image", IMAGE),
    "cut image": (messages(user("Hm?", image_url()[:82])), 400, "invalid_image", "messages"),
    "other format": (messages(user("Hm?", image_url(format="TIFF"))), 400, "invalid_image", IMAGE),
    "large images": (messages(user("Hm?", *[image_url((20, 20))] * 3)), 413, "request_too_large", "messages"),
    "many images": (messages(user("Hm?", *[image_url()] * 4)), 413, "request_too_large", None),
    "many images whose addresses JSON escapes": (
        json.dumps(messages(user("Hm?", *[image_url((1, 1))] * 4))).replace("data:image", r"\u0064ata:image").encode(),
        413, "request_too_large", "messages"),
    "unknown model": (STORY | {"model": "gpt-5"}, 404, "model_not_found", "model"),
    "large body": (messages(user("Hm?", "data:image/png;base64," + "A" * 200_000)), 413, "request_too_large", None),
    "many characters": (messages(user("Hm? " * 600)), 413, "request_too_large", None),
}  # fmt: skip
"""Name -> body, status, code and param."""


@pytest.mark.parametrize("name", WRONG)
def test_wrong_request_gets_a_status_a_code_and_the_field(name: str, api: Running) -> None:
    body, *expected = WRONG[name]
    status, error = api.refused(body, headers=KEY)
    assert [status, error["code"], error["param"]] == expected


def test_refusal_of_vllm_is_the_error_of_the_request_and_the_reply_has_its_cause() -> None:
    from vllm.exceptions import VLLMValidationError

    prompt, engine = Prompt((), CallKey("chat", 0, 0, "small", "simple")), EngineConfig("small", "vllm", "/a/path")
    processing = ValueError("Failed to apply Qwen3VLProcessor")
    processing.__cause__ = ValueError("ratio must be smaller than 200")
    for cause, code, reason in (
        (VLLMValidationError("min_p is not supported"), "request_refused", "min_p is not supported"),
        (processing, "invalid_image", "smaller than 200"),
    ):
        error = sample_error(prompt, engine, 2048, cause)
        error.__cause__ = cause
        reply = to_request_error(error)
        assert (reply.status, reply.code) == (400, code)
        assert reason in reply.message and "/a/path" not in reply.message
    assert to_request_error(sample_error(prompt, engine, 2048, RuntimeError("out of memory"))).status == 500


def test_requests_need_the_key_json_a_known_path_and_the_name_of_this_server(api: Running) -> None:
    for headers in ({}, {"Authorization": "Bearer the kez"}, {"Authorization": "the key"}, {"Authorization": b"\xff"}):
        assert api.refused(b"{", headers=headers)[0] == 401  # before the body is read
        assert api.client.get("/v1/models", headers=headers).status_code == 401
    assert api.client.get("/v1/models", headers=KEY).status_code == 200
    for kind, status in (("application/json; charset=utf-8", 200), ("text/plain", 415), ("", 415)):
        assert api.post(STORY, headers=KEY | {"Content-Type": kind}).status_code == status
    for method, path, status in (
        ("POST", "/chat/completions", 404),
        ("GET", "/v1/models/gpt-5", 404),
        ("GET", "/v1/chat/completions", 405),
    ):
        response = api.client.request(method, path, headers=KEY)
        error = response.json()["error"]
        assert response.status_code == status and set(error) == {"message", "type", "param", "code"}
        assert path in error["message"] and response.headers.get("Allow") == ("POST" if status == 405 else None)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("LOCALHOST:80", 200),
        ("[::1]:8000", 200),
        ("rebound.example", 400),
        ("127.0.0.1.rebound.example", 400),
        ("192.168.0.1", 400),
    ],
)
def test_only_names_of_the_machine_itself_reach_a_server_without_a_key(host: str, status: int, api: Running) -> None:
    for path in ("/health", "/metrics", "/v1/models"):
        response = api.client.get(path, headers=KEY | {"Host": host})
        assert response.status_code == status
        assert status == 200 or response.json()["error"]["code"] == "unknown_host"


@pytest.mark.slow
def test_prompt_that_is_too_long_is_refused_with_the_limit_before_a_stream_begins() -> None:
    text = "This model's maximum context length is 4321 tokens. However, your prompt contains 5000 input tokens."
    models = ScriptedServer(context=4321, refusal=text)
    with served(models) as url, serving(small=url, large=url, retry_for=0) as server:
        models.faults.extend([(400, {})] * 2)
        status, error = server.refused(chat(stream=True))
        assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", "messages")
        assert "4321" in error["message"] and url not in error["message"]


@pytest.mark.slow
def test_error_of_an_endpoint_gets_a_status_and_a_sentence_without_the_text_of_the_endpoint(
    warnings: list[str],
) -> None:
    models = ScriptedServer()
    with served(models) as url, serving(small=url, large=url, retry_for=0) as server:
        for fault, status, code, retry_after in (
            ((429, {"Retry-After": "6.5"}), 503, "endpoint_busy", "7"),
            ((502, {}), 503, "endpoint_busy", "1"),
            ((401, {}), 503, "engine_down", "10"),
            ((418, {}), 500, "sample_failed", None),
        ):
            models.faults.extend([fault, fault])  # one for each model
            warnings.clear()
            response = server.post(chat())
            assert (response.status_code, response.json()["error"]["code"]) == (status, code)
            assert response.headers.get("Retry-After") == retry_after
            assert ("x-should-retry" in response.headers) == (status == 500)
            assert "127.0.0.1" not in response.text and "a fault" not in response.text
            assert any(url in warning and "a fault" in warning for warning in warnings)
            models.faults.clear()
            wait_until(lambda: server.client.get("/health").status_code == 200)
        assert server.ask()["choices"][0]["message"]["content"] == "Yes"


@pytest.mark.slow
def test_health_is_503_while_a_call_waits_for_a_server_that_is_away() -> None:
    small, large = ScriptedServer(), ScriptedServer()
    with (
        served(small) as small_url,
        served(large) as url,
        serving(small=small_url, large=url, retry_for=60) as server,
        ThreadPoolExecutor(1) as pool,
    ):
        large.faults.extend(["drop"] * 4)
        asking = pool.submit(server.ask)
        wait_until(lambda: server.client.get("/health").json()["down"] == ["large"])
        assert 'mai_engine_up{side="large"} 0.0' in server.client.get("/metrics").text
        assert asking.result(60)["choices"][0]["message"]["content"] == "Yes"
        assert server.client.get("/health").json() == {"status": "ok", "down": [], "requests": 0}


@pytest.mark.slow
def test_call_that_crashes_its_engine_gets_status_422_and_other_requests_are_answered(tmp_path: Path) -> None:
    own = {"task": "chat", "prompt": "simple", "text": "[[a]]"}
    small = [{**own, "doc_id": 0, "fault": "death"}, {**own, "doc_id": 1}]
    large = [{**own, "doc_id": number} for number in range(2)]
    with serving(**written(tmp_path, {"small": small, "large": large})) as server:
        response = server.post(chat())
        assert response.status_code == 422 and response.headers["x-should-retry"] == "false"
        assert server.ask()["mai"]["exit"] == "agree_short"  # the engine was restarted


MAI = {"method": "mai", "options": ["a", "b"], "trace": True}
FULL = chat(mai=MAI, max_tokens=10, seed=1, stop=["x"], stream=True)
TEXT = st.text(max_size=30) | st.sampled_from(["<|im_end|>", "[[A]]", "{stage1_response}", "\x00", "\u2028", "%s{}"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=8,
)


def with_damaged_image(data: bytes, place: int, kind: str) -> dict[str, Any]:
    """Return a request whose image has other bytes at one place."""
    prefix, image = image_url(format=kind).split(",")
    raw = base64.b64decode(image)
    raw = raw[:place] + data + raw[place + len(data) :]
    return messages(user("Hm?", f"{prefix},{base64.b64encode(raw).decode()}"))


BODIES = st.one_of(
    st.builds(lambda name, value: FULL | {name: value}, st.sampled_from([*FULL]), JSON),
    st.builds(lambda name, value: FULL | {"mai": MAI | {name: value}}, st.sampled_from([*MAI]), JSON),
    st.builds(lambda value: messages(FULL["messages"][0] | {"content": value}), JSON),
    st.binary(max_size=200) | JSON,
    st.builds(
        with_damaged_image, st.binary(max_size=100), st.integers(0, 200), st.sampled_from(["PNG", "JPEG", "GIF"])
    ),
)


@pytest.mark.slow
def test_any_drawn_body_is_answered_or_refused_and_the_server_answers_as_before(api: Running) -> None:
    @settings(max_examples=5 * EXAMPLES, deadline=None)
    @given(body=BODIES)
    def check(body: Any) -> None:
        response = api.post(body, headers=KEY)
        assert response.status_code == 200 or 400 <= response.status_code < 500, response.text

    check()
    number = api.service.asked
    assert api.post(chat(), headers=KEY).json()["choices"][0]["message"]["content"] == f"answer {number}"
