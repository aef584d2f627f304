"""The pages of the documentation: their links, their width, and the files, tests, fields and messages that they name.
`make lint` checks the generated parts."""

import ast
import dataclasses
import re
from pathlib import Path

import pytest

from lmms_eval_mai.contract import Call
from lmms_eval_mai.paper.agreement import Verification
from lmms_eval_mai.paper.sample import Trace
from lmms_eval_mai.paper.sparse import Selection

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")), *sorted(ROOT.glob("docs/*.md"))]
PAGES += sorted(ROOT.glob("experiments/*/README.md"))


def prose(page: Path) -> list[str]:
    """Return the lines outside code blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE).splitlines()


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    titles = [line.lstrip("#").strip().lower() for line in prose(page) if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_a_file_and_to_a_heading_leads_somewhere(page: Path) -> None:
    links = re.findall(r'\]\(([^)\s]+)\)|(?:src|srcset)="([^"]+)"', "\n".join(prose(page)))
    for link in [markdown or html for markdown, html in links]:
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.is_file(), f"{page.name} links to {link}"
        assert not anchor or anchor in anchors(target), f"{page.name} links to {link}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_have_at_most_120_characters_unless_they_are_a_table_row_or_one_test_name(page: Path) -> None:
    for line in prose(page):
        assert len(line) <= 120 or line.startswith("|") or re.fullmatch(r" *\* `tests/\S+`", line), line


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = {page.name for page in ROOT.glob("docs/*.md")} - {"README.md"}
    assert [page for page in sorted(pages) if f"]({page})" not in index] == []


def test_pages_that_the_code_names_exist() -> None:
    folders = ("lmms_eval_mai", "tests", "tools", "benchmarks", "experiments")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    named = {page for path in files for page in re.findall(r"\bdocs/[\w-]+\.md", path.read_text(encoding="utf-8"))}
    assert named and [page for page in sorted(named) if not (ROOT / page).is_file()] == []


def test_readme_has_at_most_150_lines() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_of_the_project_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = re.findall(
        r"\b((?:lmms_eval_mai|tests|tools|benchmarks|experiments|task_configs|docs)/[\w./-]+\.(?:py|md|json))", text
    )
    in_package = re.findall(r"(?<![\w/])((?:cli|harness|run|paper|engines)/[\w./-]+\.py)", text)
    found = [ROOT / name for name in named] + [ROOT / "lmms_eval_mai" / name for name in in_package]
    assert [path for path in found if "NAME" not in str(path) and not path.is_file()] == []


def test_reference_of_traces_has_every_field() -> None:
    page = (ROOT / "docs" / "trace-and-call.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"[\w]+", " ".join(re.findall(r"^\|([^|]*\|[^|]*)\|", page, re.MULTILINE))))
    fields = {field.name for kind in (Trace, Call, Verification, Selection) for field in dataclasses.fields(kind)}
    assert sorted(fields - shown) == []


def test_tests_named_in_the_reliability_page_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs" / "reliability.md").read_text())
    assert len(named) > 25
    for file, name in named:
        assert f"def {name}(" in (ROOT / file).read_text(), f"{file}::{name}"


def test_messages_in_the_troubleshooting_page_exist_in_the_code() -> None:
    texts: list[str] = []
    for path in (ROOT / "lmms_eval_mai").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                texts.append("".join(str(part.value) for part in node.values if isinstance(part, ast.Constant)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    quoted = re.findall(r"^\| `([^`]+)` \|", (ROOT / "docs" / "troubleshooting.md").read_text("utf-8"), re.MULTILINE)
    assert len(quoted) > 20
    code = "\0".join(dict.fromkeys(texts))
    for message in quoted:
        assert re.search(r"[^\0]*".join(map(re.escape, message.split("..."))), code), message
