"""The demo pair: vLLM and transformers load its checkpoints by path and give the same texts, and the cascade improves
with the small model's thinking."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from support.processes import DEMO_DOCUMENTS

from lmms_eval_mai.paper import prompts
from lmms_eval_mai.paper.agreement import extract_answer, without_answer
from lmms_eval_mai.paper.benchmarks import BENCHMARKS
from lmms_eval_mai.run import presets

COMPARED = 50
"""Number of documents for which transformers repeats every call."""
Sample = dict[str, Any]

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def documents() -> list[dict[str, Any]]:
    import datasets

    from lmms_eval_mai.plugin import task_dir

    file = str(task_dir() / "shapes" / "test.parquet")
    return list(datasets.load_dataset("parquet", data_files=file, split="train").select(range(DEMO_DOCUMENTS)))


@pytest.fixture(scope="module")
def samples(demo_run: Any, documents: list[dict[str, Any]]) -> list[Sample]:
    """Return the samples that lmms-eval logged, each with its document."""
    found = demo_run[1]
    assert len(found) == DEMO_DOCUMENTS
    return [{**sample, "doc": documents[sample["doc_id"]]} for sample in found]


def calls(sample: Sample) -> dict[tuple[str, str], str]:
    """Return the texts of a sample's calls by side and stage."""
    return {(call["side"], call["stage"]): call["text"] for call in sample["token_counts"][0]["calls"]}


def right(text: str, sample: Sample) -> bool:
    return extract_answer(text).lower() == sample["target"].lower()


def test_the_checkpoints_are_small_and_in_bf16() -> None:
    from safetensors import safe_open

    files = [path for path in (presets.FOLDER / "demo").rglob("*") if path.is_file()]
    assert sum(file.stat().st_size for file in files) <= 20 * 2**20
    for side in ("small", "large"):
        folder = Path(presets.load("demo")[side])
        assert json.loads((folder / "config.json").read_text())["architectures"] == ["Qwen3VLForConditionalGeneration"]
        with safe_open(folder / "model.safetensors", "pt") as weights:
            assert {weights.get_slice(name).get_dtype() for name in weights.keys()} == {"BF16"}  # noqa: SIM118


def test_transformers_gives_the_same_text_as_vllm_in_every_call(
    samples: list[Sample], documents: list[dict[str, Any]]
) -> None:
    seen: Counter[str] = Counter()
    for side in ("small", "large"):
        model, processor = load(side)
        for sample in samples[:COMPARED]:
            for (by, stage), text in calls(sample).items():
                if by == side:
                    assert answer(model, processor, sample["doc"], ending(sample, stage)) == text
                    seen[f"{side} {stage}"] += 1
    assert seen["small short"] == seen["large short"] == COMPARED
    assert seen["small think"] > seen["large transfer"] > 0


def load(side: str) -> tuple[Any, Any]:
    from transformers import AutoModelForImageTextToText, AutoProcessor

    folder = presets.load("demo")[side]
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    return model, AutoProcessor.from_pretrained(folder)


def ending(sample: Sample, stage: str) -> str:
    """Return the text after the question, from the templates and the texts of the sample's calls."""
    kind: prompts.Kind = "letter" if sample["doc"]["A"] else "word"
    match stage:
        case "short":
            return prompts.instruction("S", kind)
        case "think":
            return prompts.instruction("R", kind)
        case _:
            return prompts.transfer("shapes", without_answer(calls(sample)["small", "think"]), kind)


def answer(model: Any, processor: Any, doc: dict[str, Any], instruction: str) -> str:
    image = doc["image"]
    assert isinstance(image, Image.Image)
    options = [f"{letter}. {doc[letter]}" for letter in "ABCD" if doc[letter]]
    text = "\n".join([doc["question"], *options, instruction])
    content = [{"type": "image", "image": image.convert("RGB")}, {"type": "text", "text": text}]
    inputs = processor.apply_chat_template(
        [{"role": "user", "content": content}],
        tokenize=True,
        add_generation_prompt=True,
        return_dict=True,
        return_tensors="pt",
    )
    tokens = model.generate(**inputs, max_new_tokens=400, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    return str(processor.decode(tokens, skip_special_tokens=True))


def test_the_score_and_the_exits_follow_from_the_traces(demo_run: Any, samples: list[Sample]) -> None:
    parse = BENCHMARKS["shapes"].parse
    for sample in samples:
        texts = calls(sample)
        answers = {call: parse(extract_answer(text), sample["doc"]) for call, text in texts.items()}
        final, exit = texts["large", "short"], "agree_short"
        assert answers["large", "short"]
        if answers["small", "short"] != answers["large", "short"]:
            exit = "agree_think"
            if answers["small", "think"] != answers["large", "short"]:
                final, exit = texts["large", "transfer"], "transfer"
        assert sample["token_counts"][0]["exit"] == exit
        assert sample["exact_match"] == float(right(final, sample))
    score = sum(sample["exact_match"] for sample in samples) / DEMO_DOCUMENTS
    assert demo_run[0]["scores"]["exact_match,none"] == pytest.approx(score)


def test_every_exit_occurs_and_the_cascade_beats_both_short_answers(samples: list[Sample]) -> None:
    exits = Counter(sample["token_counts"][0]["exit"] for sample in samples)
    assert set(exits) == {"agree_short", "agree_think", "transfer"}
    assert exits["agree_short"] >= DEMO_DOCUMENTS / 2
    short = {side: sum(right(calls(s)[side, "short"], s) for s in samples) for side in ("small", "large")}
    cascade = sum(sample["exact_match"] for sample in samples)
    assert short["small"] + 10 <= short["large"] < cascade
