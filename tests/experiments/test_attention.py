"""The scripts of experiments/attention on the demo pair."""

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).resolve().parents[2]
LARGE = ROOT / "lmms_eval_mai" / "pairs" / "demo" / "large"


@pytest.mark.long
def test_scripts_make_all_tables_and_figures_from_logged_runs(tmp_path: Path) -> None:
    """The commands of experiments/attention/README.md, with few documents."""
    model_args = "pair=demo,engine=transformers,dtype=float32,store=off"
    runs = {"small": "method=full_rt,transfer=sparse,sparse_layer=2", "large": "method=large"}
    for side, method in runs.items():
        line = ["lmms_eval", "--model", "mai_cascade", "--model_args", f"{model_args},{method}"]
        line += ["--tasks", "shapes_r", "--limit", "3"]
        run([*line, "--log_samples", "--output_path", str(tmp_path / side)])
    script = ["--model", str(LARGE), "--task", "shapes_r", "--dtype", "float32", "--output", str(tmp_path / "out")]
    options = ["--thinking", str(tmp_path / "small"), "--layers", "2,5", "--max_new_tokens", "64"]
    run(["experiments.attention.table9", *script, *options])
    sides = [part for side in runs for part in (f"--{side}", str(tmp_path / side))]
    run(["experiments.attention.figures", *script, *sides])
    images = [f"{name}.{kind}" for name in ("table9", "figure3", "figure4", "figure5") for kind in ("svg", "png")]
    assert all((tmp_path / "out" / name).stat().st_size > 1000 for name in images)

    answers = pd.read_csv(tmp_path / "out" / "answers.csv")
    assert set(answers["doc_id"]) == {0, 1, 2}
    # The same tokens and the same answers as in the run of the package with this layer.
    logged = pd.concat(
        pd.read_json(file, lines=True) for file in (tmp_path / "small").rglob("*_samples_shapes_r.jsonl")
    ).set_index("doc_id")
    ours = answers[(answers["method"] == "sparse") & (answers["layer"] == 2)].set_index("doc_id")
    for number, sample in logged.iterrows():
        (trace,) = sample["token_counts"]
        assert trace["selection"]["kept_tokens"] == ours.loc[number, "kept_tokens"]
        assert trace["calls"][-1]["text"] == ours.loc[number, "text"]
        assert trace["calls"][-1]["prompt_tokens"] == ours.loc[number, "prompt_tokens"]

    table9, heads = (pd.read_csv(tmp_path / "out" / f"{name}.csv") for name in ("table9", "figures"))
    assert len(table9) == 2 + 3 * 2 and len(heads) == 2 * 6 * 4
    assert heads["total_weight"].between(0, 1, inclusive="neither").all()
    assert pd.read_csv(tmp_path / "out" / "corollary1.csv")["violations"].sum() == 0


def run(line: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", *line], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
