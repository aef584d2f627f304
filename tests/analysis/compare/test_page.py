"""The commands of docs/reproduce.md, and the arguments of docs/paper-notes.md: they are accepted."""

import re
from pathlib import Path
from typing import Any

from lmms_eval_mai.run.config import parse
from lmms_eval_mai.run.decoding import sampling
from lmms_eval_mai.user_input import values_of

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = "\n".join((DOCS / name).read_text() for name in ("reproduce.md", "paper-notes.md"))


def code(pattern: str) -> list[str]:
    """Return the texts between backticks that match a pattern."""
    return [text for text in re.findall(r"`([^`\n]+)`", PAGE) if re.fullmatch(pattern, text)]


def test_model_arguments_of_every_command_are_accepted() -> None:
    found = code(r"(pair|method)=\S+")
    assert len(found) > 10
    for model_args in found:
        parse(values_of("--model_args", model_args))


def test_arguments_named_alone_are_accepted_by_a_run_that_can_use_them() -> None:
    found = [text for text in code(r"[a-z_]+=\S+") if not text.startswith(("pair=", "method=", "engine="))]
    assert {"chartqa_match=relaxed", "sparse_layer=12"} <= set(found)
    for argument in found:
        engine = "transformers" if "sparse" in argument else "vllm"
        transfer = ",transfer=sparse" if argument.startswith("sparse_") else ""
        parse(values_of("--model_args", f"pair=qwen3vl-2b-8b,engine={engine},{argument}{transfer}"))
    lines = code(r"--gen_kwargs .*")
    assert len(lines) == 2
    for line in lines:
        sampling(values_of("--gen_kwargs", line.removeprefix("--gen_kwargs ")), parse({}), is_mai_task=True)


def test_every_task_is_known_to_lmms_eval(task_manager: Any) -> None:
    prefix = r"(mai|pope|mmmu_val|chartqa)_(s|e|r)(_s2)?"
    found = {name for text in code(rf"{prefix}(,{prefix})*") for name in text.split(",")}
    assert len(found) > 10 and found <= set(task_manager.all_tasks)
