"""Our 30 tasks: lmms-eval's own data, scorers and metrics under the paper's prompts, in what lmms-eval installs."""

import configparser
import inspect
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from PIL import Image

from lmms_eval_mai import plugin
from lmms_eval_mai.tasks import AnswerFilter, TwoStageAnswerFilter

ROOT = Path(__file__).resolve().parent.parent
Doc = dict[str, Any]

BUILT_IN = {
    "pope": "pope",
    "mmmu_val": "mmmu_val",
    "mmbench_en_dev": "mmbench_en_dev_static",
    "chartqa": "chartqa",
    "infovqa_val": "infovqa_val",
    "realworldqa": "realworldqa",
}
"""Benchmark -> lmms-eval's task of it whose scorer calls no API."""
VARIANTS = ("s", "e", "r", "e_s2", "r_s2")
NAMES = [f"{benchmark}_{variant}" for benchmark in BUILT_IN for variant in VARIANTS]
ONE_STAGE = [name for name in NAMES if not name.endswith("_s2")]
TWO_STAGE = [name for name in NAMES if name.endswith("_s2")]

WORD, LETTER = (
    "answer the question using a single word or phrase",
    "answer with the option's letter from the given choices",
)
INSTRUCTIONS = {
    ("s", "word"): f"Without thinking, directly {WORD} in the format: [[answer]]",
    ("s", "letter"): f"Without thinking, directly {LETTER} in the format: [[answer]].",
    ("e", "word"): f"Provide a simple explanation, then {WORD} in the format: [[answer]]",
    ("e", "letter"): f"Provide a simple explanation, then {LETTER} directly in the format: [[answer]]",
    ("r", "word"): f"Please think step by step, provide a detailed explanation, then {WORD} in the format: [[answer]]",
    ("r", "letter"): (
        f"Please think step by step, provide a detailed explanation, then {LETTER} directly in the format: [[answer]]"
    ),
}
OFFICIAL = {
    "pope": "Answer the question using a single word or phrase.",
    "chartqa": "Answer the question with a single word.",
    "infovqa_val": "Answer the question using a single word or phrase.",
    "mmbench_en_dev": "Answer with the option's letter from the given choices directly.",
    "mmmu_val letter": "Answer with the option's letter from the given choices directly.",
    "mmmu_val word": "Answer the question using a single word or phrase.",
}
"""The instruction that ends lmms-eval's own prompt. RealWorldQA's stands in the data set."""
IN_THE_DATA = {
    "letter": "Please answer directly with only the letter of the correct option and nothing else.",
    "word": "Please answer directly with a single word or number.",
}


class Loaded(NamedTuple):
    """Tasks as lmms-eval makes them, on drawn data."""

    chat: dict[str, Any]
    simple: dict[str, Any]
    built_in: dict[str, Any]


@pytest.fixture(scope="module")
def tasks(task_manager: Any, drawn_data: Path) -> Loaded:
    """All tasks, for chat and for simple models, each with its requests built."""
    from lmms_eval.tasks import get_task_dict

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(drawn_data)
        chat = get_task_dict(NAMES, task_manager, task_type="chat")
        simple = get_task_dict(TWO_STAGE, task_manager, task_type="simple")
        built_in = get_task_dict(list(BUILT_IN.values()), task_manager, task_type="chat")
        for task in (*chat.values(), *simple.values(), *built_in.values()):
            task.build_all_requests(rank=0, world_size=1)
    return Loaded(chat, simple, {benchmark: built_in[name] for benchmark, name in BUILT_IN.items()})


def split_name(name: str) -> tuple[str, str]:
    """(benchmark, variant) of a task's name."""
    benchmark = next(benchmark for benchmark in BUILT_IN if name.startswith(benchmark))
    return benchmark, name.removeprefix(benchmark + "_")


