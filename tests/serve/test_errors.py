"""Requests that the server refuses: each gets a status and a sentence, and no status 500."""

import base64
import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted_server import ScriptedServer
from support.endpoints import served
from support.serving import Running, chat, image_url, scripted, serving, user, wait_until, written

from lmms_eval_mai.paper.sample import Trace
from lmms_eval_mai.serve.errors import RequestError
from lmms_eval_mai.serve.metrics import Observer
from lmms_eval_mai.serve.question import Question
from lmms_eval_mai.serve.schema import read_request
from lmms_eval_mai.serve.service import Service

KEY = {"Authorization": "Bearer the key"}
JSON = {"Content-Type": "application/json"}
LIMITS = {"api_key": "the key", "max_body_bytes": 100_000, "max_pixels": 1000, "max_images": 3, "max_characters": 2000}
STORY = {"model": "pair", "messages": [{"role": "user", "content": "Tell a story."}]}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(LIMITS, **scripted(tmp_path_factory.mktemp("scripts"), 20)) as running:
        yield running


def messages(*given: dict[str, Any]) -> dict[str, Any]:
    return {"model": "pair", "messages": list(given)}


def huge_image_url() -> str:
    """Return a file of 150 bytes whose header announces 10 thousand million pixels."""
    kind, data = image_url((4, 4), "BMP").split(",")
    image = bytearray(base64.b64decode(data))
    image[18:26] = struct.pack("<ii", 100_000, 100_000)
    return f"{kind},{base64.b64encode(image).decode()}"


WRONG: dict[str, tuple[Any, str, str | None, str]] = {
    "no JSON": (b"{", "invalid_json", None, "not JSON"),
    "no text": (b"\xff\xfe", "invalid_json", None, "not JSON"),
    "deep": (b"[" * 50_000, "invalid_json", None, "not JSON"),
    "a list": ([1], "invalid_value", None, "The body is invalid"),
    "no model": ({"messages": STORY["messages"]}, "missing_field", "model", "model is missing"),
    "unknown field": (chat(temprature=1), "unsupported_field", "temprature", "Did you mean temperature?"),
    "not a number": (chat(temperature="hot"), "invalid_value", "temperature", "valid number"),
    "infinite": (json.dumps(chat(temperature=1)).replace("1}", "1e999}").encode(), "invalid_value", "temperature", ""),
    "several answers": (chat(n=2), "invalid_value", "n", "should be 1"),
    "tools": (chat(tools=[{}]), "invalid_value", "tools", "at most 0"),
    "other mode": (chat(mai={"mode": "fast"}), "invalid_value", "mai.mode", "'cascade'"),
    "unknown benchmark": (chat(mai={"benchmark": "pop"}), "invalid_value", "mai.benchmark", "'pope'"),
    "letter without options": (chat(mai={"kind": "letter"}), "invalid_value", "mai.kind", "mai.options"),
    "word with options": (chat(mai={"kind": "word", "options": ["a", "b"]}), "invalid_value", "mai.kind", "letter"),
    "five options of mmbench": (chat(mai={"benchmark": "mmbench_en_dev", "options": list("abcde")}), "invalid_value",
                                "mai.benchmark", "2 to 4 options"),
    "no messages": (messages(), "invalid_value", "messages", "at least 1 item"),
    "unknown role": (messages({"role": "robot", "content": "Hm?"}), "invalid_value", "messages[0].role", "'user'"),
    "image of the assistant": (messages(user("Hm?", image_url()) | {"role": "assistant"}, user("Hm?")), "invalid_value",
                               "messages", "role user"),
    "answer last": (messages({"role": "assistant", "content": "Hm."}), "invalid_value", "messages", "role user"),
    "late system": (messages(user("Hi."), {"role": "system", "content": "Hm."}, user("Hm?")), "invalid_value",
                    "messages", "role system"),
    "no text in the last turn": (messages({"role": "user", "content": []}), "empty_question", "messages", "no text"),
    "wrong content": (messages({"role": "user", "content": [{"type": "text", "text": 1}]}), "invalid_value",
                      "messages[0].content[0].text", "valid string"),
    "video": (messages({"role": "user", "content": [{"type": "video_url"}]}), "invalid_value",
              "messages[0].content[0]", "'video_url'"),
    "image of the web": (messages(user("Hm?", "http://127.0.0.1/x.png")), "invalid_image_url", "messages", "data URL"),
    "image of the disk": (messages(user("Hm?", "file:///etc/passwd")), "invalid_image_url", "messages", "data URL"),
    "no base64": (messages(user("Hm?", "data:image/png;base64,%%")), "invalid_image", "messages", "base64"),
    "no image": (messages(user("Hm?", "data:image/png;base64,QUJD")), "invalid_image", "messages", "cannot be read"),
    "other format": (messages(user("Hm?", image_url(format="TIFF"))), "invalid_image", "messages", "PNG, JPEG"),
    "large image": (messages(user("Hm?", image_url((50, 30)))), "invalid_image", "messages", "1,500 pixels"),
    "image of letters that are not ASCII": (messages(user("Hm?", "data:image/png;base64,\u00e9")), "invalid_image",
                                            "messages", "base64"),
    "large images": (messages(user("Hm?", *[image_url((20, 20))] * 3)), "invalid_image", "messages", "1,200 pixels"),
    "bomb": (messages(user("Hm?", huge_image_url())), "invalid_image", "messages", "too many pixels"),
    "unknown model": (STORY | {"model": "gpt-5"}, "model_not_found", "model", "model='pair'"),
    "lone surrogate": (b'{"model": "pair", "\\ud800": 1}', "invalid_json", None, "not JSON"),
    "large body": (b" " * 100_001, "request_too_large", None, "--max-body-mib"),
    "many images": (messages(user("Hm?", *[image_url()] * 4)), "request_too_large", "messages", "4 images"),
    "many characters": (messages(user("Hm? " * 501)), "request_too_large", "messages", "2,004 characters"),
    "long options": (chat(mai={"options": ["a" * 1000, "b" * 1000]}), "request_too_large", "messages", "characters"),
}  # fmt: skip
"""Name -> body, code, param, and a part of the message."""
STATUSES = {"model_not_found": 404, "request_too_large": 413}
"""Code -> status, if it is not 400."""


