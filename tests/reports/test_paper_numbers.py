"""The paper's numbers agree with each other: sums, shares, speedups, and what several tables have in common."""

from collections.abc import Iterator
from typing import Any

import pytest

from lmms_eval_mai.paper.benchmarks import BENCHMARKS
from lmms_eval_mai.reports import paper_numbers
from lmms_eval_mai.reports.paper_numbers import table

BENCHMARKS_OF_PAPER = list(paper_numbers.load()["benchmarks"])
CONTRADICTED = {
    ("mmbench_en_dev", "sum"),
    ("mmbench_en_dev", "share"),
    ("mmmu_val", "table 15"),
    ("mmmu_val", "MAI"),
    ("pope", "MAI"),
}
"""Relations that the paper's own numbers break; `disagrees` in paper_numbers.yaml names them."""


def share(count: int, benchmark: str) -> float:
    return 100 * count / paper_numbers.documents(benchmark)  # type: ignore[operator]


def rounds_to(exact: float, printed: float, digits: int) -> bool:
    """Return whether a number was rounded or cut to the printed one. A printed 0.05 may be binary 0.0499."""
    return abs(exact - printed) <= 0.5 * 10**-digits + 1e-9


def scores(number: int, model: str, benchmark: str) -> dict[str, float]:
    found = table(number)
    return dict(zip(found["columns"], found["rows"][model][benchmark], strict=True))


def of_table_10(benchmark: str) -> dict[str, float]:
    row = table(10)["rows"][benchmark]
    return dict(zip(table(10)["columns"], [*row["shares"], *row["scores"]], strict=True))


def test_benchmarks_are_those_of_the_package() -> None:
    assert set(BENCHMARKS_OF_PAPER) == set(BENCHMARKS) - {"shapes"}
    assert sum(filter(None, map(paper_numbers.documents, BENCHMARKS_OF_PAPER))) == 9000 + 900 + 4329 + 2500 + 2801 + 765


def test_every_table_has_a_source_and_rows_of_equal_length() -> None:
    assert list(paper_numbers.load()["tables"]) == [str(number) for number in range(1, 17)]
    for number in range(1, 17):
        found = table(number)
        assert found["source"].startswith(f"Table {number} ("), number
        assert found["title"], number
    for number in (1, 2, 3, 12):
        assert {len(row) for row in table(number)["rows"].values()} == {len(table(number)["columns"])}, number
    for number in (5, 6, 7, 13, 14):
        lengths = {len(cells) for row in table(number)["rows"].values() for cells in row.values()}
        assert lengths == {len(table(number)["columns"])}, number


