"""Speculative decoding of the transformers engine, on the demo pair in fp32: the assistant sees the images, and its
drafts are counted."""

from typing import Any

import pytest
import torch
from support.engines import engine_of, prompt, started

from lmms_eval_mai.contract import Call, Image, Prompt, Sampling
from lmms_eval_mai.paper import prompts
from lmms_eval_mai.plugin import task_dir
from lmms_eval_mai.run import presets
from lmms_eval_mai.run.loop import LoopThread

pytestmark = pytest.mark.long

UNTIL_END = Sampling(max_tokens=200)
PAIR = presets.load("demo")


@pytest.fixture(scope="module")
def questions() -> list[Prompt]:
    """The first documents of shapes, with the Reasoning prompt."""
    import datasets

    file = str(task_dir() / "shapes" / "test.parquet")
    documents = datasets.load_dataset("parquet", data_files=file, split="train").select(range(4))
    return [_question(number, document) for number, document in enumerate(documents)]


def _question(number: int, document: dict[str, Any]) -> Prompt:
    options = [f"{letter}. {document[letter]}" for letter in "ABCD" if document[letter]]
    instruction = prompts.instruction("R", "letter" if options else "word")
    image = Image(document["image"].convert("RGB"), str(number))
    return prompt(number, image, "\n".join([document["question"], *options, instruction]))


def calls_of(loop: LoopThread, questions: list[Prompt], **arguments: Any) -> tuple[list[Call], list[int]]:
    """Return the large model's calls, and how often each of the vision towers ran."""
    runs: dict[Any, int] = {}

    def count(module: Any, *_: Any) -> None:
        if module.__class__.__name__.endswith("VisionModel"):
            runs[module] = runs.get(module, 0) + 1

    hook = torch.nn.modules.module.register_module_forward_hook(count)
    given = {f"small_{name}": value for name, value in arguments.items()}
    with started(engine_of(engine="transformers", small=PAIR["large"], dtype="float32", **given), loop) as running:
        calls = running.generate(*questions, sampling=UNTIL_END)
    hook.remove()
    assert all(isinstance(call, Call) for call in calls), calls
    return calls, list(runs.values())


@pytest.fixture(scope="module")
def alone(loop: LoopThread, questions: list[Prompt]) -> list[Call]:
    return calls_of(loop, questions)[0]


@pytest.mark.parametrize("assistant_images", [True, False])
def test_drafts_change_no_token_their_counts_add_up_and_each_vision_tower_runs_once_a_call(
    loop: LoopThread, questions: list[Prompt], alone: list[Call], assistant_images: bool
) -> None:
    own = {"assistant_model": PAIR["small"], "num_assistant_tokens": 5, "assistant_images": assistant_images}
    calls, runs = calls_of(loop, questions, **own)
    assert runs == [len(questions)] * (2 if assistant_images else 1)  # that of the model, and of its assistant
    for call, wanted in zip(calls, alone, strict=True):
        assert (call.text, call.output_tokens) == (wanted.text, wanted.output_tokens)
        assert call.accepted_tokens + call.target_calls == call.output_tokens
        # Without `num_assistant_tokens=5` a draft has up to 20 tokens.
        assert 0 <= call.accepted_tokens <= call.proposed_tokens <= 5 * call.target_calls
        assert call.proposed_tokens > call.target_calls > 1
        assert (wanted.proposed_tokens, wanted.accepted_tokens, wanted.target_calls) == (None, None, None)
    assert sum(call.accepted_tokens for call in calls) > 0


def test_an_assistant_that_is_the_model_itself_has_all_its_tokens_accepted(
    loop: LoopThread, questions: list[Prompt]
) -> None:
    for call in calls_of(loop, questions, assistant_model=PAIR["large"])[0]:
        # transformers counts a drafted end token as the target's own.
        assert call.proposed_tokens - call.accepted_tokens <= 1 < call.accepted_tokens, call
