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

from lmms_eval_mai.errors import MaiError
from lmms_eval_mai.reports import build
from lmms_eval_mai.reports.page import page
from lmms_eval_mai.reports.page.figures import charts
from lmms_eval_mai.reports.page.images import BUDGET, Images
from lmms_eval_mai.reports.page.samples import effects, sample_blocks
from lmms_eval_mai.reports.report import Report
from lmms_eval_mai.reports.runs import Runs


@pytest.fixture(scope="module")
def report(runs: Runs) -> Report:
    return build.of_runs(runs)


@pytest.fixture(scope="module")
def written(report: Report, runs: Runs) -> str:
    return page.html(report, runs)


def unpack(block: str) -> Any:
    """Return the value of a block."""
    return json.loads(gzip.decompress(base64.b64decode(block)))


# --- samples ------------------------------------------------------------------------------------------


def test_samples_have_question_answers_exit_score_checks_and_every_call(tmp_path: Path) -> None:
    POPE.write(tmp_path, "mai")
    found = {name: unpack(block) for name, block in sample_blocks(build.read([tmp_path]))}
    (run,), samples = found["runs"], found["samples-0"]
    assert (run["task"], run["method"]) == ("POPE", "MAI 8B + 2B-R")
    assert [one["gold"] for one in samples] == ["yes", "no", "yes", "no"]
    assert [one["exit"] for one in samples] == ["agree_short", "agree_think", "transfer", "transfer"]
    last = samples[3]
    assert (last["question"], last["score"], last["id"]) == ("A question?", 0, 3)
    assert [
        (call["side"], call["prompt"], call["text"], call["tokens"], call["seconds"]) for call in last["calls"]
    ] == [
        ("small", "simple", "", 4, 0.25),
        ("large", "simple", "no", 4, 0.25),
        ("small", "think", "Thinking. [[yes]]", 100, 0.25),
        ("large", "transfer", "yes", 5, 0.25),
    ]
    assert last["checks"] == [
        {"of": "small.simple and large.simple", "a": None, "b": "no", "agree": False},
        {"of": "small.think and large.simple", "a": "yes", "b": "no", "agree": False},
    ]


def test_harm_and_rescue_are_counted_as_in_the_table(report: Report, runs: Runs) -> None:
    table = report.table("harm-and-rescue")
    checked = 0
    for run in [*runs.of("cascade"), *runs.of("full_rt")]:
        name = {"pope": "POPE"}.get(run.benchmark, run.benchmark)
        found = list(effects(runs, run).values())
        if run.benchmark == "shapes" and run.setup.kind == "full_rt":  # no documents in common with large S
            assert not found and all(one[:2] != (name, runs.name(run.setup)) for one in table.rows)
            continue
        row = row_of(table, name, runs.name(run.setup))
        assert (found.count("harm"), found.count("rescue")) == (row["lost"], row["won"])
        checked += len(found)
    assert checked > 5


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
    assert 'id="table-rules"' in without_blocks  # also if the report lacks it
    assert set(re.findall(r"""(?:https?:)?//[\w.]+\.\w+[^\s"'<]*""", without_blocks)) == set()


def test_the_script_never_writes_html() -> None:
    text = (page.ASSETS / "page.js").read_text()
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", text)


def test_the_numbers_of_each_figure_are_in_words(report: Report, runs: Runs) -> None:
    words = {(one["card"], one["title"]): one["words"] for one in charts(report, runs)}
    row = row_of(report.table("methods"), "POPE", "MAI 8B + 2B-R")
    tokens = row["small tokens"] + row["large tokens"]
    shown = f"MAI 8B + 2B-R: score {row['score'].shown(1)}, {tokens:.3g} output tokens"
    assert any(one.startswith(shown) for one in words["points", "POPE, output tokens of both models"])
    assert ("points", "POPE, wall seconds") in words
    (run,) = runs.of("cascade", "pope")
    for exit in ("agree_short", "transfer"):
        documents = run.samples[run.samples.exit == exit]
        right = 100 * documents.score.sum() / len(documents)
        sentence = f"{exit}, {len(documents)} ({100 * len(documents) / 60:.1f}%), {right:.1f}% right"
        assert sentence in words["flow", "POPE, MAI 8B + 2B-R"]
    rules = {one.split(":")[0] for one in words["rules", "POPE, MAI 8B + 2B-R"]}
    assert any("method=mai" in one for one in rules)


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