def kind_of(benchmark: str, doc: Doc) -> str:
    """What the drawn document asks for, by its own words."""
    if benchmark == "mmmu_val":
        return "letter" if doc["question_type"] == "multiple-choice" else "word"
    if benchmark == "realworldqa":
        return "letter" if IN_THE_DATA["letter"] in doc["question"] else "word"
    return "letter" if benchmark == "mmbench_en_dev" else "word"


def instruction_of(name: str, doc: Doc) -> str:
    benchmark, variant = split_name(name)
    return INSTRUCTIONS[variant[0], kind_of(benchmark, doc)]


def texts(messages: list[dict[str, Any]]) -> list[str]:
    """The text blocks of the one user's turn."""
    (message,) = messages
    assert message["role"] == "user"
    return [block["text"] for block in message["content"] if block["type"] == "text"]


def types(messages: list[dict[str, Any]]) -> list[str]:
    return [block["type"] for block in messages[0]["content"]]


def pictures(messages: list[dict[str, Any]]) -> list[bytes]:
    return [block["url"].tobytes() for block in messages[0]["content"] if block["type"] == "image"]


# --- the index ------------------------------------------------------------------------------------------


def test_lmms_eval_lists_thirty_tasks_of_ours(task_manager: Any) -> None:
    ours = [
        name
        for name, entry in task_manager.task_index.items()
        if entry["type"] == "task" and Path(entry["yaml_path"]).is_relative_to(plugin.task_dir())
    ]
    assert sorted(ours) == sorted(NAMES)
    assert len(ours) == 30


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_tag_holds_the_six_tasks_of_its_variant(task_manager: Any, variant: str) -> None:
    entry = task_manager.task_index[f"mai_{variant}"]
    assert entry["type"] == "tag"
    assert sorted(entry["task"]) == sorted(f"{benchmark}_{variant}" for benchmark in BUILT_IN)


def test_there_are_five_tags_of_ours(task_manager: Any) -> None:
    assert [tag for tag in task_manager.all_tags if tag.startswith("mai_")] == sorted(f"mai_{v}" for v in VARIANTS)


def test_the_built_in_tasks_keep_their_place(task_manager: Any) -> None:
    for name in BUILT_IN.values():
        assert "lmms_eval/tasks/" in task_manager.task_index[name]["yaml_path"]


# --- the contract with the built-in tasks --------------------------------------------------------------------

OURS_ALONE = {
    *("task", "tag", "output_type", "doc_to_text", "doc_to_messages", "lmms_eval_specific_kwargs"),
    *("generation_kwargs", "model_specific_generation_kwargs", "filter_list", "reasoning_tags"),
    *("metadata", "dataset_kwargs"),
}
"""Keys in which a task of ours is meant to differ. Whatever else either side sets must be the same."""


def config(task_manager: Any, name: str) -> dict[str, Any]:
    """The whole YAML of a task, its includes merged and its functions imported."""
    from lmms_eval.utils import load_yaml_config

    return load_yaml_config(task_manager.task_index[name]["yaml_path"], mode="full")


def comparable(value: Any) -> Any:
    """A config value with functions as (name, file): built-ins load their `utils` anew for every reference."""
    if callable(value):
        return value.__name__, inspect.getsourcefile(value)
    if isinstance(value, dict):
        return {key: comparable(one) for key, one in value.items()}
    if isinstance(value, list):
        return [comparable(one) for one in value]
    return value


@pytest.mark.parametrize("name", NAMES)
def test_data_metrics_and_scorer_are_those_of_the_installed_built_in_task(task_manager: Any, name: str) -> None:
    benchmark, _ = split_name(name)
    ours, theirs = config(task_manager, name), config(task_manager, BUILT_IN[benchmark])
    assert {key: comparable(value) for key, value in ours.items() if key not in OURS_ALONE} == {
        key: comparable(value) for key, value in theirs.items() if key not in OURS_ALONE
    }
    assert {"dataset_path", "test_split", "doc_to_visual", "doc_to_target", "metric_list"} <= set(ours) & set(theirs)


