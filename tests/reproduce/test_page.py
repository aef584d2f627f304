"""The commands of docs/reproduce.md: their arguments and tasks are accepted."""

import re
from pathlib import Path
from typing import Any

from lmms_eval_mai.cli.command_line import check_arguments, check_decoding

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reproduce.md").read_text()


def code(pattern: str) -> list[str]:
    """Return the texts between backticks that match a pattern."""
    return [text for text in re.findall(r"`([^`\n]+)`", PAGE) if re.fullmatch(pattern, text)]


def test_model_arguments_of_every_command_are_accepted() -> None:
    found = code(r"(pair|mode)=\S+")
    assert len(found) > 10
    for model_args in found:
        config, finding = check_arguments(model_args)
        assert config is not None and finding.mark == "ok", (model_args, finding.text)


def test_arguments_named_alone_are_accepted_by_a_run_that_can_use_them() -> None:
    found = [text for text in code(r"[a-z_]+=\S+") if not text.startswith(("pair=", "mode=", "engine="))]
    assert {"chartqa_match=relaxed", "large_num_assistant_tokens=5"} <= set(found)
    for argument in found:
        engine = "transformers" if "assistant" in argument else "vllm"
        _, finding = check_arguments(f"pair=qwen3vl-2b-8b,engine={engine},{argument}")
        assert finding.mark == "ok", (argument, finding.text)
    (limit,) = code(r"--gen_kwargs .*")
    assert check_decoding(limit.removeprefix("--gen_kwargs "), None).mark == "ok"


def test_every_task_is_known_to_lmms_eval(task_manager: Any) -> None:
    prefix = r"(mai|pope|mmmu_val|chartqa)_(s|e|r)(_s2)?"
    found = {name for text in code(rf"{prefix}(,{prefix})*") for name in text.split(",")}
    assert len(found) > 10 and found <= set(task_manager.all_tasks)