@pytest.mark.parametrize("name", WRONG)
def test_wrong_request_gets_a_status_and_a_sentence_that_names_the_field(name: str, api: Running) -> None:
    body, code, param, text = WRONG[name]
    status, error = api.refused(body, headers=KEY)
    assert (status, error["code"], error["param"]) == (STATUSES.get(code, 400), code, param)
    assert text in error["message"] and error["type"] == "invalid_request_error"


def test_too_large_body_without_an_announced_size_gets_status_413(api: Running) -> None:
    chunks = (b" " * 10_000 for _ in range(11))
    response = api.client.post("/v1/chat/completions", content=chunks, headers=KEY | JSON)
    assert response.status_code == 413 and response.json()["error"]["code"] == "request_too_large"
    assert api.post(STORY, headers=KEY).status_code == 200


HOSTILE_JSON = (":" * 200_001, [[]] * 101_000, [1] * 200_001, {str(number): {} for number in range(67_000)})
"""Values that take up to 60 times their size in memory, and a text with as many signs."""


def test_body_with_very_many_wrong_fields_is_refused_before_each_of_them_is_described() -> None:
    turn = {"role": "user", "content": [1] * 256}
    for body, status, text in (
        (STORY | {str(number): 1 for number in range(200)}, 400, "The body has 200 invalid fields"),
        *((STORY | {"metadata": value}, 413, "more than 200,000 commas") for value in HOSTILE_JSON),
        (messages(turn), 400, "The body has 257 invalid fields"),  # one more is that the content is not a string
        (messages({"role": "user", "content": [1] * 257}), 400, "The field messages[0].content is invalid: List"),
        (STORY | {"stop": ["x"] * 17}, 400, "The field stop is invalid: List should have at most 16 items"),
        (STORY | {"seed": 2**63 - 1}, 400, "The field seed is invalid"),
    ):
        with pytest.raises(RequestError) as raised:
            read_request(json.dumps(body).encode())
        assert raised.value.status == status and text in raised.value.message