@pytest.mark.parametrize("name", NAMES)
def test_metrics_of_the_loaded_task_are_those_of_the_loaded_built_in_task(tasks: Loaded, name: str) -> None:
    ours, theirs = tasks.chat[name], tasks.built_in[split_name(name)[0]]
    assert comparable(ours.aggregation()) == comparable(theirs.aggregation())
    assert ours.higher_is_better() == theirs.higher_is_better()
    assert set(ours.aggregation())
    assert [ours.doc_to_target(doc) for doc in ours.test_docs()] == [
        theirs.doc_to_target(doc) for doc in theirs.test_docs()
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_task_asks_for_no_token_and_sets_the_papers_limits(task_manager: Any, tasks: Loaded, name: str) -> None:
    assert config(task_manager, name)["dataset_kwargs"] == {}
    decoding = tasks.chat[name].config.generation_kwargs
    assert decoding["until"] == []  # lmms-eval's own default would stop every thinking at its first blank line
    assert decoding["max_new_tokens"] == (1024 if name.endswith("_s") else 4096)
    assert (decoding["temperature"], decoding["do_sample"]) == (0.0, False)


@pytest.mark.parametrize("name", NAMES)
def test_the_model_is_told_the_benchmark_and_variant_that_the_prompt_was_made_of(tasks: Loaded, name: str) -> None:
    benchmark, variant = split_name(name)
    task = tasks.chat[name]
    for told in (task.instances[0].metadata["mai"], task.config.lmms_eval_specific_kwargs["default"]):
        assert told == {"benchmark": benchmark, "variant": variant}
    rounds = "generate_until_multi_round" if name.endswith("_s2") else "generate_until"
    assert task.OUTPUT_TYPE == task.instances[0].request_type == rounds


# --- scoring ------------------------------------------------------------------------------------------------


def filtered(task: Any, responses: list[Any]) -> list[Any]:
    """What the task's own filters leave of one response to each of its first documents."""
    instances = task.instances[: len(responses)]
    for instance, response in zip(instances, responses, strict=True):
        instance.resps = [response]
    (ensemble,) = task._filters
    ensemble.apply(instances, task.task_docs)
    return [instance.filtered_resps[ensemble.name] for instance in instances]


def score(task: Any, answer: Callable[[Doc], str]) -> dict[str, float]:
    """The task's metrics when every document is answered by `answer`, in a last bracket after a wrong one."""
    docs = list(task.test_docs())
    said = [f"First I thought [[nothing]].\n\nBut it is [[ {answer(doc)}\x0b ]]." for doc in docs]
    responses: list[Any] = [["a thinking, [[wrong]]", text] for text in said] if task.config.task in TWO_STAGE else said
    found: dict[str, list[Any]] = {}
    for doc, left in zip(docs, filtered(task, responses), strict=True):
        for metric, value in task.process_results(doc, [left]).items():
            found.setdefault(metric, []).append(value)
    metrics = {}
    for metric, aggregate in task.aggregation().items():
        takes_args = "args" in inspect.signature(aggregate).parameters
        metrics[metric] = aggregate(found[metric], args=None) if takes_args else aggregate(found[metric])
    return metrics


def gold(doc: Doc) -> str:
    return doc["answers"][0] if "answers" in doc else doc["answer"]


def wrong(doc: Doc) -> str:
    if gold(doc) in ("yes", "no"):
        return "no" if gold(doc) == "yes" else "yes"
    return ("B" if gold(doc) == "A" else "A") if gold(doc) in "ABCD" else "98765"


MAIN = {
    "pope": ("pope_accuracy", 1.0),
    "mmmu_val": ("mmmu_acc", 1.0),
    "mmbench_en_dev": ("gpt_eval_score", 100.0),
    "chartqa": ("relaxed_overall", 1.0),
    "infovqa_val": ("anls", 1.0),
    "realworldqa": ("exact_match", 1.0),
}


@pytest.mark.parametrize("name", NAMES)
def test_the_content_of_the_last_brackets_reaches_the_scorer(
    tasks: Loaded, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # MMBench writes ./submissions
    metric, best = MAIN[split_name(name)[0]]
    assert score(tasks.chat[name], gold)[metric] == best
    assert score(tasks.chat[name], wrong)[metric] == 0


class _Network:
    """Fails the test that looks up or connects to an address, past every `except Exception` on its way."""

    refused = False

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.refused and event in ("socket.connect", "socket.getaddrinfo"):
            pytest.fail(f"{event} {arguments[:2]}")


@pytest.fixture(scope="module")
def network() -> _Network:
    watch = _Network()
    sys.addaudithook(watch)  # cannot be taken away again; idle unless `refused`
    return watch


@pytest.fixture
def no_network(network: _Network) -> Iterator[None]:
    network.refused = True
    yield
    network.refused = False


@pytest.mark.parametrize("benchmark", BUILT_IN)
def test_scoring_answers_that_do_not_parse_calls_no_api(
    tasks: Loaded, benchmark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_network: None
) -> None:
    monkeypatch.chdir(tmp_path)
    metric, best = MAIN[benchmark]
    assert score(tasks.chat[f"{benchmark}_s"], lambda doc: "???")[metric] < best


def test_the_watch_over_the_network_notices_a_look_up(no_network: None) -> None:
    with pytest.raises(pytest.fail.Exception):
        socket.getaddrinfo("localhost", 80)


def test_every_mmbench_task_is_scored_by_the_static_evaluator(task_manager: Any) -> None:
    for variant in VARIANTS:
        metrics = config(task_manager, f"mmbench_en_dev_{variant}")["metric_list"]
        assert {one["metric"]: one["aggregation"].__name__ for one in metrics} == {
            "gpt_eval_score": "mmbench_aggregate_dev_results_static",
            "submission": "mmbench_aggregate_dev_results_submission",
        }


# --- filters ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("It is [[red]].", "red"),
        ("[[red]], no, [[blue]]", "blue"),
        (" just words\n", "just words"),
        ("<think>[[red]]</think>blue", "blue"),
        ("[[]]", ""),
        ("", ""),
        ("[[a\x00b\x0bc\x1f]]", "abc"),
        ("no brackets\x07 at all\x1b", "no brackets at all"),
        ("[[two\nlines\tand a tab]]", "two\nlines\tand a tab"),
    ],
)
def test_the_answer_filter_leaves_the_last_brackets_without_control_characters(
    tasks: Loaded, response: str, answer: str
) -> None:
    assert filtered(tasks.chat["pope_s"], [response]) == [answer]
    assert filtered(tasks.chat["pope_e_s2"], [["a [[first]] round", response]]) == [answer]


