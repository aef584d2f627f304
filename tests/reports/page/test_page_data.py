"""The data behind the page of a report, without a browser."""

import base64
import dataclasses
import html
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.folders import POPE
from support.pages import HOSTILE, write_runs
from support.tables import row_of

from lmms_eval_mai.errors import MaiError
from lmms_eval_mai.reports import reading
from lmms_eval_mai.reports.build import of_evidence
from lmms_eval_mai.reports.evidence import Evidence
from lmms_eval_mai.reports.page import page
from lmms_eval_mai.reports.page.blocks import pack, unpack
from lmms_eval_mai.reports.page.headline import headlines, ratio
from lmms_eval_mai.reports.page.images import BUDGET, Images, wanted
from lmms_eval_mai.reports.page.occupancy import busy, in_flight, occupancy
from lmms_eval_mai.reports.page.sample_data import Texts, effects, sample_blocks
from lmms_eval_mai.reports.report import Estimate, Report

Blocks = dict[str, Any]


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    folder = tmp_path_factory.mktemp("runs")
    write_runs(folder, 20)
    return Evidence(reading.read([folder]).runs)


@pytest.fixture(scope="module")
def report(evidence: Evidence) -> Report:
    return of_evidence(evidence)


@pytest.fixture(scope="module")
def written(report: Report, evidence: Evidence) -> str:
    return page.html(report, evidence)


def blocks_of(evidence: Evidence) -> Blocks:
    return {name: unpack(block) for name, block in sample_blocks(evidence)}


# --- samples ------------------------------------------------------------------------------------------


def test_samples_have_question_answers_exit_score_and_every_call(tmp_path: Path) -> None:
    POPE.write(tmp_path, "cascade")
    found = blocks_of(Evidence(reading.read([tmp_path]).runs))
    index, calls, texts = found["index"], found["calls-0"], found["texts-0"]
    (run,) = index["runs"]
    columns, words = run["columns"], index["words"]
    assert (run["key"], run["benchmark"], run["mode"]) == ("POPE-MAI-8B-2B-R", "POPE", "cascade")
    assert [words[number] for number in columns["gold"]] == ["yes", "no", "yes", "no"]
    assert {words[number] for number in columns["question"]} == {"A question?"}
    assert (columns["exit"], columns["score"], columns["tokens"]) == (
        "abtt",
        [1, 1, 1, 0],
        [8, 108, 113, 113],
    )
    assert calls["calls"] == [2, 3, 4, 4] and calls["verifications"] == [1, 2, 2, 2]
    assert calls["marks"][-12:] == "ss-ls-sh-lt-"
    assert [texts[number] for number in calls["text"][-4:]] == ["", "no", "Thinking. [[yes]]", "yes"]
    assert calls["ms"] == [250] * 13
    assert calls["small"][-2] == -1 and words[calls["large"][-2]] == "no" and calls["agree"] == "ynynnnn"


def test_harm_and_rescue_are_counted_as_in_the_table(report: Report, evidence: Evidence) -> None:
    table = report.table("harm-and-rescue")
    checked = 0
    for run in [*evidence.of("cascade"), *evidence.of("transfer")]:
        name = {"pope": "POPE"}.get(run.benchmark, run.benchmark)
        found = list(effects(evidence, run).values())
        row = row_of(table, name, evidence.name(run.method))
        assert (found.count("h"), found.count("r")) == (row["of these lost"], row["of these won"])
        checked += len(found)
    assert checked > 5


def test_a_text_of_several_runs_is_stored_once(evidence: Evidence) -> None:
    found = blocks_of(evidence)
    texts = [text for name, block in found.items() if name.startswith("texts-") for text in block]
    assert len(texts) == len(set(texts)) > 5


def test_texts_are_cut_into_chunks_that_keep_their_numbers() -> None:
    texts = Texts(chunk=10)
    assert [texts.number(text) for text in ("first", "second", "first", "third")] == [0, 1, 0, 2]
    texts.close()
    assert ([unpack(chunk) for chunk in texts.chunks], texts.firsts) == ([["first", "second"], ["third"]], [0, 2])


def test_half_a_character_of_a_model_survives() -> None:
    assert unpack(pack([HOSTILE])) == [HOSTILE]


# --- the file -----------------------------------------------------------------------------------------


def test_hostile_texts_neither_end_a_script_nor_add_an_element(written: str) -> None:
    scripts = re.findall(r"<script[^>]*>", written)
    assert len(scripts) == written.count("</script>") == written.count("<script")
    assert len([one for one in scripts if "nonce=" in one]) == 1
    assert not re.findall(r"<img\b", written)
    assert html.escape("<img src=x onerror='window.hacked = 1'>-S") in written.replace("&#39;", "&#x27;")


def test_the_page_has_no_address_outside_itself(written: str) -> None:
    without_blocks = re.sub(r'<script type="application/gzip".*?</script>', "", written, flags=re.DOTALL)
    assert "default-src 'none'" in without_blocks
    found = set(re.findall(r"""(?:https?:)?//[\w.]+\.\w+[^\s"'<]*""", without_blocks))
    assert found == {"http://www.w3.org/2000/svg"}  # the name of a format


def test_the_scripts_never_write_html() -> None:
    for file in page.ASSETS.glob("*.js"):
        assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", file.read_text()), (
            file
        )


def test_every_table_is_in_the_page_with_numbers_to_sort_by(written: str, report: Report) -> None:
    for table in report.tables:
        assert f'id="table-{table.key}"' in written
    score = report.table("methods").rows[0][3]
    assert isinstance(score, Estimate) and f'data-sort="{score.value!r}"' in written


