"""The pages of the documentation: their links, their commands, and the files and fields that they name. `make lint`
checks the generated parts."""

import argparse
import dataclasses
import importlib
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lmms_eval_mai.contract import Call
from lmms_eval_mai.method.files import load
from lmms_eval_mai.method.methods import MAI
from lmms_eval_mai.method.sample import Settings, Trace
from lmms_eval_mai.method.sparse import Selection
from lmms_eval_mai.run.config import parse
from lmms_eval_mai.user_input import values_of

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "lmms_eval_mai"
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
def test_every_link_leads_somewhere_and_every_file_that_is_named_exists(page: Path) -> None:
    for links in re.findall(r'\]\(([^)\s]+)\)|(?:src|srcset)="([^"]+)"', "\n".join(prose(page))):
        path, _, anchor = "".join(links).partition("#")
        target = page.parent / path if path else page
        assert path.startswith("https://") or (target.is_file() and (not anchor or anchor in anchors(target))), links
    text, folders = (
        page.read_text(encoding="utf-8"),
        "lmms_eval_mai|tests|tools|benchmarks|experiments|task_configs|docs",
    )
    named = [ROOT / name for name in re.findall(rf"\b((?:{folders})/[\w./-]+\.(?:py|md|json))", text)]
    packages = "cli|harness|run|method|analysis|engines|serve"
    named += [PACKAGE / name for name in re.findall(rf"(?<![\w/])((?:{packages})/[\w./-]+\.py)", text)]
    assert [path for path in named if "NAME" not in str(path) and not path.is_file()] == []


def test_reference_of_traces_has_every_field() -> None:
    page = (ROOT / "docs" / "output.md").read_text(encoding="utf-8")
    shown = re.findall(r"\w+", " ".join(re.findall(r"`([^`\n]+)`", page.partition("## The trace of a sample")[2])))
    fields = {field.name for kind in (Trace, Settings, Call, Selection) for field in dataclasses.fields(kind)}
    assert fields <= set(shown)


def blocks(page: Path, language: str) -> list[str]:
    """Return the blocks of code in a page."""
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^ *```{language}\n(.*?)^ *```", text, flags=re.DOTALL | re.MULTILINE)


def test_methods_in_the_pages_can_be_read_and_are_those_of_the_examples(tmp_path: Path) -> None:
    papers, own = blocks(ROOT / "docs" / "methods.md", "yaml")
    for name, text in (("mai", papers), ("large_first", own)):
        (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
    assert load(tmp_path / "mai.yaml") == MAI
    assert load(tmp_path / "large_first.yaml") == load(ROOT / "examples" / "large_first.yaml")
    assert all(load(file).name == file.stem for file in (ROOT / "examples").glob("*.yaml"))


def commands(page: Path) -> Iterator[list[str]]:
    """Return the words of each command in the bash blocks of a page. Those with names to fill in are left out."""
    for line in "".join(blocks(page, "bash")).replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words and not re.search(r"[$]|[.]{3}|[A-Z]{2,}", " ".join(words)):
            yield words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_have_options_arguments_and_tasks_that_exist(page: Path) -> None:
    tasks = {path.stem for path in ROOT.glob("task_configs/**/*.yaml")}
    for program, *words in commands(page):
        options = argparse.ArgumentParser(allow_abbrev=False)
        if program == "lmms-eval-mai":
            importlib.import_module(f"lmms_eval_mai.cli.{words[0]}").add_arguments(options)
            assert not options.parse_known_args(words[1:])[1], words
        elif program == "lmms-eval":
            for name in ("--model", "--model_args", "--tasks", "--include_path"):
                options.add_argument(name)
        given = vars(options.parse_known_args(words)[0])
        if given.get("model") not in ("mai_cascade", None):
            continue
        if given.get("model_args") and ".json" not in given["model_args"]:
            parse(values_of("--model_args", given["model_args"]))
        named = (given.get("tasks") or "").split(",") if not given.get("include_path") else []
        assert all(name in tasks for name in named if name.endswith(("_s", "_e", "_r", "_s2"))), words


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder in which commands find the files of the pages."""
    for name in ("docs", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


@pytest.mark.long
@pytest.mark.parametrize(
    ("page", "beginnings"),
    [("README.md", ["--model", "report", "ask"]), ("docs/reports.md", ["--model", "--model", "report", "report"])],
)
def test_commands_of_a_page_run_on_the_demo_pair(page: str, beginnings: list[str], folder: Path) -> None:
    lines = [words for words in commands(ROOT / page) if "pair=demo" in " ".join(words) or words[1] == "report"]
    assert [words[1] for words in lines] == beginnings
    for program, *words in lines:
        limit = ["--limit", "4"] if "--tasks" in words else []
        run(folder, str(Path(sys.executable).with_name(program)), *words, *limit)


@pytest.mark.long
def test_first_script_of_the_python_page_prints_an_answer_and_its_exit(folder: Path) -> None:
    (folder / "script.py").write_text(blocks(ROOT / "docs" / "python-api.md", "python")[0])
    printed = run(folder, sys.executable, "script.py")
    assert re.search(r"^[0-9] (agree_short|agree_think|transfer)$", printed, re.MULTILINE), printed
