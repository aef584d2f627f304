"""The prompts of our tasks: questions and images of the built-in tasks, instructions of the paper."""

from collections import Counter

import pytest
from PIL import Image
from support.tasks import (
    IN_THE_DATA,
    INSTRUCTIONS,
    NAMES,
    VARIANTS,
    Doc,
    Loaded,
    documents,
    image_bytes,
    instruction_of,
    kind_of,
    split_name,
    texts,
    types,
)

OFFICIAL = {
    "pope": "Answer the question using a single word or phrase.",
    "chartqa": "Answer the question with a single word.",
    "infovqa_val": "Answer the question using a single word or phrase.",
    "mmbench_en_dev": "Answer with the option's letter from the given choices directly.",
    "mmmu_val letter": "Answer with the option's letter from the given choices directly.",
    "mmmu_val word": "Answer the question using a single word or phrase.",
}
"""The instruction at the end of lmms-eval's own prompt. RealWorldQA's is part of its dataset."""


def question_of(benchmark: str, doc: Doc, words: str) -> str:
    """Return the built-in task's text without the instruction at its end."""
    official = OFFICIAL.get(benchmark) or OFFICIAL[f"{benchmark} {kind_of(benchmark, doc)}"]
    assert words.endswith(official)
    return words.removesuffix(official)


@pytest.mark.parametrize("kind", ["letter", "word"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_realworldqa_has_our_instruction_instead_of_the_datasets_own(tasks: Loaded, variant: str, kind: str) -> None:
    name = f"realworldqa_{variant}"
    docs = [doc for doc in documents(tasks, name) if kind_of("realworldqa", doc) == kind]
    assert len(docs) == 6
    for doc in docs:
        ours = "".join(texts(tasks.chat[name].doc_to_messages(doc)))
        assert IN_THE_DATA[kind] in doc["question"]
        question = doc["question"].replace(IN_THE_DATA[kind], "").split()
        assert ours.split() == [*question, *INSTRUCTIONS[variant[0], kind].split()]


@pytest.mark.parametrize("name", NAMES)
def test_messages_equal_those_of_the_built_in_task_except_for_the_instruction_in_the_last_block(
    tasks: Loaded, name: str
) -> None:
    benchmark, variant = split_name(name)
    kinds, orders = Counter(), set()
    for doc in documents(tasks, name):
        theirs = tasks.built_in[benchmark].doc_to_messages(doc)
        ours = tasks.chat[name].doc_to_messages(doc)
        *question, last = texts(ours)
        kind = kind_of(benchmark, doc)
        assert last == INSTRUCTIONS[variant[0], kind]
        if benchmark != "realworldqa":
            assert "".join(question) == question_of(benchmark, doc, "".join(texts(theirs)))
        assert "[[answer]]" not in "".join(question) and question[-1].endswith("\n")
        assert types(ours) == [*types(theirs), "text"] and image_bytes(ours) == image_bytes(theirs)
        kinds[kind] += 1
        orders.add(tuple(types(ours)))
    both = {"mmmu_val": {"letter": 8, "word": 4}, "realworldqa": {"letter": 6, "word": 6}}
    assert kinds == both.get(benchmark, {"letter" if benchmark == "mmbench_en_dev" else "word": 12})
    interleaved = {("text", "image", "text", "text"), ("image", "text", "text")}
    assert orders == (interleaved if benchmark == "mmmu_val" else {("image", "text", "text")})


@pytest.mark.parametrize("name", NAMES)
def test_text_for_simple_models_equals_the_text_of_the_message_and_does_not_need_the_image(
    tasks: Loaded, name: str
) -> None:
    for doc in documents(tasks, name):
        text, blocks = tasks.chat[name].doc_to_text(doc), texts(tasks.chat[name].doc_to_messages(doc))
        if name.startswith("mmmu_val"):  # its text has a placeholder where the message has an image
            assert "<image 1>" in text and text.replace("<image 1>", "").split() == " ".join(blocks).split()
        else:
            assert text == "".join(blocks)
        bare = {key: value for key, value in doc.items() if not isinstance(value, Image.Image)}
        assert len(bare) < len(doc) and tasks.chat[name].doc_to_text(bare) == text


def test_building_mmmu_messages_does_not_change_later_texts(tasks: Loaded) -> None:
    """mmmu_doc_to_messages sets a flag of its module. After that, mmmu_doc_to_text writes <image> for <image 1>."""
    from lmms_eval.tasks.mmmu import utils

    task, docs = tasks.chat["mmmu_val_r"], documents(tasks, "mmmu_val_r")
    interleaved = utils.config["metadata"]["interleaved_format"]
    try:
        utils.config["metadata"]["interleaved_format"] = False
        before = [task.doc_to_text(doc) for doc in docs]
        messages = [texts(task.doc_to_messages(doc)) for doc in docs]
        assert utils.config["metadata"]["interleaved_format"] is True
        assert [task.doc_to_text(doc) for doc in docs] == before
        assert [texts(task.doc_to_messages(doc)) for doc in docs] == messages
    finally:
        utils.config["metadata"]["interleaved_format"] = interleaved


def mmmu(question: str, options: list[str] | None = None) -> Doc:
    """Return an MMMU document with three images of different sizes."""
    images = {f"image_{i}": Image.new("RGB", (10 * i, 10)) for i in (1, 2, 3)}
    kind = "open" if options is None else "multiple-choice"
    return {
        "id": "validation_Art_1",
        "question": question,
        "options": str(options or []),
        "question_type": kind,
        **images,
    }


@pytest.mark.parametrize(
    ("doc", "order", "sizes"),
    [
        (mmmu("<image 1> and <image 2>: which is it?", ["x", "y"]), "image text image text text", [10, 20]),
        (
            mmmu("Which? <image 2>", ["<image 1>", "<image 3>"]),
            "text image text image text image text text",
            [10, 20, 30],
        ),
        (mmmu("How many in <image 3>?"), "text image text text", [30]),
        (mmmu("How many?"), "text text", []),
    ],
)
def test_mmmu_puts_images_between_the_parts_of_question_and_options(
    tasks: Loaded, doc: Doc, order: str, sizes: list[int]
) -> None:
    ours = tasks.chat["mmmu_val_e"].doc_to_messages(doc)
    theirs = tasks.built_in["mmmu_val"].doc_to_messages(doc)
    assert types(ours) == order.split() == [*types(theirs), "text"]
    assert [block["url"].width for block in ours[0]["content"] if block["type"] == "image"] == sizes
    words = "".join(texts(theirs))
    assert "".join(texts(ours)) == question_of("mmmu_val", doc, words) + instruction_of("mmmu_val_e", doc)


@pytest.mark.parametrize("question", ["Is {this} it?", "[[answer]]", f"Say: {INSTRUCTIONS['s', 'word']}", "a\n\nb  "])
@pytest.mark.parametrize("name", ["pope_r", "chartqa_r", "infovqa_val_r", "realworldqa_r", "mmmu_val_r"])
def test_a_question_that_looks_like_an_instruction_is_unchanged(tasks: Loaded, name: str, question: str) -> None:
    doc = {**mmmu(question), "image": Image.new("RGB", (8, 8))}
    *blocks, last = texts(tasks.chat[name].doc_to_messages(doc))
    assert "".join(blocks).strip() == question.strip()
    assert last == INSTRUCTIONS["r", "word"]
