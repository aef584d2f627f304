"""Our tasks as lmms-eval loads them: data, prompts, rounds and scores, compared with the installed built-in tasks."""

import inspect
import io
import itertools
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from support.tasks import (
    BUILT_IN,
    IN_THE_DATA,
    INSTRUCTIONS,
    NAMES,
    OFFICIAL,
    STAGE_2,
    VARIANTS,
    Doc,
    Loaded,
    texts,
)

from lmms_eval_mai import plugin
from lmms_eval_mai.run.decoding import MAI_TASK

TWO_STAGE = [name for name in NAMES if name.endswith("_s2")]
every_task = pytest.mark.parametrize("name", NAMES)


def split_name(name: str) -> tuple[str, str]:
    """Return benchmark and variant of a task's name."""
    benchmark = next(benchmark for benchmark in BUILT_IN if name.startswith(benchmark))
    return benchmark, name.removeprefix(benchmark + "_")


def answer_form_of(benchmark: str, doc: Doc) -> str:
    """Return the form of the answer that a document requires."""
    from lmms_eval_mai.method.benchmarks import BENCHMARKS

    return BENCHMARKS[benchmark].answer_form(doc)


def types(messages: list[dict[str, Any]]) -> list[str]:
    return [block["type"] for block in messages[0]["content"]]


def image_bytes(messages: list[dict[str, Any]]) -> list[bytes]:
    return [block["url"].tobytes() for block in messages[0]["content"] if block["type"] == "image"]


def config(task_manager: Any, name: str) -> dict[str, Any]:
    """Return the YAML of a task with its includes merged and its functions imported."""
    from lmms_eval.utils import load_yaml_config

    return load_yaml_config(task_manager.task_index[name]["yaml_path"], mode="full")


def documents(tasks: Loaded, name: str) -> list[Doc]:
    docs = list(tasks.chat[name].test_docs())
    assert len(docs) == 12
    return docs


# --- the index, and the contract with the built-in tasks --------------------------------------------------


def test_lmms_eval_lists_thirty_tasks_of_six_benchmarks_with_a_tag_for_each_variant_and_five_of_shapes(
    task_manager: Any,
) -> None:
    index = task_manager.task_index
    files = {name: Path(entry["yaml_path"]) for name, entry in index.items() if entry["type"] == "task"}
    ours = [name for name, file in files.items() if file.is_relative_to(plugin.task_dir())]
    assert sorted(ours) == sorted([*NAMES, *(f"shapes_{variant}" for variant in VARIANTS)])
    tags = {name: sorted(index[name]["task"]) for name in task_manager.all_tags if name.startswith("mai_")}
    assert tags == {f"mai_{v}": sorted(f"{benchmark}_{v}" for benchmark in BUILT_IN) for v in VARIANTS}


OURS_ALONE = {
    *("task", "tag", "output_type", "doc_to_text", "doc_to_messages", "lmms_eval_specific_kwargs"),
    *("generation_kwargs", "model_specific_generation_kwargs", "filter_list", "reasoning_tags"),
    *("metadata", "dataset_kwargs", "process_results", "cluster_key"),
}
"""Keys in which our tasks differ on purpose. All other keys that either task sets must be equal."""


def comparable(value: Any) -> Any:
    """Return a config value with (name, file) in place of functions, because lmms-eval loads a built-in task's `utils`
    module again for every reference."""
    if callable(value):
        return value.__name__, inspect.getsourcefile(value)
    if isinstance(value, dict):
        return {key: comparable(one) for key, one in value.items()}
    return [comparable(one) for one in value] if isinstance(value, list) else value


@every_task
def test_a_task_equals_the_installed_built_in_task_but_for_prompt_and_decoding(
    task_manager: Any, tasks: Loaded, name: str
) -> None:
    benchmark, variant = split_name(name)
    ours, theirs = config(task_manager, name), config(task_manager, BUILT_IN[benchmark])
    assert {key: comparable(value) for key, value in ours.items() if key not in OURS_ALONE} == {
        key: comparable(value) for key, value in theirs.items() if key not in OURS_ALONE
    }
    assert ours["dataset_kwargs"] == {}  # needs no hub token
    task = tasks.chat[name]
    decoding = task.config.generation_kwargs
    assert decoding.pop("until") == []  # lmms-eval's own default would stop all thinking at its first blank line
    assert decoding.pop("do_sample") is False and decoding == {**MAI_TASK}
    for metadata in (task.instances[0].metadata["mai"], task.config.lmms_eval_specific_kwargs["default"]):
        assert metadata == {"benchmark": benchmark, "variant": variant}
    assert task.instances[0].request_type == "generate_until" + "_multi_round" * (name in TWO_STAGE)


