"""The two rounds of our two-stage tasks, driven as lmms-eval's chat models and simple models drive them."""

from typing import Any

import pytest
from PIL import Image
from support.tasks import (
    TWO_STAGE,
    Loaded,
    documents,
    image_bytes,
    instruction_of,
    kind_of,
    split_name,
    texts,
    types,
)

THINKING = "I see {two} discs, {stage1_response}:\n\nthe [[first]] is \\frac{1}{2} \n"
STAGE_2 = {
    "word": f"According to previous thinking: {THINKING}\n Answer the question using a single word or phrase.",
    "letter": (
        f"According to previous thinking: {THINKING}\n Answer with the option's letter from the given choices directly."
    ),
}


def chat_rounds(task: Any, doc_id: int, answers: list[str]) -> list[list[dict[str, Any]]]:
    """Return the messages of each round, built as in generate_until_multi_round of lmms_eval/models/chat/vllm.py."""
    _, doc_to_messages, _, request_doc, name, split = task.instances[doc_id].arguments
    assert (request_doc, name, split) == (doc_id, task.config.task, task.config.test_split)
    doc = task.test_docs()[doc_id]
    rounds, responses, info = [doc_to_messages(doc)], [answers[0]], None
    while True:
        payload = doc_to_messages(doc, round_idx=len(rounds), previous_output=list(responses), previous_round_info=info)
        assert isinstance(payload, tuple)
        messages, terminal, previous, info = payload
        assert previous == responses
        if terminal:
            assert messages is None
            return rounds
        rounds.append(messages)
        responses.append(answers[len(responses)])


def simple_rounds(task: Any, doc_id: int, answers: list[str]) -> list[tuple[list[Image.Image], str]]:
    """Return (images, text) of each round, built as the `simple` models do (models/simple/llava_onevision.py)."""
    text, _, doc_to_visual, doc_to_text, request_doc, _, _ = task.instances[doc_id].arguments
    assert request_doc == doc_id
    doc = task.test_docs()[doc_id]
    rounds, responses, info = [(doc_to_visual(doc), text)], (answers[0],), None
    while True:
        images, text, terminal, responses, info = doc_to_text(
            doc, previous_output=list(responses), round_idx=len(rounds), previous_round_info=info
        )
        if terminal:
            assert tuple(responses) == tuple(answers[: len(rounds)])
            return rounds
        rounds.append((images, text))
        responses = (*responses, answers[len(responses)])


@pytest.mark.parametrize("name", TWO_STAGE)
def test_a_chat_model_gets_two_rounds_and_the_second_contains_the_first_response(tasks: Loaded, name: str) -> None:
    benchmark, _ = split_name(name)
    one_stage = tasks.chat[name.removesuffix("_s2")]
    for doc_id, doc in enumerate(documents(tasks, name)):
        first, second = chat_rounds(tasks.chat[name], doc_id, [THINKING, "[[red]]", "not used"])
        assert texts(first) == texts(one_stage.doc_to_messages(doc))
        assert texts(second) == [*texts(first)[:-1], STAGE_2[kind_of(benchmark, doc)]]
        assert types(second) == types(first)
        assert image_bytes(second) == image_bytes(first)


@pytest.mark.parametrize("name", TWO_STAGE)
def test_a_simple_model_gets_the_same_two_rounds(tasks: Loaded, name: str) -> None:
    benchmark, _ = split_name(name)
    one_stage = tasks.chat[name.removesuffix("_s2")]
    for doc_id, doc in enumerate(documents(tasks, name)):
        first, second = simple_rounds(tasks.simple[name], doc_id, [THINKING, "[[red]]", "not used"])
        assert first[1] == one_stage.doc_to_text(doc)
        assert second[1] == first[1].removesuffix(instruction_of(name, doc)) + STAGE_2[kind_of(benchmark, doc)]
        assert [image.tobytes() for image in second[0]] == [image.tobytes() for image in first[0]]
        assert first[0]


@pytest.mark.parametrize("name", TWO_STAGE)
def test_an_empty_first_response_is_followed_by_a_second_round(tasks: Loaded, name: str) -> None:
    _, second = chat_rounds(tasks.chat[name], 0, ["", "[[red]]"])
    assert texts(second)[-1].startswith("According to previous thinking: \n Answer")
