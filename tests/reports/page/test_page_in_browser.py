"""The page of a report in Chromium: figures, filters, links, keys, sorting, hostile texts, and no request."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.pages import HOSTILE

from lmms_eval_mai.reports.build import of_evidence
from lmms_eval_mai.reports.evidence import Evidence
from lmms_eval_mai.reports.page import page
from lmms_eval_mai.reports.page.images import Images

pytestmark = pytest.mark.slow
Page = Any
MAI = "MAI 8B + 2B-R"


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
def file(evidence: Evidence, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page, with an image of the first document."""
    from PIL import Image

    images = Images()
    images.add("pope", 0, [Image.new("RGB", (40, 30), "red")])
    path = tmp_path_factory.mktemp("page") / "report.html"
    page.write(path, of_evidence(evidence), evidence, images)
    return path


@pytest.fixture(scope="module")
def open_page(chromium: Any, file: Path) -> Iterator[Callable[..., Page]]:
    """Open the page. At the end, no page may have had an error, a message on the console or a request."""
    problems: list[str] = []
    contexts = []

    def open_(link: str = "", **settings: Any) -> Page:
        context = chromium.new_context(**settings)
        contexts.append(context)
        opened = context.new_page()
        opened.on("console", lambda message: problems.append(f"console: {message.text}"))
        opened.on("pageerror", lambda error: problems.append(f"error: {error}"))
        opened.on("request", lambda one: one.url.startswith("file:") or problems.append(f"request: {one.url}"))
        opened.goto(file.as_uri() + link)
        opened.wait_for_selector("body[data-ready=all]")
        return opened

    yield open_
    for context in contexts:
        context.close()
    assert problems == []


@pytest.fixture(scope="module")
def shown(open_page: Callable[..., Page]) -> Page:
    """A page that the tests share. Each test sets all filters that it needs. Nothing moves after a click."""
    return open_page(reduced_motion="reduce")


def number(opened: Page) -> int:
    """Return how many samples the filters leave."""
    return int(opened.evaluate("byId('number').value").partition(" of ")[0].replace(",", ""))


def until(opened: Page, condition: str) -> None:
    """Wait until a condition holds in the page. The policy of the page refuses `wait_for_function`, which uses eval."""
    for _ in range(200):
        if opened.evaluate(condition):
            return
        opened.wait_for_timeout(50)
    raise AssertionError(condition)


def choose(opened: Page, **filters: str) -> None:
    """Set all filters and wait for the list."""
    wanted = {"task": "POPE", "method": MAI, "exit": "", "answer": "", "effect": "", "q": ""} | filters
    opened.evaluate("wanted => showSamples(wanted)", wanted)


EXITS_OF = {
    "documents": {"agree_short", "agree_think", "transfer"},
    "agree_short": {"agree_short"},
    "disagree": {"agree_think", "transfer"},
    "agree_think": {"agree_think"},
    "transfer": {"transfer"},
}


def point_on(opened: Page, elements: str, number: int) -> dict[str, float]:
    """Return a point of the window at which an element of the flow is the topmost one."""
    opened.evaluate("byId('card-flow').scrollIntoView()")
    found = opened.evaluate(
        """([elements, number]) => {
            const element = document.querySelectorAll(`#chart-flow ${elements}`)[number];
            const box = element.getBoundingClientRect();
            for (let i = 1; i < 20; i++) for (let j = 1; j < 20; j++) {
                const x = box.left + (i * box.width) / 20, y = box.top + (j * box.height) / 20;
                if (document.elementFromPoint(x, y) === element) return { x, y };
            }
            return null;
        }""",
        [elements, number],
    )
    assert found is not None, (elements, number)
    return dict(found)


@pytest.mark.parametrize(("elements", "count"), [(".node-rect", 5), ("path.sankey-link", 4)])
def test_a_click_on_each_node_and_each_band_lists_its_samples(
    shown: Page, evidence: Evidence, elements: str, count: int
) -> None:
    (run,) = evidence.of("cascade", "pope")
    assert shown.locator(f"#chart-flow {elements}").count() == count
    clicked = set()
    for number in range(count):
        choose(shown, task="shapes", effect="harm")
        name = shown.evaluate(
            """([elements, number]) => {
                const { node, link } = document.querySelectorAll(`#chart-flow ${elements}`)[number].__data__;
                return (node ?? link.target).label.split("<br>")[0].split(" ").at(-1);
            }""",
            [elements, number],
        )
        at = point_on(shown, elements, number)
        shown.mouse.click(at["x"], at["y"])
        until(shown, "byId('filters').elements.effect.value === ''")
        until(shown, f"byId('filters').elements.exit.value === '{'' if name == 'documents' else name}'")
        wanted = set(run.samples.index[run.samples.exit.isin(EXITS_OF[name])])
        until(shown, f"location.hash.includes('exit={name}')" if name != "documents" else "true")
        until(shown, f"browser.found.length === {len(wanted)}")
        listed = shown.evaluate("browser.found.map((sample) => [runOf(sample).key, listed(sample).id])")
        assert {key for key, _ in listed} == {"POPE-MAI-8B-2B-R"} and {doc_id for _, doc_id in listed} == wanted
        clicked.add(name)
    assert clicked == (set(EXITS_OF) if count == 5 else set(EXITS_OF) - {"documents"})