def test_numbers_grow_with_the_image_and_with_the_tokens_in_tables_1_to_4() -> None:
    for number in (1, 2):
        for row in table(number)["rows"].values():
            assert row[2:] == sorted(row[2:])
    for column in table(3)["columns"]:
        assert column["image_tokens"] + column["query_tokens"] == column["tokens"]
        assert column["image_tokens"] == (column["image"] // 32) ** 2
    for column in table(4)["columns"]:
        assert column["image_tokens"] == (column["image"] // 32) ** 2


@pytest.mark.parametrize("model", ["2B", "4B", "8B"])
def test_average_speed_of_table_4_is_the_mean_of_tokens_over_time(model: str) -> None:
    row, tokens = table(4)["rows"][model], table(4)["output_tokens"]
    speeds = [1000 * number / ms for times in row["ms"] for number, ms in zip(tokens, times, strict=True)]
    assert len(speeds) == 16
    assert rounds_to(sum(speeds) / 16, row["tokens_per_s"], 2)


@pytest.mark.parametrize("benchmark", BENCHMARKS_OF_PAPER)
def test_table_10_is_recomputed_from_its_counts(benchmark: str) -> None:
    row = table(10)["rows"][benchmark]
    total = paper_numbers.documents(benchmark)
    assert (sum(row["exits"]) == total) is ((benchmark, "sum") not in CONTRADICTED)
    assert abs(sum(row["exits"]) - total) <= 1  # type: ignore[operator]
    pairs = zip(row["exits"], row["shares"], strict=True)
    rounded = [rounds_to(share(count, benchmark), printed, 2) for count, printed in pairs]
    assert rounded == [(benchmark, "share") not in CONTRADICTED, True, True]


@pytest.mark.parametrize("benchmark", BENCHMARKS_OF_PAPER)
def test_table_15_has_the_counts_and_scores_of_table_10(benchmark: str) -> None:
    found, printed = table(15)["rows"][benchmark], table(10)["rows"][benchmark]
    for row in (found["2B-R"], found["2B-R(S2)"]):
        for count, percent in zip(row["exits"], row["shares"], strict=True):
            assert rounds_to(share(count, benchmark), percent, 2)
    assert sum(found["2B-R"]["exits"]) == sum(found["2B-R(S2)"]["exits"])  # agree_short has one prompt in both
    assert (found["2B-R"]["exits"] == printed["exits"][1:]) is ((benchmark, "table 15") not in CONTRADICTED)
    assert found["2B-R(S2)"]["score"] - found["2B-R"]["score"] == pytest.approx(found["difference"])
    agrees = rounds_to(found["2B-R"]["score"], printed["scores"][0], 1)
    assert agrees is ((benchmark, "MAI") not in CONTRADICTED)


@pytest.mark.parametrize("benchmark", BENCHMARKS_OF_PAPER)
def test_scores_of_table_10_are_those_of_tables_6_to_8(benchmark: str) -> None:
    number = 6 if benchmark == "pope" else 7
    small, large, ten = scores(number, "2B", benchmark), scores(number, "8B", benchmark), of_table_10(benchmark)
    assert rounds_to(small["S"], ten["2B-S"], 1) and rounds_to(large["S"], ten["8B-S"], 1)
    eight = {row: cells["score"][table(8)["columns"].index(benchmark)] for row, cells in table(8)["rows"].items()}
    assert (eight["2B-R"], eight["8B-S"], eight["8B + 2B-R"]) == (ten["2B-R"], ten["8B-S"], ten["Full RT"])
    # 2B-R of Tables 8 and 10 has one stage. Table 6 has both stages, Table 7 has one on MMMU only.
    assert (small["R"] == ten["2B-R"]) is (benchmark in ("pope", "mmmu_val"))
    for model in ("4B", "8B"):
        column = "R(S2)" if benchmark == "pope" else "R"
        assert rounds_to(scores(number, model, benchmark)[column], eight[f"{model}-R"], 1)
        assert rounds_to(scores(number, model, benchmark)["S"], eight[f"{model}-S"], 1)


def test_gains_of_table_8_are_relative_to_the_simple_prompt() -> None:
    rows = table(8)["rows"]
    transfers = {row: cells for row, cells in rows.items() if "gain" in cells}
    assert list(transfers) == ["4B + 2B-R", "8B + 2B-R", "8B + 4B-R"]
    for row, cells in transfers.items():
        for score, base, gain in zip(cells["score"], rows[f"{row[:2]}-S"]["score"], cells["gain"], strict=True):
            assert 100 * (score - base) / base == pytest.approx(gain, abs=0.11), (row, score, base)


def test_table_9_begins_and_ends_with_numbers_of_other_tables() -> None:
    nine = table(9)
    assert len(nine["tokens"]) == len(nine["f1"]) == len(nine["columns"])
    assert nine["f1"][-1] == of_table_10("pope")["Full RT"]
    assert nine["f1_8B-S"] == of_table_10("pope")["8B-S"]
    assert nine["tokens"][-1] == scores(5, "2B", "pope")["R"]
    assert max(nine["tokens"]) == nine["tokens"][-1]


def test_speedups_of_tables_11_and_12_are_quotients_of_their_times() -> None:
    eleven = table(11)["rows"]
    for full_rt, mai, speedup in zip(eleven["Full RT"], eleven["MAI"], eleven["speedup"], strict=True):
        assert rounds_to(full_rt / mai, speedup, 2)
    twelve = {name: dict(zip(table(12)["columns"], row, strict=True)) for name, row in table(12)["rows"].items()}
    for name, row in twelve.items():
        assert row["total_s"] / 2500 == pytest.approx(row["s_per_sample"], rel=0.01)
        base = twelve["8B-R, HF" if row["backend"] == "HF" else "8B-R, vLLM"]
        assert rounds_to(base["total_s"] / row["total_s"], row["speedup"], 2), name


def test_rejected_shares_of_the_step_profiles_follow_from_their_counts() -> None:
    for row in paper_numbers.load()["step_profiles"]["rows"].values():
        assert rounds_to(100 * (1 - row["accepted"] / row["proposed"]), row["rejected_share"], 2)


def rows_of_table_16() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for layer, methods in table(16)["rows"].items():
        for method, row in methods.items():
            yield layer, method, row


def test_kept_tokens_of_table_16_can_have_80_percent_of_the_weight() -> None:
    totals = {"8B + 2B-R": 120, "8B + 8B-R": 256}
    assert len(list(rows_of_table_16())) == 14
    for layer, method, row in rows_of_table_16():
        (percent, kept), shares = row["kept"], row["shares"]
        assert rounds_to(100 * kept / totals[method], percent, 1), (layer, method)
        assert len(shares) == 15 and shares == sorted(shares, reverse=True)
        assert sum(shares) + (kept - 15) * shares[-1] >= 80 - 0.75  # 15 rounded shares
        assert 13 <= len(row["tokens"].split(" ")) <= 15


def test_lookups_name_their_place_and_return_none_for_what_the_paper_lacks() -> None:
    found = paper_numbers.cascade("pope", "transfer")
    assert found is not None and (found.value, found.source) == (4.97, "Table 10 (Section 5.4), POPE, transfer")
    found = paper_numbers.transfer("8B + 4B-R", "realworldqa")
    assert found is not None and found.value == 70.2
    found = paper_numbers.two_stage("mmmu_val", "2B-R(S2)", "MAI")
    assert found is not None and found.value == 61.0
    found = paper_numbers.cell(13, "14B", "infovqa_val", "E")
    assert found is not None and found.value == 52.5
    for missing in (
        paper_numbers.cascade("shapes", "MAI"),
        paper_numbers.transfer("14B + 2B-R", "pope"),
        paper_numbers.two_stage("shapes", "2B-R", "MAI"),
        paper_numbers.cell(7, "8B", "pope", "S"),
        paper_numbers.cell(7, "8B", "mmmu_val", "R(S2)"),
    ):
        assert missing is None
    assert paper_numbers.family("Qwen/Qwen3-VL-4B-Instruct") == ("Qwen3-VL", "4B")
    assert paper_numbers.family("./demo/small") is None
