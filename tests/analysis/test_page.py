"""The page of a report: its data, texts that try to break out, images, and how it looks and filters in Chromium."""

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
from pyarrow import parquet
from support.folders import POPE, World, edit, pope_world
from support.pair import Answers
from support.tables import row_of

from lmms_eval_mai.analysis.runs.runs import Runs
from lmms_eval_mai.analysis.tables import build, page, thumbnails
from lmms_eval_mai.analysis.tables.figure import score_over_price
from lmms_eval_mai.analysis.tables.samples import right_of, samples, shown_runs
from lmms_eval_mai.analysis.tables.thumbnails import load_images
from lmms_eval_mai.plugin import task_dir

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


def test_samples_have_question_answers_exit_checks_score_and_every_call(tmp_path: Path) -> None:
    POPE.write(tmp_path, "mai")
    (run,) = shown_runs(Runs.read([tmp_path]))
    shown = json.loads(gzip.decompress(base64.b64decode(page.pack(samples(run, {3: 7})))))["samples"]
    assert [one["exit"] for one in shown] == ["agree_short", "agree_think", "transfer", "transfer"]
    assert [one["answer"] for one in shown] == ["right", "right", "right", "wrong"]
    assert [one["image"] for one in shown] == [None, None, None, 7]
    last = shown[3]
    assert (last["doc_id"], last["question"]) == (3, "A question?")
    assert last["facts"] == {"gold answer": "no", "scored answer": "yes", "score": "0"}
    assert last["checks"] == [
        "✗ agree_short: small S no answer, large S “no”",
        "✗ agree_think: small R “yes”, large S “no”",
        "✓ transfer: no check, always taken",
    ]
    assert [(call["about"], call["text"]) for call in last["calls"]] == [
        ("small S: 4 tokens, 0.250 s; no answer", ""),
        ("large S: 4 tokens, 0.250 s; answer: no", "no"),
        ("small R: 100 tokens, 0.250 s; answer: yes", "Thinking. [[yes]]"),
        ("large transfer: 5 tokens, 0.250 s; answer: yes", "yes"),
    ]


