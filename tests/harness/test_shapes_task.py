"""The five tasks of `shapes` as lmms-eval loads them: documents, prompts and scores."""

import io
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from support.tasks import INSTRUCTIONS, VARIANTS, config, image_bytes, texts, types

from lmms_eval_mai import plugin

NAMES = [f"shapes_{variant}" for variant in VARIANTS]


@pytest.fixture(scope="module")
def shapes(task_manager: Any) -> dict[str, Any]:
    from lmms_eval.tasks import get_task_dict

    return dict(get_task_dict(NAMES, task_manager, task_type="chat"))


@pytest.fixture(scope="module")
def docs(shapes: dict[str, Any]) -> list[dict[str, Any]]:
    return list(shapes["shapes_s"].test_docs())


def kind_of(doc: dict[str, Any]) -> str:
    return "letter" if doc["A"] else "word"


def test_the_test_split_has_three_thousand_documents_and_every_kind_of_question(docs: list[dict[str, Any]]) -> None:
    assert len(docs) == 3000
    kinds = Counter(doc["category"] for doc in docs)
    assert set(kinds) == {"yes_no", "count", "compare", "where", "path", "choice"}
    assert min(kinds.values()) >= 150
    assert {doc["image"].size for doc in docs} == {(96, 96)}
    assert len({doc["image"].tobytes() for doc in docs}) == 3000
    assert (plugin.task_dir() / "shapes" / "test.parquet").stat().st_size <= 6 * 2**20


def test_answers_have_the_form_that_the_question_requires_and_guessing_one_scores_badly(
    docs: list[dict[str, Any]],
) -> None:
    for doc in docs:
        options = [doc[letter] for letter in "ABCD" if doc[letter]]
        if doc["category"] == "choice":
            assert doc["answer"] in "ABCD" and len(set(options)) == 4
        else:
            assert not options
            assert (doc["answer"] in ("yes", "no")) is (doc["category"] in ("yes_no", "compare"))
            assert doc["answer"].isdigit() is (doc["category"] == "count")
    for category, most in (("yes_no", 0.6), ("compare", 0.6), ("choice", 0.35), ("path", 0.2), ("count", 0.4)):
        answers = Counter(doc["answer"] for doc in docs if doc["category"] == category)
        assert max(answers.values()) <= most * answers.total(), answers


def test_the_first_documents_of_the_test_split_equal_the_output_of_its_tool(docs: list[dict[str, Any]]) -> None:
    from make_shapes import SEED, make_rows

    drawn, docs = make_rows(300, SEED), docs[:300]  # each document depends on those before it, and not on their number
    for row, doc in zip(drawn, docs, strict=True):
        assert Image.open(io.BytesIO(row["image"]["bytes"])).tobytes() == doc["image"].tobytes()
    columns = ("id", "question", "A", "B", "C", "D", "answer", "category")
    assert [[row[name] for name in columns] for row in drawn] == [[doc[name] for name in columns] for doc in docs]


def test_the_development_set_has_tasks_of_its_own_and_other_documents(
    docs: list[dict[str, Any]], tmp_path: Path
) -> None:
    from lmms_eval.tasks import TaskManager, get_task_dict
    from make_shapes import write_development

    write_development(tmp_path, 8)
    manager = TaskManager(include_path=str(tmp_path), include_defaults=False)
    tasks = get_task_dict([name.replace("shapes", "shapes_dev") for name in NAMES], manager, task_type="chat")
    drawn = list(tasks["shapes_dev_s"].test_docs())
    assert len(tasks) == 5 and len(drawn) == 8
    assert not {doc["image"].tobytes() for doc in drawn} & {doc["image"].tobytes() for doc in docs}


def test_the_example_in_the_documentation_is_document_1(docs: list[dict[str, Any]]) -> None:
    example = Image.open(Path(__file__).parents[2] / "docs" / "shapes.png")
    assert example.convert("RGB").tobytes() == docs[1]["image"].convert("RGB").tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_messages_hold_image_question_and_the_papers_instruction(
    shapes: dict[str, Any], docs: list[dict[str, Any]], name: str
) -> None:
    task = shapes[name]
    for doc in docs[:60]:
        messages = task.doc_to_messages(doc)
        assert types(messages) == ["image", "text", "text"]
        assert image_bytes(messages) == [doc["image"].convert("RGB").tobytes()]
        question, instruction = texts(messages)
        assert instruction == INSTRUCTIONS[name.split("_")[1], kind_of(doc)]
        options = [f"{letter}. {doc[letter]}" for letter in "ABCD" if doc[letter]]
        assert question == "\n".join([doc["question"], *options, ""])


@pytest.mark.parametrize("name", NAMES)
def test_lmms_eval_scores_with_its_exact_match(
    shapes: dict[str, Any], docs: list[dict[str, Any]], task_manager: Any, name: str
) -> None:
    assert config(task_manager, name)["metric_list"][0]["metric"] == "exact_match"
    for doc in docs[:40]:
        for given, right in ((doc["answer"], 1.0), (doc["answer"].upper() + ".", 1.0), ("purple", 0.0), ("", 0.0)):
            assert shapes[name].process_results(doc, [given]) == {"exact_match": right}
