"""Estimates of time from the traces of runs, with the paper's profiles and with others."""

import dataclasses
import json
from pathlib import Path

import pytest
from support.folders import POPE, TOKENS, World
from support.profiles import TINY
from support.tables import paper, row_of, value

from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.profiles.profile import BatchPoint, Profile, Seconds
from lmms_eval_mai.profiles.times import ProfileTimes
from lmms_eval_mai.reports import build, paper_profiles
from lmms_eval_mai.reports.call_times import Profiles
from lmms_eval_mai.reports.estimate import estimate

PAPER = Profiles(paper_profiles.profiles())
TIMES = {one.name: ProfileTimes(one) for one in paper_profiles.profiles()}


def seconds(name: str, *stages: str) -> float:
    """Return the time of one call of each stage by Eq. 27. The prompts of the tests have 300 tokens."""
    return sum(TIMES[name].call(300, TOKENS[stage]).equation_s for stage in stages)


def test_every_call_that_was_made_counts_with_its_own_model_and_tokens(tmp_path: Path) -> None:
    POPE.write(tmp_path, "cascade")  # 4 short answers of each model, 3 thinkings, 2 transfers
    found = estimate([tmp_path], PAPER)
    row = row_of(found.table("table-11"), "POPE", "MAI 8B + 2B-R")
    small = seconds("2B", *4 * ["short"], *3 * ["think"])
    large = seconds("8B", *4 * ["short"], *2 * ["transfer"])
    assert (row["small, s"], row["large, s"]) == (pytest.approx(small), pytest.approx(large))
    assert value(row["Eq. 27, s"]) == pytest.approx(small + large)
    assert row["s per document"] == pytest.approx(float(str(row["one TTFT, s"])) / 4)
    assert value(row["Eq. 27, s"]) > float(str(row["one TTFT, s"])) > 0
    thinking = row_of(found.table("times-by-stage"), "POPE", "MAI 8B + 2B-R", "small", "think")
    assert (thinking["calls"], thinking["prompt tokens"], thinking["output tokens"]) == (3, 300.0, 100.0)
    assert thinking["Eq. 27, s"] == pytest.approx(seconds("2B", *3 * ["think"]))


def test_second_stages_are_calls_too(tmp_path: Path) -> None:
    POPE.write(tmp_path, "cascade", "r_s2")
    row = row_of(estimate([tmp_path], PAPER).table("times-by-stage"), "POPE", "MAI 8B + 2B-R(S2)", "small", "stage2")
    assert row["calls"] == 3


def test_shared_calls_count_and_measured_seconds_do_not(tmp_path: Path) -> None:
    POPE.write(tmp_path / "a", "cascade")
    POPE.write(tmp_path / "b", "cascade")
    (file,) = (tmp_path / "b").glob("*_samples_*")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        for call in line["token_counts"][0]["calls"]:
            call |= {"total_s": None, "queued_s": None, "ttft_s": None, "started_at": None, "shared": True}
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    one, other = (estimate([tmp_path / name], PAPER) for name in ("a", "b"))
    assert one.tables == other.tables


def test_full_rt_is_compared_with_mai_and_with_the_models_alone(tmp_path: Path) -> None:
    POPE.write(tmp_path, "cascade", time="20260101_000000")
    POPE.write(tmp_path, "transfer", time="20260102_000000")
    POPE.write(tmp_path, "large", "r", time="20260103_000000")
    table = estimate([tmp_path], PAPER).table("table-11")
    full, mai = (row_of(table, "POPE", name) for name in ("Full RT 8B + 2B-R", "MAI 8B + 2B-R"))
    quotient = value(full["Eq. 27, s"]) / value(mai["Eq. 27, s"])
    assert value(mai["Full RT / this, Eq. 27"]) == pytest.approx(quotient)
    thinking = row_of(table, "POPE", "2B-R")  # inside Full RT
    assert value(thinking["Eq. 27, s"]) == pytest.approx(seconds("2B", *4 * ["think"]))
    alone = row_of(table, "POPE", "8B-R")
    assert (alone["small, s"], alone["large, s"]) == (None, pytest.approx(seconds("8B", *4 * ["think"])))


