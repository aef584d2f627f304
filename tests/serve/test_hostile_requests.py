"""Hostile requests: drawn bodies, fields and images. None of them gets the status 500, and the server answers as before
after them."""

import base64
import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.serving import Running, chat, chat_records, image_url, serving, user, wait_until, written

pytestmark = pytest.mark.slow

EXAMPLES = 300
SPECIAL = [
    "<|im_end|>",
    "<|image_pad|>",
    "<|vision_start|>",
    "[[A]]",
    "{stage1_response}",
    "%s{}",
    "\x00",
    "\u2028",
    "\ufffe",
]
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


def check(api: Running, body: bytes) -> None:
    """Send a body. Its reply is an answer, or an error of the client with a sentence."""
    response = api.post(body)
    if response.status_code != 200:
        error = response.json()["error"]
        assert 400 <= response.status_code < 500, error
        assert set(error) == {"message", "type", "param", "code"} and error["message"].endswith((".", "?"))


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(path=st.sampled_from(PLACES), value=JSON)
def test_any_value_in_any_place_is_answered_or_refused(api: Running, path: tuple[Any, ...], value: Any) -> None:
    check(api, json.dumps(changed(path, value)).encode())


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(body=st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_body_is_refused(api: Running, body: bytes) -> None:
    check(api, body)


@settings(max_examples=EXAMPLES // 3, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=TEXT, place=st.integers(0, 600), length=st.integers(0, 20))
def test_damaged_requests_are_answered_or_refused(api: Running, text: str, place: int, length: int) -> None:
    body = json.dumps(FULL)
    check(api, (body[:place] + text + body[place + length :]).encode("utf-8", "surrogatepass"))


@settings(max_examples=EXAMPLES // 3, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    data=st.binary(max_size=100), place=st.integers(0, 200), kind=st.sampled_from(["PNG", "JPEG", "WEBP", "GIF", "BMP"])
)
def test_damaged_images_are_answered_or_refused(api: Running, data: bytes, place: int, kind: str) -> None:
    prefix, image = image_url(format=kind).split(",")
    raw = base64.b64decode(image)
    raw = raw[:place] + data + raw[place + len(data) :]
    body = chat() | {"messages": [user("Hm?", f"{prefix},{base64.b64encode(raw).decode()}")]}
    check(api, json.dumps(body).encode())


def test_server_answers_as_before_after_hostile_requests(api: Running) -> None:
    wait_until(lambda: api.service.admission.count == 0)
    number = api.service.asked
    assert api.ask()["choices"][0]["message"]["content"] == f"answer {number}"
