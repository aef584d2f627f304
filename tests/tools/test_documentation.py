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


def test_pages_that_the_code_names_exist() -> None:
    folders = ("lmms_eval_mai", "tests", "tools", "benchmarks", "experiments")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    named = {page for path in files for page in re.findall(r"\bdocs/[\w-]+\.md", path.read_text(encoding="utf-8"))}
    assert named and [page for page in sorted(named) if not (ROOT / page).is_file()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_of_the_project_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = re.findall(
        r"\b((?:lmms_eval_mai|tests|tools|benchmarks|experiments|task_configs|docs)/[\w./-]+\.(?:py|md|json))", text
    )
    in_package = re.findall(r"(?<![\w/])((?:cli|harness|run|method|analysis|engines|serve)/[\w./-]+\.py)", text)
    found = [ROOT / name for name in named] + [ROOT / "lmms_eval_mai" / name for name in in_package]
    assert [path for path in found if "NAME" not in str(path) and not path.is_file()] == []


def test_reference_of_traces_has_every_field() -> None:
    page = (ROOT / "docs" / "output.md").read_text(encoding="utf-8")
    shown = set(
        re.findall(r"\w+", " ".join(re.findall(r"`([^`\n]+)`", page[page.index("## The trace of a sample") :])))
    )
    fields = {field.name for kind in (Trace, Settings, Call, Selection) for field in dataclasses.fields(kind)}
    assert sorted(fields - shown) == []


def test_methods_in_the_pages_can_be_read_and_are_those_of_the_examples(tmp_path: Path) -> None:
    def shown(page: str) -> list[str]:
        text = (ROOT / page).read_text(encoding="utf-8")
        return re.findall(r"^```yaml\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)

    papers, own = shown("docs/methods.md")
    (tmp_path / "mai.yaml").write_text(papers, encoding="utf-8")
    assert load(tmp_path / "mai.yaml") == MAI
    for file in (ROOT / "examples").glob("*.yaml"):
        assert load(file).name == file.stem
    (tmp_path / "large_first.yaml").write_text(own, encoding="utf-8")
    assert load(tmp_path / "large_first.yaml") == load(ROOT / "examples" / "large_first.yaml")


def commands(page: Path) -> Iterator[list[str]]:
    """Return the words of each command in the bash blocks of a page. Those with names to fill in are left out."""
    for block in re.findall(
        r"^ *```bash\n(.*?)^ *```", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    ):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words and not re.search(r"[$]|[.]{3}|[A-Z]{2,}", " ".join(words)):
                yield words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_have_options_arguments_and_tasks_that_exist(page: Path) -> None:
    tasks = {path.stem for path in ROOT.glob("task_configs/**/*.yaml")}
    for program, *words in commands(page):
        options = argparse.ArgumentParser(allow_abbrev=False)
        for name in ("--model", "--model_args", "--tasks", "--include_path"):
            options.add_argument(name)
        if program == "lmms-eval-mai":
            options = argparse.ArgumentParser(allow_abbrev=False)
            importlib.import_module(f"lmms_eval_mai.cli.{words[0]}").add_arguments(options)
            words = words[1:]
            assert not options.parse_known_args(words)[1], words
        elif program != "lmms-eval":
            continue
        given = vars(options.parse_known_args(words)[0])
        ours = given.get("model") in ("mai_cascade", None)
        if ours and given.get("model_args") and ".json" not in given["model_args"]:
            parse(values_of("--model_args", given["model_args"]))
        named = (given.get("tasks") or "").split(",") if ours and not given.get("include_path") else []
        assert all(name in tasks for name in named if name.endswith(("_s", "_e", "_r", "_s2"))), words


@pytest.mark.long
@pytest.mark.parametrize(
    ("page", "beginnings"),
    [("README.md", ["--model", "report", "ask"]), ("docs/reports.md", ["--model", "--model", "report", "report"])],
)
def test_commands_of_a_page_run_on_the_demo_pair(page: str, beginnings: list[str], tmp_path: Path) -> None:
    for folder in ("docs", "examples"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    lines = [words for words in commands(ROOT / page) if "pair=demo" in " ".join(words) or words[1] == "report"]
    assert [words[1] for words in lines] == beginnings
    for program, *words in lines:
        command = [
            str(Path(sys.executable).with_name(program)),
            *words,
            *(["--limit", "4"] if "--tasks" in words else []),
        ]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=400)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_first_script_of_the_python_page_prints_an_answer_and_its_exit(tmp_path: Path) -> None:
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    page = (ROOT / "docs" / "python-api.md").read_text(encoding="utf-8")
    script = re.findall(r"^```python\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)[0]
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=400)
    assert re.search(r"^[0-9] (agree_short|agree_think|transfer)$", done.stdout, re.MULTILINE), done.stderr
