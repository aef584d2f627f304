"""Speculative decoding of the transformers engine, on the demo pair in fp32: the assistant sees the images, and its
drafts are counted."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.engines import Running, engine_of, prompt, started

from lmms_eval_mai.contract import Call, Image, Prompt, Sampling
from lmms_eval_mai.engines.transformers.options import TransformersOptions
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.paper import prompts
from lmms_eval_mai.plugin import task_dir
from lmms_eval_mai.run import presets
from lmms_eval_mai.run.event_loop import LoopThread

UNTIL_END = Sampling(max_tokens=200)
DOCUMENTS = 4


@pytest.fixture(scope="module")
def questions() -> list[Prompt]:
    """The first documents of shapes, with the Reasoning prompt."""
    import datasets

    file = str(task_dir() / "shapes" / "test.parquet")
    documents = datasets.load_dataset("parquet", data_files=file, split="train").select(range(DOCUMENTS))
    return [_question(number, document) for number, document in enumerate(documents)]


def _question(number: int, document: dict[str, Any]) -> Prompt:
    options = [f"{letter}. {document[letter]}" for letter in "ABCD" if document[letter]]
    instruction = prompts.instruction("R", "letter" if options else "word")
    image = Image(document["image"].convert("RGB"), str(number))
    return prompt(number, image, "\n".join([document["question"], *options, instruction]))


@pytest.fixture(scope="module")
def large() -> dict[str, Any]:
    """The arguments of the large model of the demo pair, as the engine `small`."""
    return {"engine": "transformers", "small": presets.load("demo")["large"], "dtype": "float32"}


@pytest.fixture(scope="module")
def alone(large: dict[str, Any], loop: LoopThread) -> Iterator[Running]:
    with started(engine_of(**large), loop) as running:
        yield running


@pytest.fixture(scope="module")
def drafted_by_small(large: dict[str, Any], loop: LoopThread) -> Iterator[Running]:
    drafts = {"small_assistant_model": presets.load("demo")["small"], "small_num_assistant_tokens": 5}
    with started(engine_of(**large, **drafts), loop) as running:
        yield running


@pytest.fixture(scope="module")
def drafted_by_itself(large: dict[str, Any], loop: LoopThread) -> Iterator[Running]:
    with started(engine_of(**large, small_assistant_model=large["small"]), loop) as running:
        yield running


@pytest.mark.slow
def test_the_assistants_vision_tower_runs_once_a_call(drafted_by_small: Running, questions: list[Prompt]) -> None:
    runs: dict[Any, int] = {}
    """Vision tower -> number of its runs."""

    def count(module: Any, *_: Any) -> None:
        if module.__class__.__name__.endswith("VisionModel"):
            runs[module] = runs.get(module, 0) + 1

    hook = torch.nn.modules.module.register_module_forward_hook(count)
    for number, one in enumerate(questions, start=1):
        (call,) = drafted_by_small.generate(one, sampling=UNTIL_END)
        assert isinstance(call, Call) and call.target_calls > 1
        assert list(runs.values()) == [number, number]  # that of the model and that of its assistant
    hook.remove()


@pytest.mark.slow
def test_an_assistant_that_is_the_model_itself_has_all_its_tokens_accepted(
    drafted_by_itself: Running, questions: list[Prompt]
) -> None:
    for one in questions:
        (call,) = drafted_by_itself.generate(one, sampling=UNTIL_END)
        # transformers counts a drafted end token as the target's own.
        assert call.proposed_tokens - call.accepted_tokens <= 1 < call.accepted_tokens, call


@pytest.mark.slow
def test_accepted_tokens_and_target_calls_add_up_to_the_output_and_the_text_is_that_of_the_model_alone(
    alone: Running, drafted_by_small: Running, questions: list[Prompt]
) -> None:
    for one in questions:
        (wanted,), (call,) = (running.generate(one, sampling=UNTIL_END) for running in (alone, drafted_by_small))
        assert (call.text, call.output_tokens) == (wanted.text, wanted.output_tokens)
        assert call.accepted_tokens + call.target_calls == call.output_tokens
        # Without `num_assistant_tokens=5` a draft has up to 20 tokens.
        assert 0 < call.accepted_tokens <= call.proposed_tokens <= 5 * call.target_calls
        assert call.proposed_tokens > call.target_calls
        assert (wanted.proposed_tokens, wanted.accepted_tokens, wanted.target_calls) == (None, None, None)


def test_assistant_with_another_vocabulary_is_refused_before_the_start(tmp_path: Path) -> None:
    pair = presets.load("demo")
    other = json.loads(Path(pair["small"], "config.json").read_text())
    other["text_config"]["vocab_size"] = 600
    (tmp_path / "config.json").write_text(json.dumps(other))
    with pytest.raises(ArgumentError, match=f"{tmp_path} has a vocabulary of 600 tokens, and large=.* one of 629"):
        TransformersOptions(assistant_model=str(tmp_path)).check("large", pair["large"])
    TransformersOptions(assistant_model=pair["small"]).check("large", pair["large"])


def test_num_assistant_tokens_without_an_assistant_is_refused() -> None:
    folder = presets.load("demo")["small"]
    with pytest.raises(ArgumentError, match="large_num_assistant_tokens=5 needs large_assistant_model"):
        TransformersOptions(num_assistant_tokens=5).check("large", folder)
    with pytest.raises(ArgumentError, match="num_assistant_tokens=0 is invalid"):
        TransformersOptions(num_assistant_tokens=0, assistant_model=folder)
