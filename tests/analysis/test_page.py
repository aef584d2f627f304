"""The page of a report: its data, texts that try to break out, images, and how it looks and filters in Chromium."""

import base64
import gzip
import hashlib
import html
import io
import json
import re
import resource
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from pyarrow import parquet
from support.folders import POPE, Answers, World, edit, pope_world
from support.tables import row_of

from lmms_eval_mai.analysis.intervals import Estimate
from lmms_eval_mai.analysis.report import Column, Table
from lmms_eval_mai.analysis.runs.runs import Runs
from lmms_eval_mai.analysis.tables import build, page, thumbnails
from lmms_eval_mai.analysis.tables.figure import score_over_price, ticks
from lmms_eval_mai.analysis.tables.samples import right_of, samples, shown_runs
from lmms_eval_mai.analysis.tables.thumbnails import load_images
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.method.methods import METHODS
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


# --- the file -----------------------------------------------------------------------------------------


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


def test_every_named_method_has_a_check_for_each_exit_up_to_the_one_that_was_taken(tmp_path: Path) -> None:
    for place, (name, suffix) in enumerate((name, suffix) for name in METHODS for suffix in ("s", "r", "r_s2")):
        pope_world(20).write(tmp_path, name, suffix, time=f"20260101_0000{place:02d}")
    for run in shown_runs(Runs.read([tmp_path])):
        exits = run.setup.method.exits
        for sample in samples(run, {})["samples"]:
            taken = [check.partition(":")[0] for check in sample["checks"]]
            assert (len(exits) == 1 and not taken) or taken[-1] == f"✓ {sample['exit']}"
            assert [one[2:] for one in taken] == list(exits[: len(taken)])


def test_format_sentences_that_questions_share_are_left_out_and_options_are_not(tmp_path: Path) -> None:
    questions, endings = ["How many?", "Which one?", "Which?\nA. 1", "What?"], ["Use a word.", "Use a letter."]
    inputs = [f"{question}\n{endings[number > 1]}" for number, question in enumerate(questions)]
    documents = [replace(POPE.documents[0], fields=(("input", text),)) for text in inputs]
    for number, expected in ((4, (endings, questions)), (3, ([], inputs[:3]))):  # two questions share an ending, or one
        replace(POPE, documents=documents[:number]).write(tmp_path / str(number), "mai")
        shown = samples(*shown_runs(Runs.read([tmp_path / str(number)])), {})
        assert (shown["endings"], [one["question"] for one in shown["samples"]]) == expected


def test_the_samples_begin_with_the_method_of_the_paper_and_know_who_is_right(tmp_path: Path) -> None:
    for place, method in enumerate(("large", "mai_confidence", "mai", "own_thinking", "full_rt")):
        POPE.write(tmp_path, method, time=f"20260101_0000{place:02d}")
    runs = Runs.read([tmp_path])
    assert next(run.setup.method.name for run in shown_runs(runs)) == "mai"
    right = {run.setup: right_of(runs, "pope")[runs.name(run.setup)] for run in runs.select()}
    (mai,) = [run for run in runs.select("cascade") if run.setup.method.name == "mai"]
    assert right[mai.setup] == {0: True, 1: True, 2: True, 3: False}
    assert right[mai.setup.short_answers("large")] == {0: True, 1: True, 2: False, 3: True}


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
    points = score_over_price(runs, "pope")["points"]
    row = row_of(build.report(runs, ()).table("methods"), "POPE", "MAI")
    price = f"{row['wall s']:.3g} s" if wall_s else f"{row['large tokens']:.1f} large tokens"
    words = [point["words"] for point in points]
    assert f"MAI: {row['score'].shown(1)} for {price}" in words
    prices = [float(re.search(r" for ([\d.]+) [a-z ]+$", one)[1]) for one in words]
    assert prices == sorted(prices) and len(prices) == 4
    assert prices[0] == (0.25 if wall_s else 0)  # a small model alone has no tokens of the large one
    assert [one["x"] for one in points] == sorted(one["x"] for one in points)
    assert all(one["interval"][1] <= one["y"] <= one["interval"][0] for one in points)  # y grows downwards