# --- prompts ----------------------------------------------------------------------------------------------


def question_of(benchmark: str, doc: Doc, words: str) -> str:
    """Return the built-in task's text without the instruction at its end."""
    official = OFFICIAL.get(benchmark) or OFFICIAL[f"{benchmark} {answer_form_of(benchmark, doc)}"]
    assert words.endswith(official)
    return words.removesuffix(official)


def mmmu(question: str, options: list[str] | None = None) -> Doc:
    """Return an MMMU document with three images of different sizes."""
    images = {f"image_{i}": Image.new("RGB", (10 * i, 10)) for i in (1, 2, 3)}
    kind = "open" if options is None else "multiple-choice"
    given = {"id": "validation_Art_1", "question": question, "options": str(options or []), "question_type": kind}
    return {**given, **images}


IMAGES_BETWEEN_TEXTS = [
    mmmu("<image 1> and <image 2>: which is it?", ["x", "y"]),
    mmmu("Which? <image 2>", ["<image 1>", "<image 3>"]),
    mmmu("How many in <image 3>?"),
    mmmu("How many?"),
]


@every_task
def test_messages_equal_those_of_the_built_in_task_except_for_the_instruction_in_the_last_block(
    tasks: Loaded, name: str
) -> None:
    benchmark, variant = split_name(name)
    forms = Counter()
    for doc in documents(tasks, name) + (IMAGES_BETWEEN_TEXTS if benchmark == "mmmu_val" else []):
        theirs = tasks.built_in[benchmark].doc_to_messages(doc)
        ours = tasks.chat[name].doc_to_messages(doc)
        *question, last = texts(ours)
        form = answer_form_of(benchmark, doc)
        forms[form] += 1
        assert last == INSTRUCTIONS[variant[0], form]
        if benchmark == "realworldqa":
            assert IN_THE_DATA[form] in doc["question"]
            assert "".join(question).split() == doc["question"].replace(IN_THE_DATA[form], "").split()
        else:
            assert "".join(question) == question_of(benchmark, doc, "".join(texts(theirs)))
        assert "[[answer]]" not in "".join(question) and question[-1][-1:] in ("\n", "")  # or an image is before it
        assert types(ours) == [*types(theirs), "text"] and image_bytes(ours) == image_bytes(theirs)
        # Simple models get the same text. It does not need the image.
        bare = {key: value for key, value in doc.items() if not isinstance(value, Image.Image)}
        parts = re.split(r"<image \d>", tasks.chat[name].doc_to_text(bare))
        assert " ".join(parts).split() == " ".join(texts(ours)).split()
        assert len(parts) == 1 + types(ours).count("image") * (benchmark == "mmmu_val")
    both = {"mmmu_val": {"letter": 10, "word": 6}, "realworldqa": {"letter": 6, "word": 6}}
    assert forms == both.get(benchmark, {"letter" if benchmark == "mmbench_en_dev" else "word": 12})


@pytest.mark.parametrize("question", ["Is {this} it?", "[[answer]]", f"Say: {INSTRUCTIONS['s', 'word']}", "a\n\nb  "])
@pytest.mark.parametrize("name", ["pope_r", "chartqa_r", "infovqa_val_r", "realworldqa_r", "mmmu_val_r"])
def test_a_question_that_looks_like_an_instruction_is_unchanged(tasks: Loaded, name: str, question: str) -> None:
    doc = {**mmmu(question), "image": Image.new("RGB", (8, 8))}
    *blocks, last = texts(tasks.chat[name].doc_to_messages(doc))
    assert "".join(blocks).strip() == question.strip() and last == INSTRUCTIONS["r", "word"]


