"""Requests that schemathesis draws from the OpenAPI description that the server sends: none is a server error."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode, checks
from schemathesis.specs.openapi import checks as openapi_checks
from support.serving import Running, chat, chat_records, serving, written

pytestmark = pytest.mark.slow

EXAMPLES = 40
CHECKS = [
    checks.not_a_server_error,
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_schema_conformance,
    openapi_checks.negative_data_rejection,
]
"""A body that fits the description may be refused: a description cannot express that the last turn is the user's."""


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    small, large = chat_records(10 * EXAMPLES)
    with serving(**written(tmp_path_factory.mktemp("scripts"), small, large)) as running:
        yield running


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_chats_drawn_from_the_description_are_answered_or_refused(api: Running, mode: GenerationMode) -> None:
    description = schemathesis.openapi.from_dict(api.client.get("/openapi.json").json())
    statuses: Counter[int] = Counter()

    # The same requests in every run: a new one must not fail an unrelated change. `st run` draws others.
    @settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(
        case=description["/v1/chat/completions"]["POST"].as_strategy(generation_mode=mode),
        has_question=st.booleans(),
        is_streamed=st.booleans(),
    )
    def check(case: Any, has_question: bool, is_streamed: bool) -> None:
        if mode == GenerationMode.POSITIVE and has_question:  # few drawn chats end with a question
            case.body["messages"] = chat()["messages"]
            case.body["stream"] = is_streamed
        response = case.call(base_url=api.url)
        statuses[response.status_code] += 1
        case.validate_response(response, checks=CHECKS)

    check()
    assert (statuses[200] > 0) == (mode == GenerationMode.POSITIVE) and statuses[400] > 0
