"""The page of a report in Chromium: figures, filters, samples, hostile texts, light and dark, and no request."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.pages import HOSTILE

from lmms_eval_mai.reports.build import of_runs
from lmms_eval_mai.reports.page import page
from lmms_eval_mai.reports.page.images import Images
from lmms_eval_mai.reports.runs import Runs

pytestmark = pytest.mark.slow
Page = Any


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A browser for all tests of this file."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (the extra dev)")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("Chromium is not installed (Debian: apt-get install chromium)")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def file(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page, with an image of the first document."""
    from PIL import Image

    images = Images()
    images.add("pope", 0, [Image.new("RGB", (40, 30), "red")])
    path = tmp_path_factory.mktemp("page") / "report.html"
    page.write(path, of_runs(runs), runs, images)
    return path


@pytest.fixture(scope="module")
def open_page(chromium: Any, file: Path) -> Iterator[Callable[..., Page]]:
    """Open the page. At the end, no page may have had an error, a message on the console or a request."""
    problems: list[str] = []
    contexts = []

    def open_(**settings: Any) -> Page:
        context = chromium.new_context(reduced_motion="reduce", **settings)
        contexts.append(context)
        opened = context.new_page()
        opened.on("console", lambda message: problems.append(f"console: {message.text}"))
        opened.on("pageerror", lambda error: problems.append(f"error: {error}"))
        opened.on("request", lambda one: one.url.startswith("file:") or problems.append(f"request: {one.url}"))
        opened.goto(file.as_uri())
        opened.wait_for_selector("body[data-ready=all]")
        return opened

    yield open_
    for context in contexts:
        context.close()
    assert problems == []


@pytest.fixture(scope="module")
def shown(open_page: Callable[..., Page]) -> Page:
    """A page that the tests share."""
    return open_page()


def until(opened: Page, condition: str) -> None:
    """Wait until a condition holds in the page. The policy of the page refuses `wait_for_function`, which uses eval."""
    for _ in range(200):
        if opened.evaluate(condition):
            return
        opened.wait_for_timeout(50)
    raise AssertionError(condition)


def choose(opened: Page, **filters: str) -> int:
    """Set all filters and return the number of samples that they leave."""
    wanted = {"task": "POPE", "method": "MAI 8B + 2B-R"} | filters
    opened.evaluate("wanted => showSamples(wanted)", wanted)
    return int(opened.evaluate("page.found.length"))


def test_a_click_on_the_flow_lists_its_samples(shown: Page, runs: Runs) -> None:
    (run,) = runs.of("cascade", "pope")
    assert shown.locator("#card-flow path.sankey-link").count() == 4
    choose(shown, task="shapes", effect="harm")
    shown.evaluate("byId('card-flow').scrollIntoView()")
    box = shown.locator("#card-flow .node-rect").last.bounding_box()
    shown.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    until(shown, "form().exit.value === 'transfer' && form().effect.value === ''")
    until(shown, f"page.found.length === {int((run.samples.exit == 'transfer').sum())}")


def test_each_figure_is_drawn_with_its_numbers_in_its_description_and_in_a_list(shown: Page) -> None:
    for key in ("flow", "points", "rules"):
        card = shown.locator(f"#card-{key}")
        assert card.locator(".main-svg").count() >= 1, key
        words, label = card.locator("li").all_text_contents(), card.locator(".chart").get_attribute("aria-label")
        assert words and all(one in label for one in words)


@pytest.mark.long
def test_a_browser_that_cannot_decompress_gets_a_sentence(chromium: Any, file: Path) -> None:
    opened = chromium.new_page()
    opened.add_init_script("delete window.DecompressionStream")
    opened.goto(file.as_uri())
    assert "Firefox 113" in opened.locator("#too-old").text_content() and opened.locator("#too-old").is_visible()
    assert opened.locator("#table-methods").is_visible()
    opened.close()


def test_filters_leave_the_samples_that_the_report_counts(shown: Page, runs: Runs) -> None:
    (run,) = runs.of("cascade", "pope")
    assert choose(shown) == run.documents == 60
    wrong = (run.samples.exit == "transfer") & (run.samples.score == 0)
    assert choose(shown, exit="transfer", answer="wrong") == wrong.sum() > 0
    assert choose(shown, exit="check_failed") == run.samples.exit.isin(("agree_think", "transfer")).sum()
    assert choose(shown, task="shapes", effect="harm") == choose(shown, task="shapes", effect="rescue") == 1


def test_a_sample_shows_its_image_its_checks_and_its_calls(shown: Page) -> None:
    choose(shown)
    shown.locator("#list .row").first.click()
    shown.wait_for_selector("#detail img")
    assert shown.locator("#detail img").evaluate("one => one.decode().then(() => one.naturalWidth)") == 40
    choose(shown, task="shapes", effect="rescue")
    shown.locator("#list .row").first.click()
    until(shown, "byId('detail').textContent.includes('small.simple and large.simple: circle and square do not agree')")
    assert [one.partition(":")[0] for one in shown.locator("#detail .call .note").all_text_contents()] == [
        "small model, simple",
        "large model, simple",
        "small model, think",
        "large model, transfer",
    ]


def test_hostile_texts_are_shown_as_they_are(shown: Page) -> None:
    choose(shown, task="shapes")
    shown.locator("#list .row").last.click()
    until(shown, "byId('detail').querySelector('pre') !== null")
    assert shown.locator("#detail pre").first.text_content().startswith(HOSTILE[:-1])
    shown.select_option("#card-points select", label="shapes, output tokens of both models")
    until(shown, "byId('card-points').querySelector('.chart').textContent.includes('<img sr')")
    assert shown.evaluate("window.hacked") is None
    assert shown.locator("img[src=x]").count() == 0


@pytest.mark.long
def test_light_and_dark_follow_the_system_and_the_button(open_page: Callable[..., Page]) -> None:
    opened = open_page(color_scheme="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    dark = opened.evaluate(background)
    opened.locator("#theme").click()
    assert (opened.evaluate(background), dark) == ("rgb(255, 255, 255)", "rgb(20, 23, 26)")
    ink = "getComputedStyle(document.querySelector('#card-points .xtick text')).fill"
    until(opened, f"{ink} === 'rgb(29, 33, 38)'")


@pytest.mark.long
def test_a_phone_needs_no_horizontal_scrolling(open_page: Callable[..., Page]) -> None:
    opened = open_page(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    assert opened.evaluate("document.documentElement.scrollWidth") == 390