def test_a_check_by_confidence_shows_the_probability_and_the_threshold(tmp_path: Path) -> None:
    unsure = [replace(one, probability=0.25) for one in POPE.documents]
    replace(POPE, documents=[*POPE.documents[:1], *unsure[1:]]).write(tmp_path, "mai_confidence")
    (run,) = shown_runs(Runs.read([tmp_path]))
    sure, unsure_one, *_ = samples(run, {})["samples"]
    assert sure["checks"] == ["✓ confident: large S “yes” with probability 1.000, threshold 0.9"]
    assert unsure_one["checks"] == [
        "✗ confident: large S “no” with probability 0.250, threshold 0.9",
        "✓ agree_think: small R “no”, large S “no”",
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


def test_the_only_address_outside_of_the_page_is_that_of_the_paper(file: Path) -> None:
    without_blocks = re.sub(r'<script type="application/gzip".*?</script>', "", file.read_text(), flags=re.DOTALL)
    assert "default-src 'none'" in without_blocks
    assert set(re.findall(r"""(?:https?:)?//[\w.]+\.\w+[^\s"'<]*""", without_blocks)) == {
        "https://arxiv.org/abs/2604.04929"
    }


def test_the_script_never_writes_html() -> None:
    text = (page.FOLDER / "page.js").read_text()
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", text)


@pytest.mark.parametrize("wall_s", [None, 1.0])
def test_the_figure_has_the_numbers_of_the_table_in_words_from_the_cheapest_method_on(
    tmp_path: Path, wall_s: float | None
) -> None:
    """The price is in seconds if all methods have them, else in output tokens of the large model."""
    for number, method in enumerate(("mai", "full_rt", "large", "small")):
        POPE.write(tmp_path, method, time=f"20260101_0000{number:02d}", wall_s=wall_s and wall_s + number)
    if wall_s is None:  # another run made a call of the first run, so that it has no seconds
        edit(tmp_path, lambda line, _: line["token_counts"][0]["calls"][0].update(shared=True), "20260101_000000")
    runs = Runs.read([tmp_path])
    row = row_of(build.report(runs, ()).table("methods"), "POPE", "MAI")
    price = f"{row['wall s']:.3g} s" if wall_s else f"{row['large tokens']:.1f} large tokens"
    words = [point["words"] for point in score_over_price(runs, "pope")["points"]]
    assert f"MAI: {row['score'].shown(1)} for {price}" in words
    prices = [float(re.search(r" for ([\d.]+) [a-z ]+$", one)[1]) for one in words]
    assert prices == sorted(prices) and len(prices) == 4
    assert prices[0] == (0.25 if wall_s else 0)  # a small model alone has no tokens of the large one


def test_each_document_gets_the_image_of_its_task_until_the_bytes_are_used_and_none_of_another_data_set(
    tmp_path: Path, monkeypatch: Any
) -> None:
    file, told = task_dir() / "shapes" / "test.parquet", []
    golds = parquet.read_table(file, columns=["answer"])["answer"].to_pylist()[:5]
    for name, last in (("same", golds[4]), ("other", "something else")):
        World("shapes", [Answers(*5 * [gold]) for gold in (*golds[:4], last)]).write(tmp_path / name, "mai")
    same, other = (Runs.read([tmp_path / name]) for name in ("same", "other"))
    images = load_images(same, told.append)["shapes"]
    assert [*images] == [0, 1, 2, 3, 4] and len(set(images.values())) == 5
    assert max(Image.open(io.BytesIO(base64.b64decode(images[0]))).size) <= thumbnails.SIDE
    assert load_images(other, told.append) == {}
    monkeypatch.setattr(thumbnails, "BYTES", len(images[0]) + len(images[1]))
    assert [*load_images(same, told.append)["shapes"]] == [0, 1]
    another, few = told
    assert few == "shapes: 2 of 5 documents have an image in the page."
    assert "document 4 of task shapes_s has another gold answer than in the run." in another


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
    shown.select_option("#run", label=f"POPE: {runs.name(run.setup)}")
    expect(shown.locator("#number")).to_have_text("60 of 60 samples")
    shown.select_option("#exit", "transfer")
    shown.select_option("#answer", "wrong")
    expect(shown.locator("#number")).to_have_text(f"{wrong.sum()} of 60 samples")
    assert shown.locator("#list details").count() == wrong.sum() > 0
    right = right_of(runs, "pope")
    mai, large = right[runs.name(run.setup)], right[runs.name(run.setup.short_answers("large"))]
    shown.select_option("#exit", "")
    shown.select_option("#answer", f"{runs.name(run.setup.short_answers('large'))} right, this wrong")
    lost = [document for document in mai if large[document] and not mai[document]]
    expect(shown.locator("#number")).to_have_text(f"{len(lost)} of 60 samples")
    assert [one.split(" ")[0] for one in shown.locator("#list summary").all_text_contents()] == [
        f"#{one}" for one in lost
    ]
    shown.fill("#text", "no such text")
    expect(shown.locator("#number")).to_have_text("0 of 60 samples")


@pytest.mark.slow
def test_a_sample_shows_its_image_and_its_calls_and_hostile_texts_as_they_are(shown: Any, runs: Runs) -> None:
    from playwright.sync_api import expect

    pope, shapes = (runs.name(run.setup) for run in runs.select("cascade"))
    shown.select_option("#run", label=f"POPE: {pope}")
    shown.locator("#list summary").first.click()
    assert shown.locator("#list img").evaluate("one => one.decode().then(() => one.naturalWidth)") == 40
    shown.select_option("#run", label=f"shapes: {shapes}")
    expect(shown.locator("#number")).to_have_text("1 of 1 samples")
    shown.locator("#list summary").click()
    assert shown.locator("#list pre").first.text_content().startswith(HOSTILE[:-1])
    assert shown.locator("#list h4").count() == 3
    assert shown.evaluate("window.hacked") is None
    assert shown.locator("img[src=x]").count() == 0