def test_the_papers_times_are_shown_only_for_all_documents_of_its_method(tmp_path: Path) -> None:
    world = World("realworldqa", POPE.documents[:1] * 765)
    world.write(tmp_path / "all", "transfer")
    world.write(tmp_path / "options", "transfer", model_args="transfer_answer=keep")
    World("realworldqa", POPE.documents[:1] * 764).write(tmp_path / "fewer", "transfer")
    cells = {}
    for name in ("all", "options", "fewer"):
        table = estimate([tmp_path / name], PAPER).table("table-11")
        (cells[name],) = [row[5] for row in table.rows if str(row[1]).startswith("Full RT")]
    assert [paper(cell) for cell in cells.values()] == [561.0, None, None]
    other = Profiles([dataclasses.replace(one, device="Another GPU") for one in paper_profiles.profiles()])
    cell = estimate([tmp_path / "all"], other).table("table-11").rows[0][5]
    assert paper(cell) is None and value(cell) == value(cells["all"])


def test_report_has_table_11_for_the_papers_models_only(tmp_path: Path) -> None:
    POPE.write(tmp_path / "papers", "cascade")
    dataclasses.replace(POPE, small="a", large="b").write(tmp_path / "others", "cascade")
    assert build.report([tmp_path / "papers"]).table("table-11").rows[0][1] == "MAI 8B + 2B-R"
    assert "table-11" not in {table.key for table in build.report([tmp_path / "others"]).tables}


def batched(name: str, scale: float) -> Profile:
    points = tuple(
        BatchPoint(size, 64, 4, 296, 11, Seconds(scale * size), Seconds(2 * scale * size)) for size in (8, 32)
    )
    return dataclasses.replace(TINY, name=name, model=name, batches=points)


def test_full_batches_take_the_sum_on_one_gpu_and_the_slower_engine_on_two(tmp_path: Path) -> None:
    dataclasses.replace(POPE, small="little", large="big").write(tmp_path, "transfer")
    found = estimate([tmp_path], Profiles([batched("little", 0.001), batched("big", 0.01)]))
    rows = [row for row in found.table("throughput").rows if row[1] == "Full RT big + little-R"]
    assert [row[3] for row in rows] == [8, 32]
    _, _, n, _, small, large, prefill, one_gpu, two_gpus, per_hour = rows[0]
    assert small == pytest.approx(4 * (0.001 + 99 * 0.0001)) and large == pytest.approx(4 * (0.01 + 4 * 0.001))
    assert (one_gpu, two_gpus) == (pytest.approx(0.0436 + 0.056), pytest.approx(0.056))
    assert prefill == pytest.approx(100 * 0.044 / 0.0996) and per_hour == pytest.approx(4 * 3600 / 0.0996)
    assert n == 4 and not [gap for gap in found.gaps if "full batches" in gap]


def test_cached_prompt_tokens_need_no_prefill_in_full_batches(tmp_path: Path) -> None:
    dataclasses.replace(POPE, small="little", large="big").write(tmp_path, "transfer")
    (file,) = tmp_path.glob("*_samples_*")
    file.write_text(file.read_text().replace('"cached_tokens": 0', '"cached_tokens": 150'))
    profiles = Profiles([batched("little", 0.001), batched("big", 0.01)])
    row = estimate([tmp_path], profiles).table("throughput").rows[0]
    assert row[4] == pytest.approx(4 * (0.0005 + 99 * 0.0001))


def test_known_image_tokens_of_a_call_select_the_row_of_its_image(tmp_path: Path) -> None:
    POPE.write(tmp_path, "large", "s")
    (file,) = tmp_path.glob("*_samples_*")
    file.write_text(file.read_text().replace('"prompt_tokens": 300', '"prompt_tokens": 576, "image_tokens": 256'))
    row = row_of(estimate([tmp_path], PAPER).table("times-by-stage"), "POPE", "8B-S")
    assert row["TTFT, s"] == pytest.approx(4 * (0.04391 + (0.05345 - 0.04391) * 64 / 256))


