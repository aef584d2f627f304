"""The data behind the page of a report, without a browser."""

import base64
import gzip
import html
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from support.folders import POPE
from support.tables import row_of

from lmms_eval_mai.cli.report import wanted
from lmms_eval_mai.errors import MaiError
from lmms_eval_mai.reports import build
from lmms_eval_mai.reports.build import of_evidence
from lmms_eval_mai.reports.evidence import Evidence
from lmms_eval_mai.reports.page import page
from lmms_eval_mai.reports.page.figures import charts
from lmms_eval_mai.reports.page.images import BUDGET, Images
from lmms_eval_mai.reports.page.sample_data import Texts, effects, sample_blocks, sample_runs
from lmms_eval_mai.reports.report import Estimate, Report

Blocks = dict[str, Any]


@pytest.fixture(scope="module")
def report(evidence: Evidence) -> Report:
    return of_evidence(evidence)


@pytest.fixture(scope="module")
def written(report: Report, evidence: Evidence) -> str:
    return page.html(report, evidence)


def unpack(block: str) -> Any:
    """Return the value of a block."""
    return json.loads(gzip.decompress(base64.b64decode(block)))


def blocks_of(evidence: Evidence) -> Blocks:
    return {name: unpack(block) for name, block in sample_blocks(evidence)}


# --- samples ------------------------------------------------------------------------------------------


def test_samples_have_question_answers_exit_score_and_every_call(tmp_path: Path) -> None:
    POPE.write(tmp_path, "cascade")
    found = blocks_of(build.evidence([tmp_path]))
    index, calls, texts = found["index"], found["calls-0"], found["texts-0"]
    (run,) = index["runs"]
    columns, words = run["columns"], index["words"]
    assert (run["key"], run["benchmark"], run["mode"]) == ("POPE-MAI-8B-2B-R", "POPE", "cascade")
    assert [words[number] for number in columns["gold"]] == ["yes", "no", "yes", "no"]
    assert {words[number] for number in columns["question"]} == {"A question?"}
    assert columns["exit"] == ["agree_short", "agree_think", "transfer", "transfer"]
    assert (columns["score"], columns["tokens"]) == ([1, 1, 1, 0], [8, 108, 113, 113])
    assert calls["marks"][3] == "ss-ls-sh-lt-"
    assert [texts[number] for number in calls["text"][3]] == ["", "no", "Thinking. [[yes]]", "yes"]
    assert calls["ms"] == [[250] * number for number in (2, 3, 4, 4)]
    yes, no = words.index("yes"), words.index("no")
    assert calls["verifications"] == [
        [yes, yes, 1],
        [yes, no, 0, no, no, 1],
        [yes, no, 0, yes, no, 0],
        [-1, no, 0, yes, no, 0],
    ]


def test_harm_and_rescue_are_counted_as_in_the_table(report: Report, evidence: Evidence) -> None:
    table = report.table("harm-and-rescue")
    checked = 0
    for run in [*evidence.of("cascade"), *evidence.of("transfer")]:
        name = {"pope": "POPE"}.get(run.benchmark, run.benchmark)
        found = list(effects(evidence, run).values())
        if run.benchmark == "shapes" and run.method.mode == "transfer":  # no documents in common with large S
            assert not found and all(one[:2] != (name, evidence.name(run.method)) for one in table.rows)
            continue
        row = row_of(table, name, evidence.name(run.method))
        assert (found.count("harm"), found.count("rescue")) == (row["of these lost"], row["of these won"])
        checked += len(found)
    assert checked > 5


def test_a_text_of_several_runs_is_stored_once(evidence: Evidence) -> None:
    found = blocks_of(evidence)
    texts = [text for name, block in found.items() if name.startswith("texts-") for text in block]
    assert len(texts) == len(set(texts)) > 5


def test_texts_are_cut_into_chunks_that_keep_their_numbers() -> None:
    texts = Texts()
    assert [texts.number(text) for text in ("first", "second", "first", "third", None)] == [0, 1, 0, 2, -1]
    assert texts.chunks(10) == [["first", "second"], ["third"]]


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
    assert found == set()


def test_the_scripts_never_write_html() -> None:
    for file in page.ASSETS.glob("*.js"):
        assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", file.read_text()), (
            file
        )


def test_every_table_is_in_the_page_with_numbers_to_sort_by(written: str, report: Report) -> None:
    for table in report.tables:
        assert f'id="table-{table.key}"' in written
    assert written.count("<table>") == written.count("<caption>") > len(report.tables)
    score = report.table("methods").rows[0][3]
    assert isinstance(score, Estimate) and f'data-sort="{score.value!r}"' in written


def test_the_numbers_of_each_figure_are_in_words(report: Report, evidence: Evidence) -> None:
    words = {(one["card"], one["benchmark"]): one["numbers"] for one in charts(report, evidence)}
    row = row_of(report.table("methods"), "POPE", "MAI 8B + 2B-R")
    score = row["score"]
    shown = f"MAI 8B + 2B-R: score {score.shown()}, {row['output tokens']:.3g} output"
    assert any(one.startswith(shown) for one in words["tokens", "pope"])
    (run,) = evidence.of("cascade", "pope")
    by_exit = {exit: run.samples[run.samples.exit == exit] for exit in ("agree_short", "transfer")}
    for exit, documents in by_exit.items():
        right = 100 * documents.score.sum() / len(documents)
        sentence = f"{exit}, {len(documents)} ({100 * len(documents) / 60:.1f}%), {right:.1f}% right"
        assert sentence in words["flow", "pope"] and f"POPE MAI R: {sentence}" in words["exits", ""]
    assert len(words["differences", "pope"]) == 3


def test_runs_without_samples_make_a_page_with_their_scores(tmp_path: Path) -> None:
    file = POPE.write(tmp_path, "small", metrics={"pope_f1_score": 0.5})
    next(tmp_path.glob("*_samples_*")).unlink()
    evidence = build.evidence([file])
    written = page.html(of_evidence(evidence), evidence)
    assert "No cascade with token counts is among these runs" in written and "has no samples file" in written


def test_a_missing_library_is_an_error_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MaiError, match=r'pip install "lmms-eval-mai\[report\]"'):
        page.check_installed()


# --- images -------------------------------------------------------------------------------------------


def test_equal_images_are_stored_once_large_ones_are_reduced_and_those_beyond_the_budget_left_out() -> None:
    images = Images()
    red, blue = (Image.new("RGB", (800, 400), colour) for colour in ("red", "blue"))
    assert images.add("pope", 0, [red]) and images.add("pope", 1, [blue, red.copy()])
    assert images.of == {"pope": {0: [0], 1: [1, 0]}} and len(images.data) == 2
    assert Image.open(io.BytesIO(base64.b64decode(images.data[0]))).size == (384, 192)
    full = Images(size=BUDGET)
    assert not full.add("pope", 0, [red]) and (full.of, full.data) == ({}, [])


def test_documents_that_a_transfer_changed_get_their_images_first(evidence: Evidence) -> None:
    runs = sample_runs(evidence)
    orders = {name: wanted(evidence, [run for run in runs if run.benchmark == name]) for name in ("pope", "shapes")}
    assert sorted(orders["shapes"]) == [0, 1, 2, 3] and orders["shapes"][:2] == [1, 2]
    (run,) = [one for one in evidence.of("cascade", "pope")]
    changed = effects(evidence, run)
    assert changed and set(orders["pope"][: len(changed)]) == set(changed)
    assert len(orders["pope"]) == 60
