"""The worker keeps the right queries in steps that vLLM's CPU build does not run: steps that overlap, drafted tokens,
and blocks that the next step gives to another request."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lmms_eval_mai.engines.vllm.attention_worker import ARGUMENT, LEAST_ENDED, Recorder

pytestmark = pytest.mark.usefixtures("vllm")  # in a process that has imported vLLM

HEADS, KV_HEADS, SIZE, BLOCK, BLOCKS = 4, 2, 8, 4, 12
NAMES = ("layers.0.attn", "layers.1.attn")


class Impl:
    """Writes keys like vLLM's backends for GPUs."""

    scale = 0.4

    def do_kv_cache_update(
        self, layer: Any, key: torch.Tensor, value: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor
    ) -> None:
        key_cache, value_cache = cache.transpose(1, 2).split(SIZE, dim=-1)
        key_cache[slots // BLOCK, slots % BLOCK], value_cache[slots // BLOCK, slots % BLOCK] = key, value

    def forward(self, layer: Any, query: torch.Tensor) -> None:
        """The attention itself has no part in these tests."""


def attention_layer(name: str) -> Any:
    from vllm.model_executor.layers.attention.attention import Attention

    layer = Attention.__new__(Attention)
    torch.nn.Module.__init__(layer)
    fields = {
        **{"layer_name": name, "attn_type": "decoder", "impl": Impl(), "kv_cache_dtype": "auto", "has_sink": False},
        **{"num_heads": HEADS, "num_kv_heads": KV_HEADS, "head_size": SIZE, "head_size_v": SIZE},
        **{"sliding_window": None, "kv_sharing_target_layer_name": None},
        "attn_backend": SimpleNamespace(forward_includes_kv_cache_update=False, get_name=lambda: "FAKE"),
        "kv_cache": torch.zeros(BLOCKS, KV_HEADS, BLOCK, 2 * SIZE),
    }
    for field, value in fields.items():
        setattr(layer, field, value)
    return layer


class Worker:
    """A worker whose steps the test decides. The query and the keys of a token follow from its request, position and
    layer."""

    def __init__(self, drafted: int = 0) -> None:
        self.vllm_config = SimpleNamespace(
            num_speculative_tokens=drafted,
            max_concurrent_batches=2,
            scheduler_config=SimpleNamespace(max_num_seqs=4),
        )
        self.layers = torch.nn.ModuleList([attention_layer(name) for name in NAMES])
        group = SimpleNamespace(layer_names=NAMES, kv_cache_spec=SimpleNamespace(block_size=BLOCK))
        self.model_runner: Any = SimpleNamespace(
            get_model=lambda: self.layers,
            kv_cache_config=SimpleNamespace(kv_cache_groups=[group]),
            input_batch=None,
            seq_lens=None,
            execute_model=self._execute,
        )
        self.blocks: dict[str, list[int]] = {}
        self.recorder = Recorder(self)
        self._true_start: dict[str, int] = {}
        self._rejected: tuple[int, ...] = ()

    def step(
        self,
        *tokens: tuple[str, int, int, int],
        ended: tuple[str, ...] = (),
        rejected: tuple[int, ...] = (),
        **blocks: list[int],
    ) -> None:
        """Run a step. `tokens`: request, its position as the scheduler knows it, its true position, and the number of
        its tokens. `rejected`: positions at which the step has a drafted token that the model rejects. `blocks`: all
        blocks of requests that are new."""
        self._rejected = rejected
        new = []
        for name, ids in blocks.items():
            self.blocks[name] = ids
            asked = {ARGUMENT: {"key": f"our {name}", "layers": [2, 1], "span": [1, 4] if name == "scored" else None}}
            sampling = SimpleNamespace(extra_args=None if name.startswith("other") else asked, stop=[])
            new.append(SimpleNamespace(req_id=name, sampling_params=sampling, prompt_len=6, block_ids=(ids,)))
        self._true_start = {name: true for name, _, true, _ in tokens}
        self.model_runner.execute_model(
            SimpleNamespace(
                num_scheduled_tokens={name: count for name, _, _, count in tokens},
                finished_req_ids=set(ended),
                scheduled_new_reqs=new,
                scheduled_cached_reqs=SimpleNamespace(req_ids=[], new_block_ids=[], resumed_req_ids=set()),
                computed={name: known for name, known, _, _ in tokens},
            )
        )

    def _execute(self, step: Any) -> None:
        names = list(reversed(step.num_scheduled_tokens))  # the runner arranges its batch in an order of its own
        counts = [step.num_scheduled_tokens[name] for name in names]
        self.model_runner.input_batch = SimpleNamespace(
            req_ids=names, num_computed_tokens_cpu=[step.computed[name] for name in names]
        )
        ends = [self._true_start[name] + count for name, count in zip(names, counts, strict=True)]
        self.model_runner.seq_lens = torch.tensor(ends, dtype=torch.int32)
        places = [(n, self._true_start[n] + i) for n, count in zip(names, counts, strict=True) for i in range(count)]
        slots = torch.tensor([self.blocks[n][p // BLOCK] * BLOCK + p % BLOCK for n, p in places])
        tokens = [("draft" if p in self._rejected else n, p) for n, p in places]
        for number, layer in enumerate(self.layers, start=1):
            keys = torch.stack([vector("key", n, p, number).view(KV_HEADS, SIZE) for n, p in tokens])
            layer.impl.do_kv_cache_update(layer, keys, keys, layer.kv_cache, slots)
            layer.impl.forward(layer, torch.stack([vector("query", n, p, number).view(HEADS, SIZE) for n, p in tokens]))


def vector(kind: str, name: str, position: int, layer: int) -> torch.Tensor:
    seed = torch.Generator().manual_seed(sum(map(ord, kind + name)) * 1000 + position * 10 + layer)
    return torch.randn((HEADS if kind == "query" else KV_HEADS) * SIZE, generator=seed)


def expected(name: str, position: int, layer: int, start: int, stop: int) -> list[float]:
    """Return the sums over the heads, written out."""
    query = vector("query", name, position, layer).view(HEADS, SIZE)
    keys = torch.stack([vector("key", name, p, layer).view(KV_HEADS, SIZE) for p in range(position + 1)])
    rows = [(keys[:, head * KV_HEADS // HEADS] @ query[head] * Impl.scale).softmax(0) for head in range(HEADS)]
    weights: list[float] = torch.stack(rows).sum(0)[start:stop].tolist()
    return weights


def assert_taken(worker: Worker, name: str, position: int, start: int, stop: int, scored: bool = False) -> None:
    taken = worker.recorder.take(f"our {name}", None if scored else position, [])
    assert taken is not None and taken["heads"] == {1: HEADS, 2: HEADS}
    for layer in (1, 2):
        sums = taken["sums"][layer]
        assert sums[: stop - start] == pytest.approx(expected(name, position, layer, start, stop), abs=1e-5)
        assert sum(sums[stop - start :]) == 0  # tokens after the query
    assert worker.recorder.kept() == 0


def test_blocks_of_an_ended_request_are_read_before_the_next_step_writes_them() -> None:
    worker = Worker()
    worker.step(("thought", 0, 0, 6), ("scored", 0, 0, 4), thought=[3, 5], scored=[1, 2])
    worker.step(("thought", 6, 6, 1), ("scored", 4, 4, 2))
    # Both ended. The next step gives their blocks to another request.
    worker.step(("other", 0, 0, 12), ended=("thought", "scored"), other=[1, 2, 3, 5])
    assert worker.recorder.take("our nobody", None, []) is None
    scored = worker.recorder._ended["our scored"]
    assert len(scored.rows) == 1 and not scored.pending
    taken = worker.recorder.take("our thought", 6, [])
    assert taken is not None and taken["sums"][1] == pytest.approx(expected("thought", 6, 1, 6, 7), abs=1e-5)
    assert_taken(worker, "scored", 5, 1, 4, scored=True)


def test_row_of_the_right_token_is_taken_if_steps_ran_after_the_last_one() -> None:
    """With asynchronous scheduling, the next step runs before the scheduler sees that the answer has ended."""
    worker = Worker()
    worker.step(("thought", 0, 0, 6), thought=[3, 5, 7])
    for position in (6, 7, 8, 9):
        worker.step(("thought", position, position, 1))
    assert_taken(worker, "thought", 8, 6, 9)


@pytest.mark.parametrize("position", [8, 9, 11])
def test_row_is_taken_after_rejected_drafts(position: int) -> None:
    """The scheduler counts three drafted tokens as accepted. The model rejected two of them, which the device knows."""
    worker = Worker(drafted=3)
    worker.step(("thought", 0, 0, 6), thought=[3, 5, 7, 9])
    worker.step(("thought", 6, 6, 4), rejected=(8, 9))
    worker.step(("thought", 10, 8, 4))
    assert_taken(worker, "thought", position, 6, position + 1)


def test_row_of_a_preempted_request_is_computed_before_its_blocks_are_used() -> None:
    worker = Worker()
    worker.step(("thought", 0, 0, 6), thought=[3, 5])
    worker.step(("thought", 6, 6, 1))
    worker.step(("other", 0, 0, 8), other=[3, 5])  # preempted, and its answer ended before it was resumed
    assert_taken(worker, "thought", 6, 6, 7)


def test_dropped_requests_are_forgotten_while_they_run_and_after_they_ended() -> None:
    worker = Worker()
    worker.step(("scored", 0, 0, 6), ("thought", 0, 0, 6), scored=[1, 2], thought=[3, 5])
    worker.step(("thought", 6, 6, 1), ended=("scored",))
    assert worker.recorder.kept() == 2
    assert worker.recorder.take("our scored", None, ["our thought"]) is not None
    assert worker.recorder.kept() == 0
    worker.step(("thought", 7, 7, 1))
    assert worker.recorder.kept() == 0


def test_rows_wait_while_many_other_requests_end() -> None:
    """With max_num_seqs=4, many requests may end one after the other before the event loop takes the first row."""
    worker = Worker()
    others = end_many(worker, 20)
    taken = worker.recorder.take("our scored", None, others)
    assert taken is not None and taken["sums"][1] == pytest.approx(expected("scored", 5, 1, 1, 4), abs=1e-5)
    assert worker.recorder.kept() == 0


def test_rows_that_nobody_takes_do_not_fill_the_memory() -> None:
    worker = Worker()
    end_many(worker, LEAST_ENDED + 20)
    assert worker.recorder.kept() == LEAST_ENDED
    assert worker.recorder.take("our scored", None, []) is None  # the oldest one was dropped


def end_many(worker: Worker, count: int) -> list[str]:
    """End a request that is scored, and then many others. Returns the names of the others' rows."""
    names = [f"thought {number}" for number in range(count)]
    worker.step(("scored", 0, 0, 6), scored=[1, 2])
    worker.step(*((name, 5, 5, 1) for name in names), ended=("scored",), **{name: [3, 5] for name in names})
    worker.step(("other", 0, 0, 1), ended=tuple(names), other=[7])
    return [f"our {name}" for name in names]