def test_predicted_times_are_beside_the_measured_ones_except_with_the_papers_profile(tmp_path: Path) -> None:
    POPE.write(tmp_path, "large", "s")
    mine = Profiles([dataclasses.replace(one, device="This machine") for one in paper_profiles.profiles()])
    row = row_of(estimate([tmp_path], mine).table("prediction"), "POPE", "8B-S")
    predicted = TIMES["8B"].call(300, TOKENS["short"]).corrected_s
    assert (row["calls"], row["predicted, s"], row["measured, s"]) == (4, pytest.approx(predicted), 0.25)
    assert row["predicted / measured"] == pytest.approx(predicted / 0.25)
    assert row["median error, %"] == pytest.approx(100 * abs(predicted / 0.25 - 1))
    assert "prediction" not in {table.key for table in estimate([tmp_path], PAPER).tables}


def test_runs_of_models_without_a_profile_are_named(tmp_path: Path) -> None:
    POPE.write(tmp_path, "cascade", time="20260101_000000")
    dataclasses.replace(POPE, small="tiny", benchmark="shapes").write(tmp_path, "cascade", time="20260102_000000")
    found = estimate([tmp_path], PAPER)
    assert "MAI 8B + tiny-R on shapes has no estimate, because no profile is of tiny." in found.gaps
    assert {row[0] for row in found.table("table-11").rows} == {"POPE", "shapes"}  # shapes: 8B-S inside the cascade


def test_models_without_a_profile_are_timed_with_profiles_chosen_by_name(tmp_path: Path) -> None:
    dataclasses.replace(POPE, small="2b.jsonl", large="8b.jsonl").write(tmp_path / "scripts", "cascade")
    POPE.write(tmp_path / "papers", "cascade")
    with pytest.raises(ArgumentError, match=r"No profile is of 2b.jsonl or 8b.jsonl: the profiles are of Qwen/"):
        estimate([tmp_path / "scripts"], PAPER)
    chosen = Profiles(paper_profiles.profiles(), {"small": "2B", "large": "8B"})
    mine = estimate([tmp_path / "scripts"], chosen).table("table-11").rows[0]
    papers = estimate([tmp_path / "papers"], PAPER).table("table-11").rows[0]
    assert mine[2:] == papers[2:]


def test_profiles_of_the_demo_pair_are_found_by_the_names_that_runs_have(tmp_path: Path) -> None:
    dataclasses.replace(POPE, small="./demo/small", large="./demo/large").write(tmp_path, "cascade")
    folder = "/elsewhere/lmms_eval_mai/pairs/demo"
    profiles = [dataclasses.replace(TINY, model=f"{folder}/{side}", name=f"demo-{side}") for side in ("small", "large")]
    assert len(estimate([tmp_path], Profiles(profiles)).table("table-11").rows) == 3  # MAI, and both short answers


def test_profiles_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"are of different devices: .* Give those of one device"):
        Profiles([TINY, *paper_profiles.profiles()])
    with pytest.raises(ArgumentError, match="are both profiles of /models/tiny"):
        Profiles([TINY, TINY])
    with pytest.raises(ArgumentError, match=r"--large 9B is not a profile. The profiles are: 2B, 4B, 8B"):
        Profiles(paper_profiles.profiles(), {"large": "9B"})


def test_runs_without_traces_are_refused(tmp_path: Path) -> None:
    POPE.write(tmp_path, "cascade")
    (file,) = tmp_path.glob("*_samples_*")
    file.unlink()
    with pytest.raises(
        ArgumentError, match=r"no run has the calls of its documents. Run mai_cascade with --log_samples"
    ):
        estimate([tmp_path], PAPER)