@pytest.mark.parametrize(
    ("values", "expected"), [([0, 0], [0, 20]), ([100, 100], [80, 100]), ([41, 59], [40, 60]), ([40, 60], [20, 80])]
)
def test_an_axis_has_ticks_around_all_values(values: list[float], expected: list[float]) -> None:
    chosen = ticks(values, range(0, 101, 20))
    assert [chosen[0], chosen[-1]] == expected


def test_a_table_has_no_column_with_one_value_in_every_row_and_one_column_of_names() -> None:
    types = {"benchmark": "text", "method": "text", "exit": "text", "n": "count", "score": "percent"}
    columns = tuple(Column(title, kind, 1, lambda row: None) for title, kind in types.items())
    score = Estimate(90.0, 4, 80.0, 95.0)
    rows = (("shapes", "MAI", "agree_short", 4, score), ("shapes", "Full RT", "transfer", 4, None))
    shown = page.shown_table(Table("exits", "By exit", columns, rows, ("A note.",)))
    assert [column.title for column in shown["columns"]] == ["exit", "score"]
    cells = [[("agree_short", ""), ("90.0", "80.0 to 95.0")]], [[("transfer", ""), ("", "")]]
    assert shown["groups"] == [("MAI", cells[0]), ("Full RT", cells[1])]
    assert (shown["title"], shown["notes"]) == ("By exit (shapes, n = 4)", ("A note.",))
    alone = page.shown_table(Table("exits", "", columns, rows[:1]))
    assert [column.title for column in alone["columns"]] == ["exit", "n", "score"]


def test_a_full_disk_leaves_the_page_that_was_there(file: Path, runs: Runs) -> None:
    before, limits = file.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))  # no file may have more than 4 KiB
    try:
        with pytest.raises(ArgumentError, match="--html"):
            page.write(file, build.report(runs, ()), runs, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert file.read_bytes() == before and [*file.parent.iterdir()] == [file]


# --- its images, from the data sets of the tasks -------------------------------------------------------


def runs_of(golds: list[str], folder: Path) -> Runs:
    World("shapes", [Answers(gold, gold, gold, gold, gold) for gold in golds]).write(folder, "mai")
    return Runs.read([folder])


@pytest.fixture(scope="module")
def golds() -> list[str]:
    """The right answers of the first documents of shapes."""
    file = task_dir() / "shapes" / "test.parquet"
    return list(parquet.read_table(file, columns=["answer"])["answer"].to_pylist()[:5])


def test_each_document_gets_the_image_of_its_task_until_the_bytes_are_used(
    golds: list[str], tmp_path: Path, monkeypatch: Any
) -> None:
    told: list[str] = []
    finished = runs_of(golds, tmp_path)
    images = load_images(finished, told.append)["shapes"]
    assert [*images] == [0, 1, 2, 3, 4] and len(set(images.values())) == 5
    assert max(Image.open(io.BytesIO(base64.b64decode(images[0]))).size) <= thumbnails.SIDE
    assert told == []
    monkeypatch.setattr(thumbnails, "BYTES", len(images[0]) + len(images[1]))
    assert [*load_images(finished, told.append)["shapes"]] == [0, 1]
    assert told == ["shapes: 2 of 5 documents have an image in the page."]


def test_a_run_on_another_data_set_gets_no_images_and_a_sentence(golds: list[str], tmp_path: Path) -> None:
    told: list[str] = []
    assert load_images(runs_of([*golds[:4], "something else"], tmp_path), told.append) == {}
    assert "document 4 of task shapes_s has another gold answer than in the run." in told[0]


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
    assert [one.partition(":")[0] for one in shown.locator("#list h4").all_text_contents()] == [
        "small S",
        "large S",
        "small R",
    ]
    assert shown.evaluate("window.hacked") is None
    assert shown.locator("img[src=x]").count() == 0