@pytest.mark.parametrize("name", TWO_STAGE)
def test_a_chat_model_gets_two_rounds_and_the_second_contains_the_first_response(tasks: Loaded, name: str) -> None:
    """The rounds are asked for as in generate_until_multi_round of lmms_eval/models/chat/vllm.py."""
    task, one_stage = tasks.chat[name], tasks.chat[name.removesuffix("_s2")]
    for doc in documents(tasks, name):
        for response in ("I see {two} discs, {stage1_response}:\n\nthe [[first]] is \\frac{1}{2} \n", ""):
            first = task.doc_to_messages(doc)
            given = {"previous_output": [response], "previous_round_info": None}
            second, terminal, *_ = task.doc_to_messages(doc, round_idx=1, **given)
            assert not terminal and texts(first) == texts(one_stage.doc_to_messages(doc))
            ending = STAGE_2[answer_form_of(split_name(name)[0], doc)].replace("RESPONSE", response)
            assert texts(second) == [*texts(first)[:-1], ending]
            assert types(second) == types(first) and image_bytes(second) == image_bytes(first)
            given["previous_output"] = [response, "[[red]]"]
            assert task.doc_to_messages(doc, round_idx=2, **given)[:2] == (None, True)


# --- from responses to scores -----------------------------------------------------------------------------


def filtered(task: Any, response: Any) -> Any:
    """Return what the task's filters leave of a response to its first document. All others have the same response."""
    for instance in task.instances:
        instance.resps = [response]
    task.apply_filters()
    return next(iter(task.instances[0].filtered_resps.values()))


@every_task
def test_the_scorer_gets_the_content_of_the_last_brackets_of_the_last_round(tasks: Loaded, name: str) -> None:
    text = "First I thought [[nothing]].\n\nBut it is [[ two\x0b ]]."
    assert filtered(tasks.chat[name], ["thinking, [[wrong]]", text] if name in TWO_STAGE else text) == "two"


@pytest.mark.parametrize("one_round", ["[[two]]", ["[[two]]"], []])
def test_a_two_stage_task_refuses_an_answer_of_one_round(tasks: Loaded, one_round: Any) -> None:
    with pytest.raises(ValueError, match="one round"):
        filtered(tasks.chat["pope_e_s2"], one_round)


@pytest.mark.parametrize("benchmark", BUILT_IN)
def test_scores_of_every_document_are_those_of_the_installed_built_in_task(tasks: Loaded, benchmark: str) -> None:
    ours, theirs = tasks.chat[f"{benchmark}_s"], tasks.built_in[benchmark]
    answers = ["yes", "No.", "A", "**C**", "The answer is (B).", "green", "12", "3.", "50%", "98765", ""]
    for doc, text in itertools.product(ours.test_docs(), answers):
        scores = []
        for task in (ours, theirs):
            random.seed(1)  # MMMU's scorer guesses if it cannot read an answer
            scores.append(dict(task.process_results(doc, [text])))
        if benchmark == "pope":  # the questions about one image are one cluster in lmms-eval's error
            sources = {value.pop(ours.config.cluster_key) for value in scores[0].values()}
            assert sources == {doc["image_source"]}
        assert scores[0] == {metric: value for metric, value in scores[1].items() if metric in theirs.aggregation()}


# --- shapes -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_shapes_has_three_thousand_documents_that_its_tool_draws_again(task_manager: Any) -> None:
    from lmms_eval.tasks import get_task_dict

    from experiments.demo_pair.make_shapes import SEED, make_rows

    names = [f"shapes_{variant}" for variant in VARIANTS]
    tasks = get_task_dict(names, task_manager, task_type="chat")
    docs = list(tasks["shapes_s"].test_docs())
    assert len(docs) == len({doc["image"].tobytes() for doc in docs}) == 3000

    for row, doc in zip(make_rows(300, SEED), docs, strict=False):  # each document depends on those before it
        assert Image.open(io.BytesIO(row["image"]["bytes"])).tobytes() == doc["image"].tobytes()
        assert {name: row[name] for name in ("question", *"ABCD", "answer", "category")}.items() <= doc.items()
    for name, doc in itertools.product(names, docs[:60]):
        messages = tasks[name].doc_to_messages(doc)
        assert types(messages) == ["image", "text", "text"]
        options = [f"{letter}. {doc[letter]}" for letter in "ABCD" if doc[letter]]
        instruction = INSTRUCTIONS[name.split("_")[1], "letter" if options else "word"]
        assert texts(messages) == ["\n".join([doc["question"], *options, ""]), instruction]
        for given, right in ((doc["answer"], 1.0), (doc["answer"].upper() + ".", 1.0), ("purple", 0.0), ("", 0.0)):
            assert tasks[name].process_results(doc, [given]) == {"exact_match": right}
