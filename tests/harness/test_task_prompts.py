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


def question_of(tasks: Loaded, benchmark: str, doc: Doc, words: str) -> str:
    """Return the built-in task's text without the instruction at its end."""
    if benchmark == "realworldqa":
        return words
    official = OFFICIAL.get(benchmark) or OFFICIAL[f"{benchmark} {kind_of(benchmark, doc)}"]
    assert words.endswith(official)
    return words.removesuffix(official)


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("realworldqa")])
def test_text_equals_the_built_in_tasks_text_except_for_the_instruction(tasks: Loaded, name: str) -> None:
    benchmark, _ = split_name(name)
    for doc in documents(tasks, name):
        theirs = "".join(texts(tasks.built_in[benchmark].doc_to_messages(doc)))
        ours = "".join(texts(tasks.chat[name].doc_to_messages(doc)))
        assert ours == question_of(tasks, benchmark, doc, theirs) + instruction_of(name, doc)


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
def test_last_block_is_exactly_the_instruction_of_the_documents_kind(tasks: Loaded, name: str) -> None:
    benchmark, variant = split_name(name)
    kinds = Counter()
    for doc in documents(tasks, name):
        *question, last = texts(tasks.chat[name].doc_to_messages(doc))
        kinds[kind_of(benchmark, doc)] += 1
        assert last == INSTRUCTIONS[variant[0], kind_of(benchmark, doc)]
        assert "[[answer]]" not in "".join(question)
        assert question[-1].endswith("\n")
    both = {"mmmu_val": {"letter": 8, "word": 4}, "realworldqa": {"letter": 6, "word": 6}}
    assert kinds == both.get(benchmark, {"letter" if benchmark == "mmbench_en_dev" else "word": 12})


@pytest.mark.parametrize("name", NAMES)
def test_images_have_the_same_positions_as_in_the_built_in_task(tasks: Loaded, name: str) -> None:
    benchmark, _ = split_name(name)
    orders = set()
    for doc in documents(tasks, name):
        theirs = tasks.built_in[benchmark].doc_to_messages(doc)
        ours = tasks.chat[name].doc_to_messages(doc)
        assert types(ours) == [*types(theirs), "text"]
        assert image_bytes(ours) == image_bytes(theirs)
        orders.add(tuple(types(ours)))
    interleaved = {("text", "image", "text", "text"), ("image", "text", "text")}
    assert orders == (interleaved if benchmark == "mmmu_val" else {("image", "text", "text")})


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("mmmu_val")])
def test_text_for_simple_models_equals_the_text_of_the_message(tasks: Loaded, name: str) -> None:
    for doc in documents(tasks, name):
        assert tasks.chat[name].doc_to_text(doc) == "".join(texts(tasks.chat[name].doc_to_messages(doc)))


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("mmmu_val")])
def test_mmmu_text_has_a_placeholder_where_the_message_has_an_image(tasks: Loaded, name: str) -> None:
    for doc in documents(tasks, name):
        text = tasks.chat[name].doc_to_text(doc)
        assert "<image 1>" in text
        assert text.replace("<image 1>", "").split() == " ".join(texts(tasks.chat[name].doc_to_messages(doc))).split()


@pytest.mark.parametrize("name", NAMES)
def test_text_is_the_same_without_the_image_column(tasks: Loaded, name: str) -> None:
    for doc in documents(tasks, name):
        bare = {key: value for key, value in doc.items() if not isinstance(value, Image.Image)}
        assert len(bare) < len(doc)
        assert tasks.chat[name].doc_to_text(bare) == tasks.chat[name].doc_to_text(doc)


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
    assert "".join(texts(ours)) == question_of(tasks, "mmmu_val", doc, words) + instruction_of("mmmu_val_e", doc)


@pytest.mark.parametrize("question", ["Is {this} it?", "[[answer]]", f"Say: {INSTRUCTIONS['s', 'word']}", "a\n\nb  "])
@pytest.mark.parametrize("name", ["pope_r", "chartqa_r", "infovqa_val_r", "realworldqa_r", "mmmu_val_r"])
def test_a_question_that_looks_like_an_instruction_is_unchanged(tasks: Loaded, name: str, question: str) -> None:
    doc = {**mmmu(question), "image": Image.new("RGB", (8, 8))}
    *blocks, last = texts(tasks.chat[name].doc_to_messages(doc))
    assert "".join(blocks).strip() == question.strip()
    assert last == INSTRUCTIONS["r", "word"]