def test_the_answer_filter_keeps_every_response_of_every_document_in_order() -> None:
    responses = [["[[1]]", "[[2]]"], ["3"], []]
    assert AnswerFilter().apply(iter(responses), None) == [["1", "2"], ["3"], []]


@pytest.mark.parametrize("code", [*range(0x20), 0x7F])
def test_an_answer_of_any_character_can_be_written_to_a_spreadsheet(code: int, tmp_path: Path) -> None:
    import openpyxl

    ((answer,),) = AnswerFilter().apply([[f"[[a{chr(code)}b]]"]], None)
    book = openpyxl.Workbook()
    book.active.append([answer])
    book.save(tmp_path / "answers.xlsx")
    assert answer.replace(chr(code), "") == "ab"


@pytest.mark.parametrize("response", ["[[yes]]", ["[[yes]]"], [], "['round 0', 'round 1']"])
def test_a_two_stage_task_refuses_an_answer_of_one_round_and_says_what_to_do(tasks: Loaded, response: Any) -> None:
    with pytest.raises(ValueError, match=r"one round.*mai_cascade.*without _s2"):
        filtered(tasks.chat["chartqa_r_s2"], [response])


@pytest.mark.parametrize("name", NAMES)
def test_only_two_stage_tasks_filter_rounds(tasks: Loaded, name: str) -> None:
    first = tasks.chat[name]._filters[0].filters[0]
    assert type(first) is (TwoStageAnswerFilter if name in TWO_STAGE else AnswerFilter)


