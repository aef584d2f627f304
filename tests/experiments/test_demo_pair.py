"""The demo pair: the cascade improves with the small model's thinking, and a training writes a checkpoint."""

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


def test_two_steps_of_a_training_write_a_checkpoint_that_transformers_loads(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForImageTextToText, AutoProcessor

    from experiments.demo_pair import checkpoint
    from experiments.demo_pair.train import Recipe, Training

    training = Training(tmp_path, "small", Recipe(steps=2, seed=2, images=3, samples=4, warmup=1))
    training.run(log_every=2)
    (line,) = map(json.loads, (tmp_path / "small.jsonl").read_text().splitlines())
    assert line["step"] == 2
    assert all(line[part] > 0 for part in ("loss", "cell_loss", "place_loss", "option_loss"))
    model = AutoModelForImageTextToText.from_pretrained(tmp_path / "small")
    assert model.dtype == torch.bfloat16 != training.model.dtype
    for saved, trained in zip(model.parameters(), training.model.parameters(), strict=True):
        torch.testing.assert_close(saved, trained.bfloat16())
    assert AutoProcessor.from_pretrained(tmp_path / "small").tokenizer.model_max_length == checkpoint.CONTEXT
