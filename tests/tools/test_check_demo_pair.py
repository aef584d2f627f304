"""The check of the demo pair on the development set: documents, exits and the printed figures."""

import io

import pytest
from check_demo_pair import SEED, Document, draw_documents, exits, report
from demo_pair.thinking import solve
from make_shapes import SEED as TEST_SEED
from make_shapes import make_rows
from PIL import Image


def right_answer(document: Document) -> str:
    return solve(document.question, document.cells).answer


def test_the_development_set_is_drawn_as_the_test_set_with_another_seed() -> None:
    assert SEED != TEST_SEED
    for row, document in zip(make_rows(20, SEED), draw_documents(20), strict=True):
        assert (row["question"], row["answer"]) == (document.question.text, right_answer(document))
        image = Image.open(io.BytesIO(row["image"]["bytes"])).convert("RGB")
        assert image.tobytes() == document.image.tobytes()


def test_the_exits_are_those_of_the_cascade() -> None:
    documents = [one for one in draw_documents(40) if one.question.category == "count" and not one.question.options][:3]
    texts = {
        "large S": ["[[3]]", "[[3]]", "[[3]]"],
        "small S": ["[[3]]", "[[2]]", "[[2]]"],
        "small R": ["", "The count is 3.\n[[3]]", "The count is 4.\n[[4]]"],
    }
    assert exits(documents, texts) == ["agree_short", "agree_think", "transfer"]


def test_the_report_has_accuracies_differences_exits_and_rescues(capsys: pytest.CaptureFixture[str]) -> None:
    documents = draw_documents(4)
    right = [f"[[{right_answer(one)}]]" for one in documents]
    texts = {"large S": ["[[wrong]]", *right[1:]], "MAI": right}
    report(documents, texts, ["transfer", "agree_short", "agree_short", "agree_short"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["number", "large", "S", "MAI"] and lines[1].split() == ["all", "4", "75.0", "100.0"]
    assert any(line.startswith("MAI - large S: +25.0") for line in lines)
    assert any(line.startswith("agree_short: 75.0%, right 100.0%") for line in lines)
    assert lines[-1] == "Harm(broken=0, was_right=0, rescued=1, was_wrong=1)"