# --- prompts ------------------------------------------------------------------------------------------------


def question_of(tasks: Loaded, benchmark: str, doc: Doc, words: str) -> str:
    """The built-in task's words without the instruction that ends them."""
    if benchmark == "realworldqa":
        return words
    official = OFFICIAL.get(benchmark) or OFFICIAL[f"{benchmark} {kind_of(benchmark, doc)}"]
    assert words.endswith(official)
    return words.removesuffix(official)


def documents(tasks: Loaded, name: str) -> list[Doc]:
    docs = list(tasks.chat[name].test_docs())
    assert len(docs) == 12
    return docs


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("realworldqa")])
def test_the_words_are_the_built_in_tasks_with_the_instruction_exchanged(tasks: Loaded, name: str) -> None:
    benchmark, _ = split_name(name)
    for doc in documents(tasks, name):
        theirs = "".join(texts(tasks.built_in[benchmark].doc_to_messages(doc)))
        ours = "".join(texts(tasks.chat[name].doc_to_messages(doc)))
        assert ours == question_of(tasks, benchmark, doc, theirs) + instruction_of(name, doc)


@pytest.mark.parametrize("kind", ["letter", "word"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_realworldqa_asks_our_instruction_in_place_of_the_data_sets_own(tasks: Loaded, variant: str, kind: str) -> None:
    name = f"realworldqa_{variant}"
    docs = [doc for doc in documents(tasks, name) if kind_of("realworldqa", doc) == kind]
    assert len(docs) == 6
    for doc in docs:
        ours = "".join(texts(tasks.chat[name].doc_to_messages(doc)))
        assert IN_THE_DATA[kind] in doc["question"]
        asked = doc["question"].replace(IN_THE_DATA[kind], "").split()
        assert ours.split() == [*asked, *INSTRUCTIONS[variant[0], kind].split()]


@pytest.mark.parametrize("name", NAMES)
def test_the_last_block_is_exactly_the_instruction_of_the_right_kind(tasks: Loaded, name: str) -> None:
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
def test_images_stand_where_the_built_in_task_puts_them(tasks: Loaded, name: str) -> None:
    benchmark, _ = split_name(name)
    orders = set()
    for doc in documents(tasks, name):
        theirs = tasks.built_in[benchmark].doc_to_messages(doc)
        ours = tasks.chat[name].doc_to_messages(doc)
        assert types(ours) == [*types(theirs), "text"]
        assert pictures(ours) == pictures(theirs)
        orders.add(tuple(types(ours)))
    interleaved = {("text", "image", "text", "text"), ("image", "text", "text")}
    assert orders == (interleaved if benchmark == "mmmu_val" else {("image", "text", "text")})


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("mmmu_val")])
def test_the_text_for_simple_models_is_the_words_of_the_message(tasks: Loaded, name: str) -> None:
    for doc in documents(tasks, name):
        assert tasks.chat[name].doc_to_text(doc) == "".join(texts(tasks.chat[name].doc_to_messages(doc)))


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("mmmu_val")])
def test_the_text_of_mmmu_names_its_images_where_the_message_has_them(tasks: Loaded, name: str) -> None:
    for doc in documents(tasks, name):
        text = tasks.chat[name].doc_to_text(doc)
        assert "<image 1>" in text
        assert text.replace("<image 1>", "").split() == " ".join(texts(tasks.chat[name].doc_to_messages(doc))).split()


@pytest.mark.parametrize("name", NAMES)
def test_a_document_without_its_image_column_has_the_same_text(tasks: Loaded, name: str) -> None:
    for doc in documents(tasks, name):
        bare = {key: value for key, value in doc.items() if not isinstance(value, Image.Image)}
        assert len(bare) < len(doc)
        assert tasks.chat[name].doc_to_text(bare) == tasks.chat[name].doc_to_text(doc)


