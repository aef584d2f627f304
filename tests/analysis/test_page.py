"""The page of a report: its data, texts that try to break out, and how it looks and filters in Chromium."""

import base64
import gzip
import hashlib
import html
import io
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from support.folders import POPE, Answers, World
from support.tables import row_of
from support.worlds import pope_world

from lmms_eval_mai.analysis.runs.runs import Runs
from lmms_eval_mai.analysis.tables import build, page

HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>\ud83d"
"""Half a character at the end, too."""
SHAPES = World("shapes", [Answers("4", HOSTILE, "4", "4", "4", fields=(("input", HOSTILE),))])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Runs on 60 documents of POPE, and on one of shapes with hostile texts and the hostile name of a model."""
    folder = tmp_path_factory.mktemp("runs")
    for place, method in enumerate(("mai", "full_rt", "small", "large")):
        pope_world(60).write(folder, method, time=f"20260101_0000{place:02d}")
    SHAPES.write(folder, "mai", time="20260101_000010")
    hostile = replace(SHAPES, large="org/<img src=x onerror='window.hacked = 1'>")
    hostile.write(folder, "large", time="20260101_000011")
    return Runs.read([folder])


@pytest.fixture(scope="module")
def file(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page, with an image of the first document."""
    image = io.BytesIO()
    Image.new("RGB", (40, 30), "red").save(image, "WEBP")
    path = tmp_path_factory.mktemp("page") / "report.html"
    page.write(path, build.report(runs, ()), runs, {"pope": {0: base64.b64encode(image.getvalue()).decode()}})
    return path


# --- the file -----------------------------------------------------------------------------------------


def test_samples_have_question_answers_exit_score_and_every_call(tmp_path: Path) -> None:
    POPE.write(tmp_path, "mai")
    (run,) = page.shown_runs(Runs.read([tmp_path]))
    samples = json.loads(gzip.decompress(base64.b64decode(page.pack(page.samples(run, {3: 7})))))
    assert [one["exit"] for one in samples] == ["agree_short", "agree_think", "transfer", "transfer"]
    assert [one["answer"] for one in samples] == ["right", "right", "right", "wrong"]
    assert [one["image"] for one in samples] == [None, None, None, 7]
    last = samples[3]
    assert (last["doc_id"], last["question"]) == (3, "A question?")
    assert last["facts"] == {"gold answer": "no", "scored answer": "yes", "score": "0"}
    assert [(call["about"], call["text"]) for call in last["calls"]] == [
        ("small model, simple: 4 tokens, 0.250 s; no answer", ""),
        ("large model, simple: 4 tokens, 0.250 s; answer: no", "no"),
        ("small model, think: 100 tokens, 0.250 s; answer: yes", "Thinking. [[yes]]"),
        ("large model, transfer: 5 tokens, 0.250 s; answer: yes", "yes"),
    ]


def test_hostile_texts_neither_end_a_script_nor_add_an_element(file: Path) -> None:
    written = file.read_text()
    scripts = re.findall(r"<script[^>]*>", written)
    assert len(scripts) == written.count("</script>") == written.count("<script")
    assert [one for one in scripts if "application/gzip" not in one] == ["<script>"]
    script = re.findall(r"<script>(.*?)</script>", written, flags=re.DOTALL)[0]
    assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in written  # no other script may run
    assert not re.findall(r"<img\b", written)
    assert html.escape("<img src=x onerror='window.hacked = 1'>") in written.replace("&#39;", "&#x27;")


def test_the_page_has_no_address_outside_itself(file: Path) -> None:
    without_blocks = re.sub(r'<script type="application/gzip".*?</script>', "", file.read_text(), flags=re.DOTALL)
    assert "default-src 'none'" in without_blocks
    assert set(re.findall(r"""(?:https?:)?//[\w.]+\.\w+[^\s"'<]*""", without_blocks)) == set()


def test_the_script_never_writes_html() -> None:
    text = (page.FOLDER / "page.js").read_text()
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", text)


