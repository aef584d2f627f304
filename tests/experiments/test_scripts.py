"""The other experiments: what they import, and a smoke test for each script that the demo pair can run."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
import yaml
from PIL import Image
from support.processes import evaluate
from support.serving import scripted, start_command

import lmms_eval_mai
from lmms_eval_mai.method.agreement import extract_answer

ROOT = Path(__file__).resolve().parents[2]


def test_the_cascade_of_ray_serve_calls_the_models_that_are_served() -> None:
    ray = yaml.safe_load((ROOT / "experiments" / "ray" / "demo_pair.yaml").read_text())
    models, cascade = ray["applications"]
    config = lmms_eval_mai.parse({"store": "off", **cascade["args"]})
    port = ray["http_options"]["port"]
    for engine, served in zip(config.engines(), models["args"]["llm_configs"], strict=True):
        loading = served["model_loading_config"]
        assert engine.model == f"http://127.0.0.1:{port}{models['route_prefix']}/v1"
        assert engine.arguments["model"] == loading["model_id"]
        assert (ROOT / loading["model_source"] / "config.json").exists()


def run(*line: str) -> None:
    done = subprocess.run([sys.executable, "-m", *line], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
def test_traces_of_ones_own_questions_of_a_server_with_a_key(tmp_path: Path) -> None:
    process, url = start_command(tmp_path, "--api_key_env", "SERVER_KEY", **scripted(tmp_path))
    Image.new("RGB", (8, 6)).save(tmp_path / "1.png")
    lines = [{"id": "a", "question": "A dog?"}, {"id": "b", "question": "Which?", "options": ["a dog", "a cat"]}]
    (tmp_path / "mine.jsonl").write_text("\n\n".join(json.dumps({**one, "image": "1.png"}) for one in lines) + "\n\n")
    line = [sys.executable, "-m", "experiments.promise.traces", tmp_path / "mine.jsonl", tmp_path / "traces"]
    line += ["--url", url, "--kinds", "large_s"]
    refused = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
    assert (refused.returncode, len(refused.stderr.splitlines())) == (1, 1) and "status 401" in refused.stderr
    keyed = {**os.environ, "SERVER_KEY": "the-key"}
    done = subprocess.run([*line, "--api_key_env", "SERVER_KEY"], cwd=ROOT, capture_output=True, text=True, env=keyed)
    os.kill(process.process.pid or 0, signal.SIGTERM)
    process.end()
    assert done.returncode == 0, done.stderr
    found = [json.loads(one) for one in (tmp_path / "traces" / "large_s.traces.jsonl").read_text().splitlines()]
    assert [(one["id"], one["mai"]["kind"]) for one in found] == [("a", "word"), ("b", "letter")]


@pytest.mark.long
def test_scripts_of_attention_make_tables_and_figures_and_select_as_a_run_does(tmp_path: Path) -> None:
    """The commands of experiments/attention/README.md, with few documents."""
    for side, method in (("small", "method=full_rt,transfer=sparse,sparse_layer=2"), ("large", "method=large")):
        line = ("lmms_eval", "--model", "mai_cascade", "--tasks", "shapes_r", "--limit", "3", "--log_samples")
        model_args = f"pair=demo,engine=transformers,dtype=float32,store=off,{method}"
        run(*line, "--model_args", model_args, "--output_path", str(tmp_path / side))
    large = str(ROOT / "lmms_eval_mai" / "pairs" / "demo" / "large")
    script = ("--model", large, "--task", "shapes_r", "--dtype", "float32", "--output", str(tmp_path))
    small = ("--thinking", str(tmp_path / "small"), "--layers", "2,5", "--max_new_tokens", "64")
    run("experiments.attention.table9", *script, *small)
    run(
        "experiments.attention.figures", *script, "--small", str(tmp_path / "small"), "--large", str(tmp_path / "large")
    )
    for name in ("table9", "figure3", "figure4", "figure5"):
        assert (tmp_path / f"{name}.svg").stat().st_size > 1000
    answers = pd.read_csv(tmp_path / "answers.csv")
    ours = answers[(answers["method"] == "sparse") & (answers["layer"] == 2)].set_index("doc_id")
    (file,) = (tmp_path / "small").rglob("*_samples_shapes_r.jsonl")
    logged = pd.read_json(file, lines=True).set_index("doc_id")["token_counts"]
    assert set(ours.index) == set(logged.index) == {0, 1, 2}
    for number, (trace,) in logged.items():
        assert trace["selection"]["kept_tokens"] == ours.loc[number, "kept_tokens"]
        assert trace["calls"][-1]["text"] == ours.loc[number, "text"]
    assert pd.read_csv(tmp_path / "corollary1.csv")["violations"].sum() == 0


@pytest.mark.long
@pytest.mark.usefixtures("cores")
def test_every_exit_of_the_demo_pair_occurs_and_the_cascade_beats_both_short_answers(tmp_path: Path) -> None:
    arguments = {"pair": "demo", "dtype": "float32", "store": "off"}
    exits: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for sample in evaluate(tmp_path / "found.json", "shapes_s", 1000, arguments)[1]:
        exits[sample["token_counts"][0]["exit"]] += 1
        right["mai"] += sample["exact_match"]
        for call in sample["token_counts"][0]["calls"]:
            if call["prompt"] == "simple":
                right[call["side"]] += extract_answer(call["text"]).lower() == sample["target"].lower()
    assert set(exits) == {"agree_short", "agree_think", "transfer"} and exits["agree_short"] >= 500
    assert right["small"] + 60 <= right["large"] < right["mai"]


@pytest.mark.long
def test_two_steps_of_a_training_write_a_checkpoint_that_transformers_loads(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForImageTextToText, AutoProcessor

    from experiments.demo_pair import checkpoint
    from experiments.demo_pair.train import Recipe, Training

    training = Training(tmp_path, "small", Recipe(steps=2, seed=2, images=3, samples=4, warmup=1))
    training.run(log_every=2)
    (line,) = map(json.loads, (tmp_path / "small.jsonl").read_text().splitlines())
    assert line["step"] == 2 and all(line[part] > 0 for part in ("loss", "cell_loss", "place_loss", "option_loss"))
    model = AutoModelForImageTextToText.from_pretrained(tmp_path / "small")
    for saved, trained in zip(model.parameters(), training.model.parameters(), strict=True):
        torch.testing.assert_close(saved, trained.bfloat16())
    assert AutoProcessor.from_pretrained(tmp_path / "small").tokenizer.model_max_length == checkpoint.CONTEXT
