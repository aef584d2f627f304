"""The path from responses to metrics: our answer filters, then lmms-eval's own scorers."""

import inspect
import itertools
import socket
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.tasks import BUILT_IN, NAMES, TWO_STAGE, Doc, Loaded, split_name

from lmms_eval_mai.harness.tasks import AnswerFilter
from lmms_eval_mai.reports.rows import score_of_line

# --- scoring ------------------------------------------------------------------------------------------------


def filtered(task: Any, responses: list[Any]) -> list[Any]:
    """Apply the task's filters to one response for each of its first documents."""
    # The filters are applied to all documents, so the others get the last response too.
    for instance, response in itertools.zip_longest(task.instances, responses, fillvalue=responses[-1]):
        instance.resps = [response]
    task.apply_filters()
    return [next(iter(instance.filtered_resps.values())) for instance in task.instances[: len(responses)]]


def score(task: Any, answer: Callable[[Doc], str]) -> dict[str, float]:
    """Return the task's metrics, and as `score` the mean score of the samples, as reports read it. Every response has
    `answer(document)` in its last brackets, after wrong ones."""
    docs = list(task.test_docs())
    texts = [f"First I thought [[nothing]].\n\nBut it is [[ {answer(doc)}\x0b ]]." for doc in docs]
    responses: list[Any] = [["thinking, [[wrong]]", text] for text in texts] if task.config.task in TWO_STAGE else texts
    results = [task.process_results(doc, [left]) for doc, left in zip(docs, filtered(task, responses), strict=True)]
    found: dict[str, list[Any]] = {}
    for metric, value in itertools.chain.from_iterable(result.items() for result in results):
        found.setdefault(metric, []).append(value)
    # lmms-eval writes any other result as an empty list, and its W&B logger then fails.
    assert found.keys() <= task.aggregation().keys()
    metrics = {"score": statistics.mean(score_of_line(result) for result in results)}
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
def test_the_scorer_gets_the_content_of_the_last_brackets(
    tasks: Loaded, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # MMBench writes ./submissions
    metric, best = MAIN[split_name(name)[0]]
    assert score(tasks.chat[name], gold)[metric] == best
    assert score(tasks.chat[name], wrong)[metric] == 0


@pytest.mark.parametrize("benchmark", BUILT_IN)
def test_the_mean_score_of_the_samples_is_the_main_metric(
    tasks: Loaded, benchmark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    metric, best = MAIN[benchmark]
    turn = itertools.cycle([gold, gold, wrong])
    found = score(tasks.chat[f"{benchmark}_s"], lambda doc: next(turn)(doc))
    assert found["score"] == pytest.approx(2 / 3)
    assert found[metric] == pytest.approx(best * found["score"], abs=1e-4)


@pytest.fixture(scope="module")
def no_network() -> Iterator[None]:
    """Fail a test that looks up an address or connects to one, even inside an `except Exception` block."""
    refused = True

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if refused and event in ("socket.connect", "socket.getaddrinfo"):
            pytest.fail(f"{event} {arguments[:2]}")

    sys.addaudithook(refuse)  # cannot be removed
    yield
    refused = False


@pytest.mark.parametrize("benchmark", BUILT_IN)
def test_scoring_answers_that_do_not_parse_calls_no_api(
    tasks: Loaded, benchmark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_network: None
) -> None:
    monkeypatch.chdir(tmp_path)
    metric, best = MAIN[benchmark]
    assert score(tasks.chat[f"{benchmark}_s"], lambda doc: "???")[metric] < best


def test_the_network_guard_detects_a_look_up(no_network: None) -> None:
    with pytest.raises(pytest.fail.Exception):
        socket.getaddrinfo("localhost", 80)


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
def test_answer_filter_returns_the_last_brackets_without_control_characters(
    tasks: Loaded, response: str, answer: str
) -> None:
    assert filtered(tasks.chat["pope_s"], [response]) == [answer]
    assert filtered(tasks.chat["pope_e_s2"], [["a [[first]] round", response]]) == [answer]


@pytest.mark.parametrize("code", [*range(0x20), 0x7F, 0xD83D, 0xFFFE, 0xFFFF])
def test_an_answer_with_any_control_character_can_be_written_to_a_spreadsheet(code: int, tmp_path: Path) -> None:
    import openpyxl

    ((answer,),) = AnswerFilter().apply([[f"[[a{chr(code)}b]]"]], None)
    book = openpyxl.Workbook()
    book.active.append([answer])
    book.save(tmp_path / "answers.xlsx")
    assert answer.replace(chr(code), "") == "ab"


@pytest.mark.parametrize("response", ["[[yes]]", ["[[yes]]"], [], "['round 0', 'round 1']"])
@pytest.mark.parametrize("name", TWO_STAGE)
def test_a_two_stage_task_refuses_an_answer_of_one_round_and_names_the_fix(
    tasks: Loaded, name: str, response: Any
) -> None:
    with pytest.raises(ValueError, match=r"one round.*mai_cascade.*without _s2"):
        filtered(tasks.chat[name], [response])