def test_a_click_on_a_part_of_the_exits_lists_its_samples(shown: Page, evidence: Evidence) -> None:
    (run,) = evidence.of("cascade", "shapes")
    shown.evaluate("byId('card-exits').scrollIntoView()")
    box = shown.locator("#chart-exits .trace").nth(2).locator(".point path").nth(1).bounding_box()
    shown.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    until(shown, "byId('filters').elements.exit.value === 'transfer'")
    assert shown.evaluate("filter().task") == "shapes"
    assert number(shown) == (run.samples.exit == "transfer").sum()


def test_each_figure_is_drawn_with_its_numbers_in_its_description_and_in_a_list(
    shown: Page, evidence: Evidence
) -> None:
    for key in ("flow", "tokens", "seconds", "differences", "exits", "rules"):
        assert shown.locator(f"#chart-{key} .main-svg").count() >= 1, key
    assert shown.locator("#chart-tokens .point").count() == 4
    (run,) = evidence.of("cascade", "pope")
    score = evidence.score(run)
    assert score is not None
    description = shown.locator("#chart-tokens").get_attribute("aria-label")
    assert (
        description.startswith("Score against output tokens. ") and f"{MAI}: score {score.value:.1f} (" in description
    )
    for card in shown.locator("#figures figure:visible").all():
        words = card.locator(".numbers li").all_text_contents()
        label = card.locator(".chart").get_attribute("aria-label")
        assert words and all(one in label for one in words)


def test_a_browser_that_cannot_decompress_gets_a_sentence(chromium: Any, file: Path) -> None:
    opened = chromium.new_page()
    opened.add_init_script("delete window.DecompressionStream")
    opened.goto(file.as_uri())
    assert "Firefox 113" in opened.locator("#too-old").text_content() and opened.locator("#too-old").is_visible()
    assert opened.locator("#table-methods").is_visible()
    opened.close()


def test_filters_leave_the_samples_that_the_report_counts(shown: Page, evidence: Evidence) -> None:
    (run,) = evidence.of("cascade", "pope")
    choose(shown)
    assert number(shown) == run.documents == 60
    choose(shown, exit="transfer", answer="wrong")
    assert number(shown) == ((run.samples.exit == "transfer") & (run.samples.score == 0)).sum() > 0
    choose(shown, task="shapes", effect="harm")
    assert number(shown) == 1
    choose(shown, task="shapes", effect="rescue")
    assert number(shown) == 1
    choose(shown, task="", method="")
    assert number(shown) == 4 * 60 + 4 * 4


def test_the_selects_and_the_search_field_filter_the_list(shown: Page) -> None:
    choose(shown, task="shapes")
    shown.select_option("[name=exit]", "agree_short")
    until(shown, "byId('number').value.startsWith('1 of')")
    assert shown.locator("#rows .row").count() == 1
    shown.select_option("[name=exit]", "")
    shown.locator("[name=q]").fill("THINKING. [[CROSS")
    until(shown, "byId('number').value.startsWith('0 of')")
    shown.locator("[name=q]").fill("thinking. [[circle")
    until(shown, "byId('number').value.startsWith('2 of')")  # a text of a call
    shown.keyboard.press("Escape")
    shown.keyboard.press("j")
    assert shown.locator("#detail mark").first.text_content() == "Thinking. [[circle"


def test_a_sample_shows_its_image_its_calls_and_why_it_finished_there(open_page: Callable[..., Page]) -> None:
    opened = open_page("#sample=shapes-MAI-8B-2B-R:2")
    text = opened.locator("#detail").text_content()
    assert "small “circle”, large “square”" in text and "So the large model answered again" in text
    assert [one.partition(" · ")[0] for one in opened.locator("#detail .call .about").all_text_contents()] == [
        "small model: short answer",
        "large model: short answer",
        "small model: thinking",
        "large model: answer with the small model's thinking",
    ]
    assert "100 tokens · 250 ms" in text and "rescue" in text
    others = opened.locator("#detail table a").all_text_contents()
    assert others == ["2B-S", "<img src=x onerror='window.hacked = 1'>-S"]  # Full RT has other gold answers
    opened.evaluate("location.hash = '#sample=POPE-MAI-8B-2B-R:99999'")
    until(opened, "byId('number').value.endsWith('The page has no sample POPE-MAI-8B-2B-R:99999')")
    opened.evaluate("location.hash = '#sample=POPE-MAI-8B-2B-R:0'")
    opened.wait_for_selector("#detail img")
    assert opened.locator("#detail img").evaluate("one => one.decode().then(() => one.naturalWidth)") == 40
    assert "The same document with the other methods" in opened.locator("#detail").text_content()
    opened.locator("#detail table a", has_text="8B-S").first.click()
    until(opened, "byId('detail').textContent.includes('The large model answered alone.')")