def test_making_mmmu_messages_does_not_change_the_text_made_later(tasks: Loaded) -> None:
    """mmmu_doc_to_messages sets a flag of its module, after which mmmu_doc_to_text writes <image> for <image 1>."""
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
    """An MMMU document with up to three pictures of different sizes."""
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
def test_mmmu_interleaves_several_images_with_question_and_options(
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
def test_a_question_of_any_words_keeps_them(tasks: Loaded, name: str, question: str) -> None:
    doc = {**mmmu(question), "image": Image.new("RGB", (8, 8))}
    *blocks, last = texts(tasks.chat[name].doc_to_messages(doc))
    assert "".join(blocks).strip() == question.strip()
    assert last == INSTRUCTIONS["r", "word"]


# --- two stages ---------------------------------------------------------------------------------------------

THINKING = "I see {two} discs, {stage1_response}:\n\nthe [[first]] is \\frac{1}{2} \n"
STAGE_2 = {
    "word": f"According to previous thinking: {THINKING}\n Answer the question using a single word or phrase.",
    "letter": (
        f"According to previous thinking: {THINKING}\n Answer with the option's letter from the given choices directly."
    ),
}


def chat_rounds(task: Any, doc_id: int, answers: list[str]) -> list[list[dict[str, Any]]]:
    """The messages of each round, asked as lmms_eval/models/chat/vllm.py's generate_until_multi_round asks."""
    _, doc_to_messages, _, request_doc, name, split = task.instances[doc_id].arguments
    assert (request_doc, name, split) == (doc_id, task.config.task, task.config.test_split)
    doc = task.test_docs()[doc_id]
    rounds, said, info = [doc_to_messages(doc)], [answers[0]], None
    while True:
        payload = doc_to_messages(doc, round_idx=len(rounds), previous_output=list(said), previous_round_info=info)
        assert isinstance(payload, tuple)
        messages, terminal, previous, info = payload
        assert previous == said
        if terminal:
            assert messages is None
            return rounds
        rounds.append(messages)
        said.append(answers[len(said)])


def simple_rounds(task: Any, doc_id: int, answers: list[str]) -> list[tuple[list[Image.Image], str]]:
    """(images, text) of each round, asked as the `simple` models ask (models/simple/llava_onevision.py)."""
    text, _, doc_to_visual, doc_to_text, request_doc, _, _ = task.instances[doc_id].arguments
    assert request_doc == doc_id
    doc = task.test_docs()[doc_id]
    rounds, said, info = [(doc_to_visual(doc), text)], (answers[0],), None
    while True:
        images, text, terminal, said, info = doc_to_text(
            doc, previous_output=list(said), round_idx=len(rounds), previous_round_info=info
        )
        if terminal:
            assert tuple(said) == tuple(answers[: len(rounds)])
            return rounds
        rounds.append((images, text))
        said = (*said, answers[len(said)])


@pytest.mark.parametrize("name", TWO_STAGE)
def test_a_chat_model_asks_two_rounds_the_second_with_the_first_answer_in_it(tasks: Loaded, name: str) -> None:
    benchmark, _ = split_name(name)
    one_stage = tasks.chat[name.removesuffix("_s2")]
    for doc_id, doc in enumerate(documents(tasks, name)):
        first, second = chat_rounds(tasks.chat[name], doc_id, [THINKING, "[[red]]", "never asked"])
        assert texts(first) == texts(one_stage.doc_to_messages(doc))
        assert texts(second) == [*texts(first)[:-1], STAGE_2[kind_of(benchmark, doc)]]
        assert types(second) == types(first)
        assert pictures(second) == pictures(first)


@pytest.mark.parametrize("name", TWO_STAGE)
def test_a_simple_model_asks_the_same_two_rounds(tasks: Loaded, name: str) -> None:
    benchmark, _ = split_name(name)
    one_stage = tasks.chat[name.removesuffix("_s2")]
    for doc_id, doc in enumerate(documents(tasks, name)):
        first, second = simple_rounds(tasks.simple[name], doc_id, [THINKING, "[[red]]", "never asked"])
        assert first[1] == one_stage.doc_to_text(doc)
        assert second[1] == first[1].removesuffix(instruction_of(name, doc)) + STAGE_2[kind_of(benchmark, doc)]
        assert [image.tobytes() for image in second[0]] == [image.tobytes() for image in first[0]]
        assert first[0]


@pytest.mark.parametrize("name", TWO_STAGE)
def test_an_empty_first_answer_is_still_followed_by_a_second_round(tasks: Loaded, name: str) -> None:
    _, second = chat_rounds(tasks.chat[name], 0, ["", "[[red]]"])
    assert texts(second)[-1].startswith("According to previous thinking: \n Answer")


@pytest.mark.parametrize("name", ONE_STAGE)
def test_a_one_stage_task_has_one_message_and_no_rounds(tasks: Loaded, name: str) -> None:
    assert tasks.chat[name].OUTPUT_TYPE == "generate_until"
    doc = documents(tasks, name)[0]
    assert isinstance(tasks.chat[name].doc_to_messages(doc, round_idx=1, previous_output=["x"]), list)


# --- the package ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy: setuptools writes beside its sources."""
    source = tmp_path_factory.mktemp("source")
    for entry in ROOT.iterdir():
        if entry.is_file() and not entry.name.startswith("."):
            shutil.copy(entry, source)
    for folder in ("lmms_eval_mai", "task_configs"):
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    command = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(source / "dist"),
        str(source),
    ]
    built = subprocess.run(command, cwd=source, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = (source / "dist").glob("*.whl")
    return path


def task_files() -> set[str]:
    return {path.relative_to(ROOT).as_posix() for path in (ROOT / "task_configs").rglob("*yaml")}


def test_the_wheel_holds_every_task_file_with_the_bases_they_include(wheel: Path) -> None:
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if "task_configs/" in name}
    assert packed == {f"lmms_eval_mai/{name}" for name in task_files()}
    assert Counter(name.endswith("_base_yaml") for name in packed) == {False: 30, True: 6}


