"""Several replicas of one model in vLLM: all calls of a sample use the same replica, and its prefix cache."""

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from support.engines import Running, engine_of, make_image, prompt, started

from lmms_eval_mai.contract import CallKey
from lmms_eval_mai.engines.messages import replica_of

COLOURS = ("red", "green", "blue", "navy", "teal", "olive", "purple", "maroon", "gray", "black", "white", "orange")


def keys(count: int) -> list[CallKey]:
    return [CallKey("pope_s", number // 2, number % 2, "small", "simple") for number in range(count)]


@pytest.mark.parametrize("replicas", [2, 3, 8])
def test_samples_are_distributed_evenly_among_the_replicas(replicas: int) -> None:
    found = Counter(replica_of(key, replicas) for key in keys(8000))
    assert set(found) == set(range(replicas))
    assert max(found.values()) < 1.15 * 8000 / replicas
    # POPE's answers are yes and no in turns: no replica may get only one of them.
    even = Counter(replica_of(key, replicas) for key in keys(8000) if key.doc_id % 2 == 0)
    assert max(even.values()) < 1.2 * 4000 / replicas


def test_all_calls_of_a_sample_have_one_replica_in_every_process() -> None:
    short = [CallKey("pope_s", number, 0, "small", "simple") for number in range(6)]
    assert [replica_of(key, 8) for key in short] == [4, 3, 6, 5, 5, 2]  # Python's own hash differs between processes
    assert [replica_of(replace(key, prompt="think"), 8) for key in short] == [4, 3, 6, 5, 5, 2]


@pytest.mark.long
def test_two_replicas_find_as_many_prompt_tokens_in_their_caches_as_one(
    vllm: Running, tiny_pair: tuple[Path, Path]
) -> None:
    engine = engine_of(small=str(tiny_pair[0]), dtype="float32", small_data_parallel_size=2)
    with started(engine, vllm.loop) as replicated:
        one, two = cached_tokens(vllm), cached_tokens(replicated)
    assert one >= 32 * len(COLOURS) and two >= 0.9 * one


def cached_tokens(running: Running) -> int:
    """Return the cached prompt tokens of two rounds of calls: Without thinking, then thinking. The samples come in
    another order in the second round, because a sample begins it when its first round is answered."""
    text = "How many bars are shown, and what is the largest of them?\n"
    images = [make_image(colour, (216, 136)) for colour in COLOURS]
    samples = list(enumerate(images))
    calls = running.generate(*(prompt(i, image, text, "Without thinking, answer.") for i, image in samples))
    random.Random(0).shuffle(samples)
    calls += running.generate(*(prompt(i, image, text, "Please think step by step.") for i, image in samples))
    return sum(call.cached_tokens for call in calls)