def test_keys_move_through_the_list_and_the_link_follows(shown: Page) -> None:
    opened = shown
    choose(opened)
    opened.evaluate("document.activeElement.blur()")
    for key in ("j", "j", "k", "j"):
        opened.keyboard.press(key)
    until(opened, "location.hash.includes('sample=POPE-MAI-8B-2B-R%3A1')")
    opened.locator("#list").focus()
    opened.keyboard.press("ArrowDown")
    until(opened, "location.hash.includes('%3A2')")
    assert opened.locator("#rows .row[aria-selected=true]").text_content().startswith("#2")
    opened.keyboard.press("/")
    assert opened.evaluate("document.activeElement.name") == "q"
    opened.keyboard.press("Escape")
    opened.keyboard.press("Escape")
    until(opened, "!location.hash.includes('sample')")
    assert opened.locator("#detail").text_content() == "Choose a sample."
    opened.go_back()
    opened.evaluate("location.hash = '#tables'")  # a part of the page closes no sample and opens none
    assert opened.locator("#detail").text_content() == "Choose a sample."


def test_a_click_on_a_heading_sorts_a_table_in_both_directions(shown: Page) -> None:
    columns = (
        "[...document.querySelector('#table-methods + .scroll table').tBodies[0].rows].map(row => row.cells[%d].%s)"
    )
    heading = shown.locator("#table-methods + .scroll th button").get_by_text("output tokens", exact=True)
    place = heading.evaluate("one => one.parentElement.cellIndex")
    heading.click()
    found = [float(one) for one in shown.evaluate(columns % (place, "dataset.sort")) if one]
    assert found == sorted(found, reverse=True) and len(set(found)) > 2
    heading.click()
    assert shown.evaluate(columns % (place, "dataset.sort"))[: len(found)] == [repr(one) for one in sorted(found)]
    shown.locator("#table-accuracy-by-exit + .scroll th button").get_by_text("exit", exact=True).click()
    names = shown.evaluate(columns.replace("methods", "accuracy-by-exit") % (2, "textContent"))
    assert names == ["agree_short", "agree_short", "agree_think", "agree_think", "transfer", "transfer"]


def test_hostile_texts_are_shown_as_they_are(shown: Page) -> None:
    choose(shown, task="shapes", q="onerror")
    assert number(shown) == 1
    shown.keyboard.press("Escape")
    shown.keyboard.press("j")
    shown.wait_for_selector("#detail .reason")
    shown_text = shown.locator("#detail .words").first.text_content()
    assert (
        shown_text.startswith(HOSTILE[:-1]) and shown.locator("#detail .call .words").first.text_content() == shown_text
    )
    choose(shown, task="shapes", method="")
    shown.select_option("#benchmark", "shapes")  # figures with a hostile name of a model
    until(shown, "byId('chart-tokens').textContent.includes('<img sr')")
    assert shown.evaluate("window.hacked") is None
    assert shown.locator("img[src=x]").count() == 0
    shown.select_option("#benchmark", "pope")


def test_light_and_dark_follow_the_system_and_the_button(open_page: Callable[..., Page]) -> None:
    opened = open_page(color_scheme="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    dark = opened.evaluate(background)
    assert opened.locator("#theme").text_content() == "Light"
    opened.locator("#theme").click()
    light = opened.evaluate(background)
    assert (light, dark) == ("rgb(255, 255, 255)", "rgb(20, 23, 26)")
    ink = "getComputedStyle(document.querySelector('#chart-tokens .xtick text')).fill"
    until(opened, f"{ink} === 'rgb(29, 33, 38)'")
    opened.emulate_media(media="print")
    assert not opened.locator("header.bar").is_visible() and opened.locator("#table-methods").is_visible()


def test_a_phone_needs_no_horizontal_scrolling_and_shows_a_sample_alone(open_page: Callable[..., Page]) -> None:
    opened = open_page(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    assert opened.evaluate("document.documentElement.scrollWidth") == 390
    assert not opened.locator("#detail").is_visible()
    opened.locator("#rows .row").nth(1).tap()
    opened.wait_for_selector("#detail .reason")
    assert json.loads(opened.evaluate("JSON.stringify(byId('detail').getBoundingClientRect())"))["width"] == 390
    opened.go_back()
    opened.wait_for_selector("#detail", state="hidden")
