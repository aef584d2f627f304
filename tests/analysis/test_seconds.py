"""Eq. 27 with the paper's times and with one's own, and Table 11."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from support.folders import LARGE, POPE, SMALL
from support.own_command import run_command
from support.pair import TOKENS
from support.tables import report, row_of

from lmms_eval_mai.analysis.runs.runs import Runs
from lmms_eval_mai.analysis.tables import seconds

PAPER = seconds.papers_profile()


def call_s(model: str, *prompts: str) -> float:
    """Return the time of a call of each prompt, with inputs of 300 tokens that the folders of tests have."""
    times = PAPER.models[model]
    return float(sum(times.seconds(300, TOKENS[prompt]) for prompt in prompts))


def test_the_ttft_is_interpolated_between_lengths_and_continued_after_the_longest() -> None:
    times = PAPER.models[LARGE]
    first_s = [float(times.seconds(tokens, 0)) for tokens in (1, 128, 320, 544, 1536, 1536 + 256)]
    assert first_s[:2] == [0.03376, 0.03376]
    assert first_s[2] == pytest.approx((0.03625 + 0.03674) / 2)  # two columns of Table 3 have 320 tokens
    assert first_s[3] == pytest.approx((0.04391 + 0.04793) / 2)  # between 512 and 576
    assert first_s[5] - first_s[4] == pytest.approx(first_s[4] - 0.10265)
    assert float(times.seconds(128, 47.26)) == pytest.approx(1.03376)


def test_every_call_of_a_run_counts_with_its_own_model_and_tokens(tmp_path: Path) -> None:
    POPE.write(tmp_path, "mai", time="20260101_000000")  # 4 short answers, 3 thinkings, 2 transfers
    POPE.write(tmp_path, "full_rt", time="20260102_000000")
    found = report([tmp_path], ("11",)).table("table-11")
    mai, full = (row_of(found, "POPE", name) for name in ("MAI", "Full RT"))
    small_s = call_s(SMALL, *4 * ["simple"], *3 * ["think"])
    large_s = call_s(LARGE, *4 * ["simple"], *2 * ["transfer"])
    assert mai["seconds"].value == pytest.approx(small_s + large_s)
    assert mai["speedup"].value == pytest.approx(full["seconds"].value / (small_s + large_s))
    assert mai["seconds"].paper is None  # the paper has other documents


def test_a_profile_of_ones_own_gives_the_seconds_of_each_method(tmp_path: Path, capsys: Any) -> None:
    dataclasses.replace(POPE, small="./demo/small", large="./demo/large").write(tmp_path / "out", "mai")
    folder = "/elsewhere/lmms_eval_mai/pairs/demo"
    times = {"ttft_s": [[100, 0.5]], "tokens_per_s": 10}
    models = {f"{folder}/{side}": times for side in ("small", "large")}
    file = tmp_path / "profile.json"
    file.write_text(json.dumps({"device": "here", "models": models}))
    code, out, _ = run_command(capsys, "report", tmp_path / "out", "--profile", file, "--format", "json")
    assert code == 0 and json.loads(out)["tables"]["table-11"]["title"].endswith("here")
    mai = next(row for row in json.loads(out)["tables"]["table-11"]["rows"] if row["method"].startswith("MAI"))
    assert mai["seconds"] == pytest.approx(13 * 0.5 + (8 * 4 + 3 * 100 + 2 * 5) / 10)


def test_models_that_a_profile_lacks_have_no_seconds(tmp_path: Path) -> None:
    dataclasses.replace(POPE, small="a").write(tmp_path / "out", "mai")
    runs = Runs.read([tmp_path / "out"])
    assert [PAPER.seconds(run) for run in runs.select("cascade")] == [None]