def test_the_wheel_holds_every_module_and_the_marker_of_type_hints(wheel: Path) -> None:
    packed = set(zipfile.ZipFile(wheel).namelist())
    assert {path.relative_to(ROOT).as_posix() for path in (ROOT / "lmms_eval_mai").rglob("*.py")} <= packed
    assert "lmms_eval_mai/py.typed" in packed


def test_the_wheel_names_the_entry_point_by_which_lmms_eval_finds_the_model(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (name,) = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
    points = configparser.ConfigParser()
    points.read_string(archive.read(name).decode())
    module, function = points["lmms_eval.models"]["mai_cascade"].split(":")
    assert module == plugin.__name__
    assert callable(getattr(plugin, function))


_CHILD = """
import json, lmms_eval_mai.plugin as plugin
folder = plugin.task_dir()
files = [path.relative_to(folder.parent).as_posix() for path in folder.rglob("*yaml")]
print(json.dumps([plugin.__file__, str(folder), files]))
"""


def test_an_installed_wheel_finds_its_own_tasks(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run([sys.executable, "-c", _CHILD], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    module, folder, files = json.loads(done.stdout)
    assert Path(module).is_relative_to(site)
    assert Path(folder) == site / "lmms_eval_mai" / "task_configs"
    assert set(files) == task_files()


def test_every_function_that_a_task_file_names_is_absolute() -> None:
    """A relative name would be looked up beside the YAML, where the wheel holds no Python."""
    named = [
        name
        for path in sorted(task_files())
        for name in re.findall(r"!function (\S+)", (ROOT / path).read_text(encoding="utf-8"))
    ]
    assert len(named) > 90
    assert {name.split(".")[0] for name in named} == {"lmms_eval", "lmms_eval_mai"}
    assert min(name.count(".") for name in named) >= 2
