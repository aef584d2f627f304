"""Estimates of time from the traces of runs, with the paper's profiles and with others."""

import dataclasses
import json
from pathlib import Path

import pandas as pd
import pytest
from support.folders import LARGE, POPE, SMALL, TOKENS, World, call, line, write_run
from support.profiles import TINY, rows_of
from support.tables import paper, row_of, value

from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.reports import build, paper_numbers
from lmms_eval_mai.times.call_times import CallTimes
from lmms_eval_mai.times.documents import make_plan
from lmms_eval_mai.times.estimate import Profiles, report, report_tables, seconds_of
from lmms_eval_mai.times.profile import Profile

PAPER = Profiles.read()
TIMES = {one.name: CallTimes(one) for one in PAPER.profiles}


def seconds(name: str, *stages: str, column: str = "equation_s") -> float:
    """Return the time of one call of each stage. The prompts of the tests have 300 tokens."""
    calls = pd.DataFrame({"output_tokens": [TOKENS[stage] for stage in stages]})
    found = TIMES[name].of(calls.assign(prompt_tokens=300, image_tokens=float("nan")))
    return float(found[column].sum())


def change(folder: Path, old: str, new: str) -> None:
    """Replace a text in the samples of the only run in a folder."""
    (file,) = folder.rglob("*_samples_*")
    file.write_text(file.read_text().replace(old, new))


def test_every_call_that_was_made_counts_with_its_own_model_and_tokens(tmp_path: Path) -> None:
    POPE.write(tmp_path, "cascade")  # 4 short answers of each model, 3 thinkings, 2 transfers
    found = report([tmp_path], PAPER)
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


def test_shared_calls_count_and_measured_seconds_do_not(tmp_path: Path) -> None:
    POPE.write(tmp_path / "a", "cascade")
    POPE.write(tmp_path / "b", "cascade")
    (file,) = (tmp_path / "b").glob("*_samples_*")
    documents = [json.loads(text) for text in file.read_text().splitlines()]
    for document in documents:
        for one in document["token_counts"][0]["calls"]:
            one |= {"total_s": None, "queued_s": None, "ttft_s": None, "started_at": None, "shared": True}
    file.write_text("".join(json.dumps(document) + "\n" for document in documents))
    one, other = (report([tmp_path / name], PAPER) for name in ("a", "b"))
    assert one.tables == other.tables


@pytest.mark.parametrize("documents", [4, 1])
def test_full_rt_is_compared_on_the_documents_that_both_runs_have(tmp_path: Path, documents: int) -> None:
    POPE.write(tmp_path, "cascade", time="20260101_000000")
    World("pope", POPE.documents[:documents]).write(tmp_path, "transfer", time="20260102_000000")
    POPE.write(tmp_path, "large", "r", time="20260103_000000")
    table = report([tmp_path], PAPER).table("table-11")
    full, mai, alone, thinking = (
        row_of(table, "POPE", name) for name in ("Full RT 8B + 2B-R", "MAI 8B + 2B-R", "8B-R", "2B-R")
    )
    # The first document has only two short answers.
    own = value(mai["Eq. 27, s"]) if documents == 4 else seconds("2B", "short") + seconds("8B", "short")
    assert value(mai["Full RT / this, Eq. 27"]) == pytest.approx(value(full["Eq. 27, s"]) / own)
    assert value(thinking["Eq. 27, s"]) == pytest.approx(seconds("2B", *documents * ["think"]))  # inside Full RT
    assert (alone["small, s"], alone["large, s"]) == (None, pytest.approx(seconds("8B", *4 * ["think"])))


def test_the_papers_times_are_shown_only_for_all_documents_of_its_method(tmp_path: Path) -> None:
    world = World("realworldqa", POPE.documents[:1] * 765)
    world.write(tmp_path / "all", "transfer")
    world.write(tmp_path / "options", "transfer", model_args="transfer_answer=keep")
    World("realworldqa", POPE.documents[:1] * 764).write(tmp_path / "fewer", "transfer")
    cells = {}
    for name in ("all", "options", "fewer"):
        table = report([tmp_path / name], PAPER).table("table-11")
        (cells[name],) = [row[5] for row in table.rows if str(row[1]).startswith("Full RT")]
    assert [paper(cell) for cell in cells.values()] == [561.0, None, None]
    other = Profiles([dataclasses.replace(one, device="Another GPU") for one in PAPER.profiles])
    cell = report([tmp_path / "all"], other).table("table-11").rows[0][5]
    assert paper(cell) is None and value(cell) == value(cells["all"])


