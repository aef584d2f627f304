"""The paper's numbers: each has a table and a source, and is found by its place."""

import pandas as pd

from lmms_eval_mai.analysis import paper_numbers
from lmms_eval_mai.analysis.paper_numbers import table
from lmms_eval_mai.method.benchmarks import BENCHMARKS

SIZES = {5: 54, 6: 15, 7: 45, 8: 66, 9: 19, 10: 66, 11: 18, 13: 90, 14: 90, 15: 66}
"""Table -> its numbers: rows times benchmarks times columns."""


def test_every_table_has_a_source_and_all_its_numbers_once() -> None:
    cells = pd.read_csv(paper_numbers.CELLS, keep_default_na=False)
    benchmarks = list(paper_numbers.load()["benchmarks"])
    assert set(benchmarks) == set(BENCHMARKS) - {"shapes"}
    assert [paper_numbers.documents(name) for name in benchmarks] == [9000, 900, 4329, 2500, 2801, 765]
    assert list(paper_numbers.load()["tables"]) == [str(number) for number in range(1, 16)]
    for one in range(1, 16):
        assert table(one)["source"].startswith(f"Table {one} ("), one
    for one in (1, 2, 3, 12):
        assert {len(row) for row in table(one)["rows"].values()} == {len(table(one)["columns"])}, one
    assert not cells.duplicated(["table", "method", "benchmark", "measure"]).any()
    assert cells.groupby("table").size().to_dict() == SIZES


def test_lookups_name_their_place_and_return_none_for_what_the_paper_lacks() -> None:
    assert paper_numbers.number(10, "MAI 8B + 2B-R", "pope", "transfer") == 4.97
    for row in ((10, "8B-S", "shapes", "score"), (7, "8B-S", "pope", "score"), (7, "8B-R(S2)", "mmmu_val", "score")):
        assert paper_numbers.number(*row) is None
    assert paper_numbers.family("Qwen/Qwen3-VL-4B-Instruct") == ("Qwen3-VL", "4B")
    assert paper_numbers.family("./demo/small") is None
