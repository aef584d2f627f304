"""`stop_repeats` on real engines: one rule, and the same answers, on vLLM, on vLLM's own server and on transformers."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from support.endpoints import ScriptedServer, served
from support.engines import LoopThread, engine_of, question, started
from support.servers import Server
from tokenizers import Tokenizer

from lmms_eval_mai.contract import Repetition, Sampling
from lmms_eval_mai.errors import EngineStartError
from lmms_eval_mai.method.repeats import end_of_first_pattern
from lmms_eval_mai.run.pairs import FOLDER

RULE = Repetition()
ENDLESS = Sampling(max_tokens=900, ignore_eos=True)
NUMBERS = range(1000, 1576)
SEQUENCES: dict[str, tuple[list[int], int | None]] = {
    "no pattern": ([*NUMBERS], None),
    **{f"one of {size} tokens": ([7, 8, *list(NUMBERS[:size]) * 6], 2 + 6 * size) for size in (32, 96)},
    "five of 96 tokens": ([7, 8, *list(NUMBERS[:96]) * 5], None),
    "one of 97 tokens": (list(NUMBERS[:97]) * 7, None),
    "one of 1 token": ([7, *[5] * 300], 1 + 6 * 32),
    "one of 3 tokens": ([7, *[4, 5, 6] * 100], 1 + 6 * 33),
    "another end": ([*[5] * 191, 6, *[5] * 191], None),
    "a pattern that begins late": ([*NUMBERS[:200], *[1, 2] * 97], 200 + 6 * 32),
}
"""Tokens of an output, and how many of them there are when it ends. None: it does not end."""
HONEST = {
    "a row of a markdown table": "| " + " --- |" * 30 + "\n",
    "8 equal rows": "| red | 1 | yes |\n" * 8,
    "empty cells": "| | | | | |\n" * 12,
    "a periodic fraction": "0." + "142857" * 20,
    "a matrix of zeros": "0 0 0 0 0 0 0 0\n" * 8,
    "a line": "-" * 80,
    "a list with equal ends": "".join(f"- In {year}, the value is 0.\n" for year in range(2000, 2024)),
}
"""Texts that must not end a thinking."""


def end_by(ends: Any, tokens: list[int]) -> int | None:
    return next((count for count in range(1, len(tokens) + 1) if ends(tokens[:count])), None)


def vllms_rule(tokens: list[int]) -> bool:
    """Ask the function with which vLLM's scheduler ends an output."""
    from vllm.sampling_params import RepetitionDetectionParams
    from vllm.v1.core.sched.utils import check_sequence_repetition

    return bool(check_sequence_repetition(tokens, RepetitionDetectionParams(**dataclasses.asdict(RULE))))


@pytest.mark.parametrize("name", SEQUENCES)
def test_an_output_ends_where_vllm_ends_it(name: str) -> None:
    tokens, end = SEQUENCES[name]
    assert (end_by(RULE.ends, tokens), end_by(vllms_rule, tokens)) == (end, end)


@pytest.mark.parametrize("model", ["small", "large"])
def test_tables_zeros_and_lists_end_no_thinking(model: str) -> None:
    tokenizer = Tokenizer.from_file(str(FOLDER / "demo" / model / "tokenizer.json"))
    ended = {name: end_by(RULE.ends, tokenizer.encode(text).ids) for name, text in HONEST.items()}
    assert set(ended.values()) == {None}, ended


@pytest.fixture(scope="module")
def looping(tiny_pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint without attention in its language model: each token decides the next one, so it must loop."""
    folder = shutil.copytree(tiny_pair[0], tmp_path_factory.mktemp("looping") / "model")
    weights = load_file(folder / "model.safetensors")
    for name, tensor in weights.items():
        weights[name] = tensor * 0 if "language_model" in name and "o_proj" in name else tensor
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.long
def test_a_model_that_loops_ends_after_6_patterns_on_every_engine(
    cores: None, looping: Path, loop: LoopThread, tmp_path: Path
) -> None:
    server, small = Server(looping, tmp_path / "log"), str(looping)
    server.start()
    asked, stopping = question(0), dataclasses.replace(ENDLESS, repetition_detection=RULE)
    found = {}
    try:
        with started(engine_of(small=small, dtype="float32"), loop) as running:
            endless, found["vllm"] = (running.generate(asked, sampling=one)[0] for one in (ENDLESS, stopping))
        with started(engine_of(small=small, dtype="float32", engine="transformers"), loop) as running:
            (found["transformers"],) = running.generate(asked, sampling=stopping)
        server.wait()
        with started(engine_of(small=server.url, stop_repeats=True), loop) as running:
            (found["openai"],) = running.generate(asked, sampling=stopping)
    finally:
        server.kill()
    assert (endless.finish_reason, endless.output_tokens) == ("length", ENDLESS.max_tokens)
    for call in found.values():
        assert (call.finish_reason, call.text) == ("repetition", found["vllm"].text)
        assert call.output_tokens == found["vllm"].output_tokens < 6 * RULE.max_pattern_size
        assert endless.text.startswith(call.text)
        assert end_of_first_pattern(call.text) == end_of_first_pattern(endless.text) is not None


@pytest.mark.parametrize(
    ("faults", "arguments", "word"),
    [
        ([], {}, "ignores"),
        ([(400, {})], {}, "refuses"),
        ([(503, {})], {"retry_for": 0}, "503"),
        ([{}, "hang"], {"request_timeout": 1}, "small_request_timeout"),
    ],
)
def test_a_server_that_does_not_know_the_field_is_refused_before_the_run(
    faults: list[Any], arguments: dict[str, Any], word: str, loop: LoopThread
) -> None:
    """A server that is busy, hangs or is away says nothing about the field: the error is its own."""
    server = ScriptedServer(refusal="Unrecognized request argument supplied: repetition_detection")
    server.faults.extend(faults)

    with (
        served(server) as url,
        pytest.raises(EngineStartError, match=word) as error,
        started(engine_of(small=url, stop_repeats=True, **arguments), loop),
    ):
        pass
    assert ("stop_repeats=true needs" in str(error.value)) == (not arguments)
    assert len(server.seen) == (len(faults) or 2)