def test_a_report_has_table_11_for_the_papers_models_only(tmp_path: Path) -> None:
    POPE.write(tmp_path / "papers", "cascade")
    dataclasses.replace(POPE, small="a", large="b").write(tmp_path / "others", "cascade")
    papers, others = (
        [table.key for table in report_tables(build.evidence([tmp_path / name]))] for name in ("papers", "others")
    )
    assert (papers, others) == (["table-11"], [])


def test_the_seconds_of_each_document_are_those_of_its_calls_with_one_ttft(tmp_path: Path) -> None:
    POPE.write(tmp_path, "cascade")
    (run,) = build.evidence([tmp_path]).of("cascade")
    found = seconds_of(run, PAPER)
    assert found is not None
    small = seconds("2B", *4 * ["short"], *3 * ["think"], column="single_s")
    large = seconds("8B", *4 * ["short"], *2 * ["transfer"], column="single_s")
    assert (len(found), found.sum()) == (4, pytest.approx(small + large))
    short = [seconds(name, "short", column="single_s") for name in ("2B", "8B")]
    assert found.min() == pytest.approx(sum(short))  # the document with agree_short
    assert seconds_of(run, Profiles([TINY])) is None


def test_repeated_runs_count_once_in_the_tables_and_as_a_mean_in_the_seconds_of_a_document(tmp_path: Path) -> None:
    POPE.write(tmp_path / "a", "cascade", time="20260101_000000")
    once = report([tmp_path], PAPER).table("table-11")
    POPE.write(tmp_path / "b", "cascade", time="20260102_000000")
    change(tmp_path / "b", '"output_tokens": 100', '"output_tokens": 200')
    evidence = build.evidence([tmp_path])
    (run,) = evidence.of("cascade")
    assert sorted(run.calls["repeat"].unique()) == [0, 1]
    found = seconds_of(run, PAPER)
    later_s = TIMES["2B"].later_token_s(300)
    small = seconds("2B", *4 * ["short"], *3 * ["think"], column="single_s")
    large = seconds("8B", *4 * ["short"], *2 * ["transfer"], column="single_s")
    assert found is not None and found.sum() == pytest.approx(small + large + 3 * 100 * later_s / 2)
    both = report([tmp_path], PAPER).table("table-11")
    assert [row[2] for row in both.rows] == [row[2] for row in once.rows] == [4, 4, 4]
    alone = [row_of(table, "POPE", "8B-S")["large, s"] for table in (once, both)]
    assert alone[0] == pytest.approx(alone[1])


def batched(name: str, scale: float) -> Profile:
    batches = [(size, 64, 4, 296, 11, scale * size, 2 * scale * size) for size in (8, 32)]
    rows = pd.concat([TINY.rows[TINY.rows["kind"] != "batches"], rows_of(batches=batches)])
    return dataclasses.replace(TINY, name=name, model=name, rows=rows)


def test_full_batches_take_the_sum_on_one_gpu_and_the_slower_engine_on_two_and_cached_tokens_no_prefill(
    tmp_path: Path,
) -> None:
    dataclasses.replace(POPE, small="little", large="big").write(tmp_path, "transfer")
    profiles = Profiles([batched("little", 0.001), batched("big", 0.01)])
    found = report([tmp_path], profiles)
    rows = [row for row in found.table("throughput").rows if row[1] == "Full RT big + little-R"]
    assert [row[3] for row in rows] == [8, 32]
    _, _, n, _, small, large, prefill, one_gpu, two_gpus, per_hour = rows[0]
    assert small == pytest.approx(4 * (0.001 + 99 * 0.0001)) and large == pytest.approx(4 * (0.01 + 4 * 0.001))
    assert (one_gpu, two_gpus) == (pytest.approx(0.0436 + 0.056), pytest.approx(0.056))
    assert prefill == pytest.approx(100 * 0.044 / 0.0996) and per_hour == pytest.approx(4 * 3600 / 0.0996)
    assert n == 4 and not [gap for gap in found.gaps if "full batches" in gap]
    change(tmp_path, '"cached_tokens": 0', '"cached_tokens": 150')
    row = report([tmp_path], profiles).table("throughput").rows[0]
    assert row[4] == pytest.approx(4 * (0.0005 + 99 * 0.0001))  # cached tokens need no prefill


def test_known_image_tokens_of_a_call_select_the_row_of_its_image(tmp_path: Path) -> None:
    POPE.write(tmp_path, "large", "s")
    change(tmp_path, '"prompt_tokens": 300', '"prompt_tokens": 576, "image_tokens": 256')
    found = report([tmp_path], PAPER)
    row = row_of(found.table("times-by-stage"), "POPE", "8B-S")
    assert "TTFT by the image tokens and the other tokens of the prompt (by the " in found.table("table-11").notes[0]
    assert row["TTFT, s"] == pytest.approx(4 * (0.04391 + (0.05345 - 0.04391) * 64 / 256))


