"""The public function `lmms_eval_mai.analysis.read`, and the example in docs/reports.md."""

import re
from pathlib import Path
from typing import Any

import pandas as pd
from support.folders import LARGE, POPE, SMALL, Answers, World, line, write_run

from lmms_eval_mai.analysis import KEYS, read
from lmms_eval_mai.analysis.frames import CALLS, SAMPLES, samples_and_calls, wall_s_by_task

DOCS = Path(__file__).parents[2] / "docs" / "reports.md"


def test_all_samples_and_calls_have_the_keys_of_their_run_in_front(tmp_path: Path) -> None:
    older = POPE.write(tmp_path, "mai", time="20260101_000000")
    POPE.write(tmp_path, "mai", time="20260102_000000")
    POPE.write(tmp_path, "small", "r", time="20260103_000000")
    write_run(tmp_path, "pope", [line(0, "yes", "yes", 1.0)], model="qwen3_vl", model_args="pretrained=a/big", time="4")
    samples, calls = read([str(tmp_path)])
    assert list(samples) == [*KEYS, "doc_id", *SAMPLES] and list(calls) == [*KEYS, *CALLS]
    found = samples.groupby("name")[["method", "small", "large"]].first().to_dict("index")
    assert found == {
        "MAI": {"method": "mai", "small": SMALL, "large": LARGE},
        "small R": {"method": "small", "small": SMALL, "large": ""},
        "big, own prompt": {"method": "", "small": "", "large": "a/big"},
    }
    mai = samples[samples.method == "mai"]
    assert len(mai) == 8 and str(older) in set(mai.run)  # also the run that a report leaves out
    assert len(calls[calls.run == str(older)]) == 2 + 3 + 4 + 4


def test_the_example_of_the_documentation_answers_its_questions(tmp_path: Path, monkeypatch: Any) -> None:
    kinds = [Answers("A", "A", "A", "A", "A", category=kind) for kind in ("maps", "maps", "tables")]
    World("shapes", kinds).write(tmp_path / "out", "mai")
    POPE.write(tmp_path / "out", "full_rt", time="20260102_000000")
    (example,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(), flags=re.DOTALL)
    names: dict[str, Any] = {}
    monkeypatch.chdir(tmp_path)
    exec(example, names)
    by_category: pd.DataFrame = names["by_category"]
    assert by_category.loc[("shapes", "maps", "agree_short")].tolist() == [2, 1]
    assert names["lengths"].loc[("full_rt", "small")].tolist() == [100, 100]


def test_the_time_between_the_ends_of_two_documents_belongs_to_the_task_of_the_second_one() -> None:
    ends = {"pope_s": (10.0, 30.0), "pope_r": (14.0, 31.0)}
    rows = {
        task: [{"doc_id": number, "started_at": end - 0.5, "seconds": 0.5} for number, end in enumerate(several)]
        for task, several in ends.items()
    }
    columns = {name: 0 for name, (kind, _) in CALLS.items() if kind is int}
    calls = {task: samples_and_calls([], [columns | row for row in several]).calls for task, several in rows.items()}
    assert wall_s_by_task(calls) == {"pope_s": 0.5 + 16, "pope_r": 4 + 1}
    assert sum(wall_s_by_task(calls, is_resumed=True).values()) == 0.5 + 4 + 0.5 + 1  # a pause of 15.5 s
    calls["pope_r"].loc[0, "seconds"] = None  # it is shared
    assert wall_s_by_task(calls) == {}
