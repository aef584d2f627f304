"""Hostile requests: drawn bodies, fields and images, and requests that schemathesis draws from the OpenAPI description
that the server sends. None of them gets the status 500, and the server answers as before after them."""

import base64
import copy
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode, checks
from schemathesis.specs.openapi import checks as openapi_checks
from support.serving import Running, chat, chat_records, image_url, serving, user, wait_until, written

pytestmark = pytest.mark.slow

EXAMPLES = 300
CHECKS = [
    checks.not_a_server_error,
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_schema_conformance,
    openapi_checks.negative_data_rejection,
]
"""A body that fits the description may be refused: a description cannot express that the last turn is the user's."""
SPECIAL = ["<|im_end|>", "<|image_pad|>", "<|vision_start|>", "[[A]]", "{stage1_response}", "%s{}"]
SPECIAL += ["\x00", "\u2028", "\ufffe"]
TEXT = st.text(max_size=30) | st.sampled_from(SPECIAL)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=8,
)
FULL = chat(
    mai={"mode": "cascade", "think": "R", "options": ["a", "b"], "kind": "letter", "benchmark": "pope", "trace": True},
    max_tokens=10, temperature=0.5, top_p=0.5, top_k=3, seed=1, stop=["x"], stream=True, n=1,
    stream_options={"include_usage": True}, tools=[], user="u", metadata={"a": "b"},
)  # fmt: skip
FULL["messages"] = [
    {"role": "system", "content": "Be short."},
    user("What is it?", image_url()),
    {"role": "assistant", "content": "A dog."},
    user("Which?\nA. a\nB. b", image_url()),
]


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value in a JSON object."""
    if path:
        yield path
    inside = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for name, value in inside:
        yield from places(value, (*path, name))


PLACES = sorted(places(FULL), key=str)


def changed(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """Return the full request with another value at one place."""
    body = copy.deepcopy(FULL)
    node: Any = body
    for part in path[:-1]:
        node = node[part]
    node[path[-1]] = value
    return body


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    small, large = chat_records(10 * EXAMPLES)
    with serving({"max_body_bytes": 200_000}, **written(tmp_path_factory.mktemp("scripts"), small, large)) as running:
        yield running


def damaged(place: int, length: int, text: str) -> bytes:
    """Return the full request with another text in it."""
    body = json.dumps(FULL)
    return (body[:place] + text + body[place + length :]).encode("utf-8", "surrogatepass")


def with_damaged_image(data: bytes, place: int, kind: str) -> dict[str, Any]:
    """Return a request whose image has other bytes at one place."""
    prefix, image = image_url(format=kind).split(",")
    raw = base64.b64decode(image)
    raw = raw[:place] + data + raw[place + len(data) :]
    return chat() | {"messages": [user("Hm?", f"{prefix},{base64.b64encode(raw).decode()}")]}


KINDS = st.sampled_from(["PNG", "JPEG", "WEBP", "GIF", "BMP"])
BODIES = {
    "any value in any place": st.builds(changed, st.sampled_from(PLACES), JSON),
    "any bytes": st.binary(max_size=200),
    "any JSON": JSON,
    "another text in any place": st.builds(damaged, st.integers(0, 600), st.integers(0, 20), TEXT),
    "damaged images": st.builds(with_damaged_image, st.binary(max_size=100), st.integers(0, 200), KINDS),
}


@pytest.mark.parametrize("name", BODIES)
def test_any_body_is_answered_or_refused(api: Running, name: str) -> None:
    @settings(max_examples=EXAMPLES // 2, deadline=None)
    @given(body=BODIES[name])
    def check(body: Any) -> None:
        response = api.post(body)
        if response.status_code != 200:
            error = response.json()["error"]
            assert 400 <= response.status_code < 500, error
            assert set(error) == {"message", "type", "param", "code"} and error["message"].endswith((".", "?"))

    check()


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_chats_drawn_from_the_description_are_answered_or_refused(api: Running, mode: GenerationMode) -> None:
    description = schemathesis.openapi.from_dict(api.client.get("/openapi.json").json())
    statuses: Counter[int] = Counter()

    # The same requests in every run: a new one must not fail an unrelated change. `st run` draws others.
    @settings(max_examples=EXAMPLES // 8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(
        case=description["/v1/chat/completions"]["POST"].as_strategy(generation_mode=mode),
        has_question=st.booleans(),
        is_streamed=st.booleans(),
    )
    def check_case(case: Any, has_question: bool, is_streamed: bool) -> None:
        if mode == GenerationMode.POSITIVE and has_question:  # few drawn chats end with a question
            case.body["messages"] = chat()["messages"]
            case.body["stream"] = is_streamed
        response = case.call(base_url=api.url)
        statuses[response.status_code] += 1
        case.validate_response(response, checks=CHECKS)

    check_case()
    assert (statuses[200] > 0) == (mode == GenerationMode.POSITIVE) and statuses[400] > 0


def test_server_answers_as_before_after_hostile_requests(api: Running) -> None:
    wait_until(lambda: api.service.admission.count == 0)
    number = api.service.asked
    assert api.ask()["choices"][0]["message"]["content"] == f"answer {number}"