def test_the_figure_has_the_numbers_of_the_table_in_words_and_in_their_order(runs: Runs) -> None:
    chart = page.score_over_tokens(runs, "pope")
    row = row_of(build.report(runs, ()).table("methods"), "POPE", "MAI 8B + 2B")
    words = [point["words"] for point in chart["points"]]
    tokens = row["small tokens"] + row["large tokens"]
    assert f"MAI 8B + 2B: score {row['score'].shown(1)}, {tokens:.1f} output tokens" in words
    points = [(float(re.search(r", ([\d.]+) output", one["words"])[1]), one) for one in chart["points"]]
    assert [one["x"] for _, one in sorted(points, key=lambda pair: pair[0])] == sorted(one["x"] for _, one in points)
    assert all(one["interval"][1] <= one["y"] <= one["interval"][0] for _, one in points)  # y grows downwards


@pytest.mark.parametrize(
    ("values", "expected"), [([0, 0], [0, 20]), ([100, 100], [80, 100]), ([41, 59], [40, 60]), ([40, 60], [20, 80])]
)
def test_an_axis_has_ticks_around_all_values(values: list[float], expected: list[float]) -> None:
    ticks = page.ticks(values, range(0, 101, 20))
    assert [ticks[0], ticks[-1]] == expected


# --- in a browser -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (the extra dev)")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("Chromium is not installed (Debian: apt-get install chromium)")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(params=[400, 1280])
def shown(request: pytest.FixtureRequest, chromium: Any, file: Path) -> Iterator[Any]:
    """The page in a window of this width. It may have no error, no message on the console and no request."""
    problems: list[str] = []
    opened = chromium.new_page(viewport={"width": request.param, "height": 800})
    opened.on("console", lambda message: problems.append(f"console: {message.text}"))
    opened.on("pageerror", lambda error: problems.append(f"error: {error}"))
    opened.on("request", lambda one: one.url.startswith(("file:", "data:")) or problems.append(f"request: {one.url}"))
    opened.goto(file.as_uri())
    assert opened.evaluate("document.documentElement.scrollWidth") == request.param
    yield opened
    assert opened.evaluate("document.documentElement.scrollWidth") == request.param
    opened.close()
    assert problems == []


@pytest.mark.slow
def test_filters_leave_the_samples_that_the_report_counts(shown: Any, runs: Runs) -> None:
    from playwright.sync_api import expect

    (run,) = runs.select("cascade", benchmark="pope")
    wrong = (run.samples.exit == "transfer") & (run.samples.score == 0)
    shown.select_option("#run", label="POPE: MAI 8B + 2B")
    expect(shown.locator("#number")).to_have_text("60 of 60 samples")
    shown.select_option("#exit", "transfer")
    shown.select_option("#answer", "wrong")
    expect(shown.locator("#number")).to_have_text(f"{wrong.sum()} of 60 samples")
    assert shown.locator("#list details").count() == wrong.sum() > 0
    shown.fill("#text", "no such text")
    expect(shown.locator("#number")).to_have_text("0 of 60 samples")


@pytest.mark.slow
def test_a_sample_shows_its_image_and_its_calls_and_hostile_texts_as_they_are(shown: Any) -> None:
    from playwright.sync_api import expect

    shown.select_option("#run", label="POPE: MAI 8B + 2B")
    shown.locator("#list summary").first.click()
    assert shown.locator("#list img").evaluate("one => one.decode().then(() => one.naturalWidth)") == 40
    shown.select_option("#run", label="shapes: MAI 8B + 2B")
    expect(shown.locator("#number")).to_have_text("1 of 1 samples")
    shown.locator("#list summary").click()
    assert shown.locator("#list pre").first.text_content().startswith(HOSTILE[:-1])
    assert [one.partition(":")[0] for one in shown.locator("#list h4").all_text_contents()] == [
        "small model, simple",
        "large model, simple",
        "small model, think",
    ]
    assert shown.evaluate("window.hacked") is None
    assert shown.locator("img[src=x]").count() == 0
