"""The command `lmms-eval-mai bench`: refusals before anything starts, and Ctrl-C."""

import argparse
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from support.own_command import run_command

from lmms_eval_mai.cli.bench import add_arguments, settings_of
from lmms_eval_mai.contract import SIDES
from lmms_eval_mai.times.documents import CHARTS, make_plan


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--rows", "mia"), "--rows mia is unknown: choose from large-r, small-r, "),
        (("--rows", "hf", "--concurrency", "32"), "--rows hf needs --concurrency 1: add it, or leave the row out."),
        (("--lengths", "paper:x"), "--lengths paper:x is unknown: choose one of own, paper:pope, "),
        (("--lengths", "chartqa"), "--lengths chartqa is unknown: choose one of own, paper:pope, "),
        (("--samples", "0"), "--samples 0 is invalid: expected at least 1."),
        (("--concurrency", "0"), "--concurrency 0 is invalid: expected numbers of at least 1, or max."),
        (("--concurrency", "all"), "--concurrency all is invalid: "),
        (("--pair", "no-such-pair"), "pair=no-such-pair is unknown: choose one of demo, "),
        (("--megapixels", "0"), "--megapixels 0.0 is invalid: "),
        (("--model_args", "mode=large"), "mode=large has no effect here, because --rows chooses the methods. Leave "),
        (("--rows", "mai", "--model_args", "transfer=sparse"), "transfer=sparse has no effect here, because "),
        # Rows that need other levels are left out if the user did not ask for them, so the next check comes.
        (("--concurrency", "1", "--megapixels", "0"), "--megapixels 0.0 is invalid: "),
        pytest.param(("--task", "shapes_s"), "Task shapes_s has no Reasoning prompt, ", marks=pytest.mark.slow),
        pytest.param(
            ("--rows", "hf", "--model_args", "large=/no/model"),
            "large=/no/model does not exist",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_cannot_run_is_refused_with_one_sentence(capsys: Any, arguments: tuple[str, ...], sentence: str) -> None:
    pair = [] if "--pair" in arguments else ["--pair", "demo"]
    code, out, err = run_command(capsys, "bench", *pair, *arguments)
    assert (code, out) == (1, "")
    assert err.splitlines()[-1].startswith(f"lmms-eval-mai: {sentence}")


def test_settings_in_the_line_of_json_have_no_secrets() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    model_args = "max_num_seqs=32,small_hf_token=hf_abc,small=http://user:word@host/v1"
    found = settings_of(parser.parse_args(["--pair", "demo", "--model_args", model_args]))
    assert found["model_args"] == {
        "max_num_seqs": 32,
        "small_hf_token": "<redacted>",
        "small": "http://<redacted>@host/v1",
    }
    assert (found["pair"], found["assistant_tokens"]) == ("demo", 5)


def test_ctrl_c_ends_the_command_with_the_table_of_all_finished_runs(tmp_path: Path, command: type[Any]) -> None:
    samples, arguments = 3, ["--concurrency", "1", "--repeats", "1", "--megapixels", "0.01"]
    plan = make_plan("chartqa", samples)
    for side in SIDES:
        records = [
            {"task": CHARTS, "doc_id": number, "stage": "think", "text": "x", "output_tokens": step.tokens}
            for number in range(samples)
            if (step := plan.steps[number, side, "think"])
        ]
        if side == "small":  # the row cannot end; its warm-up has the first two documents
            records[2]["fault"] = "hang"
        (tmp_path / f"{side}.jsonl").write_text("\n".join(map(json.dumps, records)))
    scripts = ",".join(f"{side}={tmp_path / side}.jsonl" for side in SIDES)
    arguments += ["--model_args", f"engine=scripted,time_scale=0,{scripts}", "--lengths", "paper:chartqa"]
    arguments += ["--rows", "large-r,small-r", "--single_samples", str(samples), "--samples", str(samples)]
    printed, errors = tmp_path / "printed", tmp_path / "errors"
    errors.touch()
    run = command(tmp_path, printed, "bench", "--pair", "demo", *arguments, name="lmms-eval-mai", errors=errors)
    while run.process.is_alive() and "large R, one at a time, run 1 of 1" not in errors.read_text(errors="replace"):
        time.sleep(0.05)
    os.kill(run.process.pid, signal.SIGINT)
    code, text = run.end()
    message = errors.read_text(errors="replace")
    assert code == 130 and "stopped by Ctrl-C. A table has the finished runs, if there are any." in message, message
    figures = json.loads(text.splitlines()[-1])
    assert figures["many"] == {"documents": 3, "images_px": [[96, 96]], "exits": {"agree_short": 2, "transfer": 1}}
    assert [run["row"] for run in figures["runs"]] == ["large-r"] and "|large R|one at a time|" in text.replace(
        " |", "|"
    ).replace("| ", "|")
