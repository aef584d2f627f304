"""The lmms-eval command that is equivalent to a run."""

from pathlib import Path
from typing import Any

import pytest

from lmms_eval_mai.cli.command_line import values_of
from lmms_eval_mai.reproduce.options import Options, text_of
from lmms_eval_mai.reproduce.plan import Run, read_models, runs
from lmms_eval_mai.reproduce.subjects import Subject


def last_run(**arguments: Any) -> Run:
    return runs(read_models(["demo"], arguments), [Subject("shapes", "shapes", 4, samples=False)], [10])[-1]


def test_command_has_the_options_of_all_runs_and_those_of_its_run() -> None:
    options = Options(gen_kwargs="max_new_tokens=9", limit=40, include_path="more")
    assert options.command(last_run(dtype="float32"), Path("out/demo/cascade/shapes_s")) == [
        *("--model", "mai_cascade", "--model_args", "pair=demo,dtype=float32,mode=cascade", "--tasks", "shapes_s"),
        *("--gen_kwargs", "max_new_tokens=9", "--limit", "40", "--include_path", "more"),
        *("--output_path", "out/demo/cascade/shapes_s", "--log_samples"),
    ]
    assert "--limit" not in Options().command(last_run(), Path("out"))


def test_command_that_is_shown_has_no_secrets() -> None:
    run = last_run(hf_token="hf-1")
    assert "hf-1" in " ".join(Options().command(run, Path("out")))
    assert "hf-1" not in " ".join(Options().command(run, Path("out"), shown=True))


@pytest.mark.slow  # imports lmms-eval
@pytest.mark.parametrize(
    "text",
    [
        "max_model_len=8192,enforce_eager=true,gpu_memory_utilization=0.85",
        'limit_mm_per_prompt={"image":8},dtype=float32',
        "small_max_num_seqs=4,chartqa_match=relaxed,call_timeout=none",
    ],
)
def test_model_arguments_have_the_same_values_after_they_were_written(text: str) -> None:
    values = values_of("--model_args", text)
    assert values_of("--model_args", text_of(values)) == values