def test_runs_of_models_without_a_profile_are_named(tmp_path: Path) -> None:
    POPE.write(tmp_path, "cascade", time="20260101_000000")
    dataclasses.replace(POPE, small="tiny", benchmark="shapes").write(tmp_path, "cascade", time="20260102_000000")
    found = report([tmp_path], PAPER)
    assert "MAI 8B + tiny-R on shapes has no estimate, because no profile is of tiny." in found.gaps
    assert {row[0] for row in found.table("table-11").rows} == {"POPE", "shapes"}  # shapes: 8B-S inside the cascade


def test_models_without_a_profile_are_timed_with_profiles_chosen_by_name(tmp_path: Path) -> None:
    dataclasses.replace(POPE, small="2b.jsonl", large="8b.jsonl").write(tmp_path / "scripts", "cascade")
    POPE.write(tmp_path / "papers", "cascade")
    with pytest.raises(ArgumentError, match=r"no profile is of 2b.jsonl and 8b.jsonl.* The profiles are of Qwen/"):
        report([tmp_path / "scripts"], PAPER)
    chosen = Profiles(PAPER.profiles, {"small": "2B", "large": "8B"})
    mine = report([tmp_path / "scripts"], chosen).table("table-11").rows[0]
    papers = report([tmp_path / "papers"], PAPER).table("table-11").rows[0]
    assert mine[2:] == papers[2:]


def test_profiles_of_the_demo_pair_are_found_by_the_names_that_runs_have(tmp_path: Path) -> None:
    dataclasses.replace(POPE, small="./demo/small", large="./demo/large").write(tmp_path, "cascade")
    folder = "/elsewhere/lmms_eval_mai/pairs/demo"
    profiles = [dataclasses.replace(TINY, model=f"{folder}/{side}", name=f"demo-{side}") for side in ("small", "large")]
    assert len(report([tmp_path], Profiles(profiles)).table("table-11").rows) == 3  # MAI, and both short answers


def test_profiles_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"are of different devices: .* Give those of one device"):
        Profiles([TINY, *PAPER.profiles])
    with pytest.raises(ArgumentError, match="are both profiles of /models/tiny"):
        Profiles([TINY, TINY])
    with pytest.raises(ArgumentError, match=r"--large 9B is not a profile. The profiles are: 2B, 4B, 8B"):
        Profiles(PAPER.profiles, {"large": "9B"})


def test_runs_without_traces_are_refused(tmp_path: Path) -> None:
    POPE.write(tmp_path, "cascade")
    (file,) = tmp_path.glob("*_samples_*")
    file.unlink()
    with pytest.raises(ArgumentError, match=r"no run has an estimate \(its samples have no calls\). A run must be of"):
        report([tmp_path], PAPER)


@pytest.mark.slow
def test_full_rt_of_table_11_follows_from_table_5_on_four_benchmarks(tmp_path: Path) -> None:
    """Full RT with the output tokens of Table 5 on all documents of the paper, and prompts of 320 tokens."""
    for benchmark in paper_numbers.load()["benchmarks"]:
        documents = paper_numbers.documents(benchmark) or 0
        steps = make_plan(benchmark, documents).steps
        lines = []
        for doc_id in range(documents):
            think, answer = steps[doc_id, "small", "think"].tokens, steps[doc_id, "large", "transfer"].tokens
            calls = [
                call("small", "think", "", prompt_tokens=320, output_tokens=think),
                call("large", "transfer", "", prompt_tokens=320 + think, output_tokens=answer),
            ]
            lines.append(line(doc_id, "1", "1", 1.0, calls, exit="transfer", readable=True, answers=[]))
        mai = {"benchmark": benchmark, "variant": "r"}
        engines = {"small": SMALL, "large": LARGE}
        write_run(tmp_path / benchmark, f"{benchmark}_r", lines, mode="transfer", engines=engines, mai=mai)
    table = report([tmp_path], PAPER).table("table-11")
    rows = [row for row in table.rows if str(row[1]).startswith("Full RT")]
    off = {row[0]: float(str(row[6])) for row in rows}
    assert {name for name, percent in off.items() if abs(percent) <= 1} == {"POPE", "MMBench", "ChartQA", "InfoVQA"}
    assert off["MMMU"] == pytest.approx(-30.7, abs=0.5) and off["RealWorldQA"] == pytest.approx(452, abs=5)
