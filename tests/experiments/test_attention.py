"""The measurements of attention: the kept tokens, Corollary 1, the paired tests of Table 9, and the scripts on the demo
pair."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from support.arithmetic import few
from transformers import AutoModelForImageTextToText

from experiments.attention.documents import random_positions
from experiments.attention.figures import corollary, summary
from experiments.attention.reading import LargeModel, Reading, kept
from experiments.attention.table9 import table
from lmms_eval_mai.paper.sparse import Sparse, select

ROOT = Path(__file__).resolve().parents[2]
LARGE = ROOT / "lmms_eval_mai" / "pairs" / "demo" / "large"
WEIGHTS = st.lists(st.integers(1, 1000), min_size=1, max_size=30)


@few
@given(WEIGHTS, st.floats(0.01, 0.99))
def test_kept_tokens_are_those_that_the_package_selects(weights: list[int], delta: float) -> None:
    found = kept(np.array([weights[::-1], weights], dtype=float), delta)[1]
    selection = select([str(number) for number in weights], weights, Sparse(delta))
    if abs(selection.share - delta) > 1e-6:  # else the two sums may round differently
        assert set(np.flatnonzero(found)) == set(selection.positions)
    heaviest_first = sorted(weights, reverse=True)
    assert sum(heaviest_first[: found.sum()]) >= (delta - 1e-6) * sum(weights)
    assert sum(heaviest_first[: found.sum() - 1]) < delta * sum(weights)


def random_reading(seed: int, tokens: int, sharpness: float) -> Reading:
    random = np.random.default_rng(seed)
    weights = np.exp(sharpness * random.standard_normal((2, 4, tokens)))
    return Reading(tuple("a" * tokens), weights, random.standard_normal((2, 2, tokens, 3)))


@few
@given(
    seed=st.integers(0, 10**6),
    tokens=st.tuples(st.integers(1, 25), st.integers(1, 25)),
    delta=st.floats(0.5, 0.99),
    sharpness=st.floats(0, 5),
)
def test_corollary_holds_for_any_weights_and_vectors(
    seed: int, tokens: tuple[int, int], delta: float, sharpness: float
) -> None:
    large, small = (random_reading(seed + n, count, sharpness) for n, count in enumerate(tokens))
    found = corollary(large, small, delta)
    assert len(found) == 2 * 4 and (found["right_of_shares"] <= found["right"] + 1e-6 * found["c"]).all()
    assert (found["left"] <= found["trivial"] + 1e-9).all()
    by_layer = summary(found)
    assert by_layer["violations"].sum() == by_layer["violations_of_shares"].sum() == 0


def test_both_sides_of_a_case_that_is_computed_by_hand() -> None:
    # Large: 0.9 at (2, 0) and 0.1 at (0, 1). Small: all weight at (0, 1). c = 2. With delta 0.8 the large model's
    # thinking keeps one token of two, with a share of 0.9.
    large = Reading(("a", "b"), np.array([[[0.45, 0.05]]]), np.array([[[[2.0, 0.0], [0.0, 1.0]]]]))
    small = Reading(("a",), np.array([[[0.3]]]), np.array([[[[0.0, 1.0]]]]))
    (row,) = corollary(large, small, 0.8).to_dict("records")
    expected = {"left": np.hypot(1.8, 0.9), "right": np.hypot(2, 1) + 0.8 * 2, "c": 2.0}
    expected |= {"right_of_shares": np.hypot(2, 1) + 2 * 0.1 * 2, "trivial": np.hypot(1.8, 0.1) + 1}
    assert {name: row[name] for name in expected} == pytest.approx(expected)


@few
@given(tokens=st.integers(0, 60), seed=st.text(max_size=5), data=st.data())
def test_random_tokens_are_positions_of_the_thinking_and_grow_with_their_number(
    tokens: int, seed: str, data: st.DataObject
) -> None:
    count = data.draw(st.integers(0, tokens))
    found = random_positions(tokens, count, seed)
    assert len(found) == count and found == sorted(set(found)) and set(found) <= set(range(tokens))
    assert set(found) <= set(random_positions(tokens, min(count + 1, tokens), seed))


def test_methods_of_table_9_are_compared_on_the_same_documents() -> None:
    scores = {("simple", None): 0.0, ("full", None): 1.0, ("sparse", 1): 1.0, ("random", 1): 0.0, ("last", 1): 0.5}
    rows: list[dict[str, Any]] = []
    for number in range(20):
        for (method, layer), score in scores.items():
            mine = 0.0 if (number, method) == (0, "sparse") else score
            rows.append({"doc_id": number, "method": method, "layer": layer, "score": mine, "results": mine})
            rows[-1] |= {"kept_tokens": 4, "prompt_tokens": 50}
    answers = pd.DataFrame(rows).astype({"layer": "Int64"})
    found = table(answers, lambda results: {"share": sum(results) / len(results)}, {("sparse", 1): (9.0, 88.0)})
    found = found.set_index("method")
    sparse = found.loc["sparse"]
    assert (sparse["score"], sparse["share"], sparse["documents"], sparse["paper_f1"]) == (0.95, 0.95, 20, 88.0)
    assert (sparse["full_better"], sparse["full_worse"], sparse["full_p"]) == (0, 1, 1.0)
    assert (sparse["random_better"], sparse["random_worse"]) == (19, 0)
    assert sparse["random_p"] == pytest.approx(2 * 0.5**19)
    assert (sparse["last_better"], sparse["last_worse"]) == (19, 1)
    assert (found.loc["full"]["simple_better"], found.loc["last"]["full_worse"]) == (20, 20)


@pytest.mark.long
def test_weights_of_each_head_equal_eager_attention() -> None:
    model = LargeModel(str(LARGE), "cpu", "float32")
    eager = AutoModelForImageTextToText.from_pretrained(LARGE, dtype="float32", attn_implementation="eager").eval()
    thinking, after = "Row 1: é red ring 日本 [[x]]", "\n Answer the question."
    content = [{"type": "image", "image": Image.new("RGB", (96, 96), "red")}]
    content.append({"type": "text", "text": f"Is it red? {thinking}{after}"})
    chat = [{"role": "user", "content": content}]
    reading = model.read(chat, thinking, after)
    inputs = model._inputs([chat])
    ids = inputs["input_ids"][0].tolist()
    begin = next(i for i in reversed(range(len(ids))) if thinking in model.processor.tokenizer.decode(ids[i:]))
    with torch.inference_mode():
        attentions = torch.stack(eager(**inputs, output_attentions=True).attentions)[:, 0, :, -1]
    expected = attentions[:, :, begin : begin + len(reading.tokens)]
    assert "".join(reading.tokens) == thinking
    torch.testing.assert_close(torch.tensor(reading.weights).float(), expected, rtol=0, atol=1e-5)


@pytest.mark.long
def test_scripts_make_all_tables_and_figures_from_logged_runs(tmp_path: Path) -> None:
    """The commands of experiments/attention/README.md, with few documents."""
    model_args = "pair=demo,engine=transformers,dtype=float32,store=off"
    runs = {"small": f"{model_args},mode=transfer,transfer=sparse,sparse_layer=2", "large": f"{model_args},mode=large"}
    for side, arguments in runs.items():
        line = ["lmms_eval", "--model", "mai_cascade", "--model_args", arguments, "--tasks", "shapes_r", "--limit", "3"]
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