def test_requests_without_the_key_get_status_401_before_their_body_is_read(api: Running) -> None:
    for headers in ({}, {"Authorization": "Bearer the kez"}, {"Authorization": "the key"}, {"Authorization": b"\xff"}):
        status, error = api.refused(b"{", headers=headers)
        assert status == 401 and error["code"] == "invalid_api_key"
        assert api.client.get("/v1/models", headers=headers).status_code == 401
    assert api.client.get("/v1/models", headers=KEY).status_code == 200
    assert api.client.get("/health").json() == {"status": "ok", "down": [], "requests": 0}


def test_paths_and_methods_that_do_not_exist_get_errors_of_the_same_shape(api: Running) -> None:
    for method, path, status in (
        ("GET", "/v1/completions", 404),
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/health", 405),
        ("GET", "/v1/models/other", 404),
    ):
        response = api.client.request(method, path, headers=KEY)
        assert response.status_code == status and response.json()["error"]["message"].endswith(".")


def test_text_that_cannot_be_encoded_is_answered(api: Running) -> None:
    body = b'{"model": "pair", "messages": [{"role": "user", "content": "\\u0000 <|im_end|> \xc2\x85 ?"}]}'
    assert api.post(body, headers=KEY).status_code == 200


@pytest.mark.slow
def test_errors_of_a_call_get_a_status_and_a_sentence(tmp_path: Path) -> None:
    own = {"task": "chat", "stage": "short", "text": "[[a]]"}
    small = [{**own, "doc_id": 0, "fault": "error"}, {**own, "doc_id": 1, "fault": "death"}, {**own, "doc_id": 2}]
    large = [{**own, "doc_id": number} for number in range(3)]
    with serving(**written(tmp_path, small, large)) as server:
        status, error = server.refused(chat())
        assert status == 500 and error["code"] == "sample_failed"
        response = server.post(chat())  # this request crashes the engine at every attempt
        assert response.status_code == 422 and response.headers["x-should-retry"] == "false"
        assert response.json()["error"]["code"] == "engine_crashed_by_request"
        assert server.ask()["mai"]["exit"] == "agree_short"  # the engine was restarted


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


def test_only_json_is_read_and_only_for_the_names_of_this_server(tmp_path: Path) -> None:
    with serving({"allowed_hosts": ("127.0.0.1",)}, **scripted(tmp_path)) as server:
        assert server.post(STORY, headers={"Content-Type": "application/json; charset=utf-8"}).status_code == 200
        for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
            assert server.refused(STORY, headers={"Content-Type": kind})[0] == 415
        assert server.post(STORY, headers={"Host": "rebound.example"}).status_code == 400


def test_openapi_description_has_no_reference_to_a_missing_part(api: Running) -> None:
    found = api.client.get("/openapi.json").json()
    references = set(re.findall(r'"\$ref": "#/components/schemas/(\w+)"', json.dumps(found)))
    assert {"Message", "MaiOptions"} <= references <= set(found["components"]["schemas"])
    body = found["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["properties"]["model"] == {"enum": ["pair"]} and body["additionalProperties"] is False


class BrokenService(Service):
    """A service with an error of its own in every question."""

    async def answer(self, question: Question, observe: Observer = lambda event: None) -> Trace:
        raise RuntimeError(f"Cannot answer {question.turns[-1].text()}")


@pytest.mark.slow
def test_unexpected_error_gets_status_500_and_its_place_is_logged_without_the_prompt(
    tmp_path: Path, warnings: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with serving(service_class=BrokenService, **scripted(tmp_path)) as server:
        for stream in (False, True):
            status, error = server.refused(chat("My secret question?", stream=stream), headers={"Connection": "close"})
            assert status == 500 and error["code"] == "internal_error"
            assert "secret" not in error["message"]
        assert server.client.get("/health").json()["requests"] == 0
    assert len(warnings) == 2 and all("unexpected RuntimeError" in one and "in answer" in one for one in warnings)
    assert "secret" not in "".join([*warnings, caplog.text])  # the second one has what uvicorn logs
