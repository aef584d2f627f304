"""The templates equal those of Appendix C, and each benchmark gets its own template."""

import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from lmms_eval_mai.paper import prompts
from lmms_eval_mai.paper.agreement import without_answer
from lmms_eval_mai.paper.prompts import INSTRUCTIONS, REASON_TRANSFER, STAGE2, TRANSFER_TEMPLATE, Kind

PREVIOUS = "According to previous thinking: "
REFERENCE = "The following is a reference answer from a smaller model"
PREVIOUS_THINKING = {"pope", "chartqa"}
SIX = {"pope", "chartqa", "mmmu_val", "mmbench_en_dev", "infovqa_val", "realworldqa"}
KINDS: tuple[Kind, ...] = ("word", "letter")


def printed_prompts(shared: Path) -> dict[tuple[str, int], str]:
    """Read Appendix C of the paper: (heading, number of the prompt) -> its text.

    The text of the PDF wraps lines, has a typographic apostrophe, lacks the underscore of a placeholder, and writes a
    line feed as a backslash and an n.
    """
    paper = (shared / "paper" / "paper.txt").read_text(encoding="utf-8")
    appendix = paper.split("C. All Prompt Templates", 1)[1].split("\n17\n", 1)[0]
    headings = ["Simple (S)", "Explain (E)", "Reasoning (R)", "Stage 2", "Reason Transfer"]
    found: dict[tuple[str, int], str] = {}
    heading = ""
    for paragraph in re.split(r"\n\s*\n", appendix):
        lines = [line.strip() for line in paragraph.strip().splitlines()]
        if lines and lines[0] in headings:
            heading = lines[0]
        start = next((i for i, line in enumerate(lines) if re.match(r"Prompt ?\d:", line)), None)
        if start is None:
            continue
        number, text = re.fullmatch(r"Prompt ?(\d): (.*)", " ".join(lines[start:])).groups()  # type: ignore[union-attr]
        text = text.replace("\u2019", "'").replace("{stage1 response}", "{stage1_response}").replace("\\n", "\n")
        found[heading, int(number)] = text
    return found


def test_every_template_equals_that_of_appendix_c(shared: Path) -> None:
    printed = printed_prompts(shared)
    for number, kind in ((1, "word"), (2, "letter")):
        for heading, variant in (("Simple (S)", "S"), ("Explain (E)", "E"), ("Reasoning (R)", "R")):
            assert INSTRUCTIONS[variant, kind] == printed[heading, number]  # type: ignore[index]
        assert STAGE2[kind] == printed["Stage 2", number]  # type: ignore[index]
    first, second = printed["Reason Transfer", 1], printed["Reason Transfer", 2]
    assert REASON_TRANSFER["previous_thinking"]["word"] == first
    assert REASON_TRANSFER["reference"]["letter"] == second
    # The word form has the same beginning, and the end of the paper's own Prompt 1.
    assert REASON_TRANSFER["reference"]["word"] == second.split("Answer with", 1)[0] + first.split("\n ", 1)[1]


def test_the_transfer_prompt_of_example_3_has_the_thinking_without_its_answer(shared: Path) -> None:
    paper = (shared / "paper" / "paper.txt").read_text(encoding="utf-8")
    example = paper.split("Reason Transfer: 8B + 2B-R", 1)[1].split("Qwen3-VL-8B Answer", 1)[0]
    printed = " ".join(example.split()).removeprefix("Prompt: ").replace("\\n", "\n")
    thinking = printed.split("incomplete): ", 1)[1].split("Please answer", 1)[0].rstrip()
    assert thinking.startswith("Let") and thinking.endswith("feel warmer.")
    assert "[[yes]] q Wrong answer. Reasoning error." in paper  # the end of this small model's response
    prompt = prompts.transfer("any", without_answer(f"{thinking}\n\n[[yes]]"), "word")
    # The PDF has spaces around line breaks.
    assert re.sub(r" *\n *", "\n", prompt) == re.sub(r" *\n *", "\n", printed)
    whole = prompts.transfer("any", f"{thinking}\n\n[[yes]]", "word")
    assert "[[" in whole and "[[" not in printed


def test_each_template_requires_the_form_of_its_kind() -> None:
    forms = [*INSTRUCTIONS.items(), *(((name, kind), STAGE2[kind]) for name in ("stage2",) for kind in KINDS)]
    forms += [((name, kind), form[kind]) for name, form in REASON_TRANSFER.items() for kind in KINDS]
    assert len(forms) == 12
    for (_, kind), text in forms:
        assert ("single word or phrase" in text) is (kind == "word")
        assert ("option's letter" in text) is (kind == "letter")


def test_each_benchmark_has_its_transfer_prompt_of_the_paper_and_other_tasks_have_prompt_2() -> None:
    assert set(TRANSFER_TEMPLATE) == SIX | {"shapes"}  # shapes is our own
    for benchmark, kind in product([*SIX, "any"], KINDS):
        opening = PREVIOUS if benchmark in PREVIOUS_THINKING else REFERENCE
        assert prompts.transfer(benchmark, "T", kind).startswith(opening)
    for benchmark in PREVIOUS_THINKING:
        assert prompts.transfer(benchmark, "T", "word") == prompts.stage2("T", "word")


AWKWARD = "First {stage1_response},\n\nthen {0} and {{}}: \\frac{1}{2} [[B]]\t "


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("benchmark", ["pope", "infovqa_val"])
def test_the_transfer_prompt_contains_the_thinking_unchanged(benchmark: str, kind: Kind) -> None:
    name = "previous_thinking" if benchmark in PREVIOUS_THINKING else "reference"
    before, after = REASON_TRANSFER[name][kind].split("{stage1_response}")
    assert prompts.transfer(benchmark, AWKWARD, kind) == before + AWKWARD + after


SOURCE = Path(prompts.__file__).read_text(encoding="utf-8")


def digest_of(source: str) -> str:
    """Run a version of the module and return its digest."""
    namespace: dict[str, Any] = {"__name__": "prompts"}
    exec(compile(source, "prompts.py", "exec"), namespace)
    return str(namespace["digest"]())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("step by step", "step by ste"),
        ("= 4096", "= 409"),
    ],
)
def test_a_changed_template_or_limit_changes_the_digest(old: str, new: str) -> None:
    assert old in SOURCE and digest_of(SOURCE.replace(old, new)) != prompts.digest()
    assert digest_of('"""Another docstring."""\n' + SOURCE.split('"""', 2)[2]) == prompts.digest()
