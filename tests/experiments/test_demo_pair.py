"""The demo pair: the cascade improves with the small model's thinking, and an interrupted training continues."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.processes import DEMO_DOCUMENTS

from lmms_eval_mai.method.agreement import extract_answer

pytestmark = pytest.mark.long


def right(sample: dict[str, Any], side: str) -> bool:
    """Return whether the short answer of a model is right."""
    calls = sample["token_counts"][0]["calls"]
    (text,) = [call["text"] for call in calls if (call["side"], call["prompt"]) == (side, "simple")]
    return extract_answer(text).lower() == sample["target"].lower()


def test_every_exit_occurs_and_the_cascade_beats_both_short_answers(demo_run: Any) -> None:
    samples = demo_run[1]
    exits = Counter(sample["token_counts"][0]["exit"] for sample in samples)
    assert set(exits) == {"agree_short", "agree_think", "transfer"} and exits["agree_short"] >= DEMO_DOCUMENTS / 2
    small, large = (sum(right(sample, side) for sample in samples) for side in ("small", "large"))
    assert small + 10 <= large < sum(sample["exact_match"] for sample in samples)


def test_an_interrupted_training_gives_the_same_checkpoint(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForImageTextToText, AutoProcessor

    from experiments.demo_pair import checkpoint
    from experiments.demo_pair.train import Recipe, Training

    recipe = Recipe(steps=2, seed=2, images=3, samples=4, warmup=1)
    Training(tmp_path / "whole", "small", recipe).run(log_every=2)
    interrupted = Training(tmp_path / "parts", "small", recipe)
    interrupted.step()
    interrupted.save_state()
    Training(tmp_path / "parts", "small", recipe).run(log_every=2)
    lines = [json.loads(line) for line in (tmp_path / "parts" / "small.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [2]
    assert all(line[part] > 0 for line in lines for part in ("loss", "cell_loss", "place_loss", "option_loss"))
    models = [AutoModelForImageTextToText.from_pretrained(tmp_path / one / "small") for one in ("whole", "parts")]
    assert models[0].dtype == torch.bfloat16
    for a, b in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(a, b)
    assert AutoProcessor.from_pretrained(tmp_path / "parts" / "small").tokenizer.model_max_length == checkpoint.CONTEXT