def test_runs_without_start_times_are_named(written: str) -> None:
    assert "The figure of both engines leaves out MAI 8B + 2B-R on shapes, Full RT 8B + 2B-R on POPE, " in written


def test_runs_without_samples_make_a_page_with_their_scores(tmp_path: Path) -> None:
    file = POPE.write(tmp_path, "small", metrics={"pope_f1_score": 0.5})
    next(tmp_path.glob("*_samples_*")).unlink()
    found = reading.read([file])
    evidence = Evidence(found.runs)
    written = page.html(of_evidence(evidence, found.gaps), evidence)
    assert "No cascade with token counts is among these runs" in written and "has no samples file" in written


def test_a_missing_library_is_an_error_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MaiError, match=r'pip install "lmms-eval-mai\[report\]"'):
        page.check_installed()


# --- the claim ----------------------------------------------------------------------------------------


def test_the_claim_has_score_tokens_and_the_difference_from_full_rt(report: Report, evidence: Evidence) -> None:
    first, shapes = headlines(evidence)
    assert first.method == "MAI 8B + 2B-R"
    row = row_of(report.table("methods"), "POPE", first.method)
    compared = row_of(report.table("mai-against-others"), "POPE", first.method, "Full RT 8B + 2B-R")
    full_rt = row_of(report.table("methods"), "POPE", "Full RT 8B + 2B-R")
    fewer = 1 - row["all tokens"] / full_rt["all tokens"]  # type: ignore[operator]
    score, difference = row["score"], compared["difference, points"]
    assert first.claim == (
        f"On POPE, MAI scores {score.value:.1f} (95% interval {score.low:.1f} to {score.high:.1f}) with "  # type: ignore
        f"{row['all tokens']:.1f} output tokens per question, {100 * fewer:.0f}% fewer than Full RT; the score differs "
        f"by {difference.value:+.1f} points (95% interval {difference.low:+.1f} to {difference.high:+.1f})."  # type: ignore
    )
    assert [one.partition(":")[0] for one in first.against] == ["Against 8B-S"]
    assert shapes.claim.startswith("On shapes, MAI scores 75.0 ")


@pytest.mark.parametrize(
    ("tokens", "others", "text"),
    [
        (14, 100, "86% fewer than"),
        (150, 100, "50% more than"),
        (100, 100.2, "as many as"),
        (410, 100, "4.1 times as many as"),
        (5, 0, "more than"),
    ],
)
def test_tokens_are_compared_in_words(tokens: float, others: float, text: str) -> None:
    assert ratio(tokens, others) == text


# --- occupancy ----------------------------------------------------------------------------------------


def test_calls_in_flight_are_averages_over_each_part_of_the_time() -> None:
    times = np.array([(0.0, 2.0), (1.0, 2.0), (3.0, 4.0)])
    assert in_flight(times, np.arange(5.0)) == [1, 2, 0, 1]
    assert in_flight(times, np.array([0.5, 1.5])) == [1.5]
    assert busy(times) == 3


def test_occupancy_needs_the_start_times_of_all_calls(evidence: Evidence) -> None:
    with_times, without = list(evidence.of("cascade"))
    found = occupancy(with_times)
    assert found is not None and occupancy(without) is None
    calls = [call for document in with_times.documents for call in document.calls]
    assert found["seconds"] == pytest.approx(0.25 * len(calls))
    busy_parts = [side["busy"] for side in found["sides"].values()]
    assert sum(busy_parts) == pytest.approx(1) and busy_parts[0] > busy_parts[1]
    assert sum(side["calls"] for side in found["sides"].values()) == len(calls)


def test_a_run_with_calls_of_other_runs_has_no_occupancy(evidence: Evidence) -> None:
    run = next(evidence.of("cascade"))
    first, *others = run.documents
    shared = dataclasses.replace(first.calls[0], shared=True, seconds=None, started_at=None)
    document = dataclasses.replace(first, calls=(shared, *first.calls[1:]))
    assert occupancy(dataclasses.replace(run, documents=(document, *others))) is None


# --- images -------------------------------------------------------------------------------------------


def test_equal_images_are_stored_once_and_large_ones_are_reduced() -> None:
    images = Images()
    red, blue = (Image.new("RGB", (800, 400), colour) for colour in ("red", "blue"))
    assert images.add("pope", 0, [red]) and images.add("pope", 1, [blue, red.copy()])
    assert images.of == {"pope": {0: [0], 1: [1, 0]}} and len(images.data) == 2
    assert Image.open(io.BytesIO(base64.b64decode(images.data[0]))).size == (384, 192)
    assert json.loads(json.dumps(images.packed()))["of"]["pope"]["1"] == [1, 0]


def test_images_beyond_the_budget_are_left_out() -> None:
    images = Images(size=BUDGET)
    assert not images.add("pope", 0, [Image.new("RGB", (8, 8))])
    assert (images.of, images.data) == ({}, [])


def test_documents_that_a_transfer_changed_get_their_images_first(evidence: Evidence) -> None:
    orders = dict(wanted(evidence))
    assert sorted(orders["shapes"]) == [0, 1, 2, 3] and orders["shapes"][:2] == [1, 2]
    (run,) = [one for one in evidence.of("cascade", "pope")]
    changed = effects(evidence, run)
    assert changed and set(orders["pope"][: len(changed)]) == set(changed)
    assert len(orders["pope"]) == 20
