"""Computes attention weights inside vLLM's workers: one row per request and layer, from a query and the cached keys.

vLLM's kernels do not return attention weights. So while a layer runs, this extension keeps the query of one token. When
the request is not part of the next step, its keys are still in the cache, and the row is computed from both. No token
is fed again, prefix caching and chunked prefill stay on, and the memory grows linearly with the length.

A request asks for a row in `SamplingParams.extra_args[ARGUMENT]` (`request_of`). The engine takes the row after the
request has ended (`mai_attention_take`). Every tensor parallel worker returns the sum over its own heads.

vLLM calls a layer's `impl.forward` from Python in eager mode, and also between piecewise CUDA graphs. A full CUDA graph
would not call it (`attention.refusal`).
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from lmms_eval_mai.engines.vllm.attention_keys import KeyReader, UnreadableCache, decoder_layers

ARGUMENT = "mai_attention"
STEPS_AFTER_STOP_TEXT = 64
"""Steps that a request may run after a stop text has ended its answer. vLLM finds stop texts outside the engine's core,
so the core decodes further until it is told."""
LEAST_ENDED = 256
"""Ended requests whose rows are kept until they are taken, also with a small `max_num_seqs`. An engine that scores one
prompt per step ends a request every few milliseconds, and the event loop that takes the rows may be busy for longer."""


@dataclass
class Queries:
    """The queries that one step had for one request."""

    end: torch.Tensor
    """Number of tokens of the request after this step. Only the device knows it if drafted tokens were rejected."""
    of_layer: dict[int, torch.Tensor] = field(default_factory=dict)
    """Layer -> [query, head, dimension]."""


@dataclass
class Rows:
    """The rows of one or more queries, summed over the heads of this worker."""

    positions: torch.Tensor
    of_layer: dict[int, torch.Tensor]
    """Layer -> [query, token of the span]."""


class Request:
    """One request that asks for attention."""

    def __init__(self, asked: dict[str, Any], prompt_tokens: int, kept_steps: int) -> None:
        self.key: str = asked["key"]
        self.layers: list[int] = asked["layers"]
        self.span: tuple[int, int] | None = asked["span"]
        """First token and the token after the last. None: the tokens of the output."""
        self.prompt_tokens = prompt_tokens
        self.tokens = 0
        """At least the number of tokens whose keys are cached."""
        self.blocks: dict[int, list[int]] = {}
        """KV cache group -> blocks."""
        self.pending: deque[Queries] = deque(maxlen=kept_steps)
        self.rows: deque[Rows] = deque(maxlen=2)

    def add_blocks(self, blocks: Sequence[Sequence[int]], replace: bool) -> None:
        for group, numbers in enumerate(blocks):
            self.blocks[group] = [*([] if replace else self.blocks[group]), *numbers]

    def wanted(self, first: int, count: int, drafted: int) -> tuple[int, int] | None:
        """Return which of the queries of a step are needed. `first`: position of the step's first token. None: none."""
        last = self.prompt_tokens - 1
        if self.span is not None:
            return (last - first, last - first + 1) if first <= last < first + count else None
        return (max(0, count - 1 - drafted), count) if first + count > last else None


class Recorder:
    """Records the queries of a worker's requests and computes their rows."""

    def __init__(self, worker: Any) -> None:
        config = worker.vllm_config
        self._runner = worker.model_runner
        self._drafted: int = config.num_speculative_tokens
        self._steps_ahead: int = config.max_concurrent_batches
        self._limit = max(LEAST_ENDED, 2 * config.scheduler_config.max_num_seqs)
        self._layers = decoder_layers(self._runner)
        self._group_of = {
            name: number
            for number, group in enumerate(self._runner.kv_cache_config.kv_cache_groups)
            for name in group.layer_names
        }
        self._readers = {number: self._reader(layer) for number, layer in self._layers.items()}
        self._requests: dict[str, Request] = {}
        """Requests that vLLM has not ended, by vLLM's names."""
        self._ended: dict[str, Request] = {}
        """Requests that vLLM has ended and whose rows were not taken yet, by our names."""
        self._scheduled: dict[str, int] = {}
        """The tokens of each request in the step that runs. Empty between the steps."""
        self._plan: list[tuple[Request, slice, Queries]] | None = None
        for number, layer in self._layers.items():
            layer.impl.forward = self._recording(number, layer.impl.forward)
        self._runner.execute_model = self._stepping(self._runner.execute_model)

    def _reader(self, layer: Any) -> KeyReader:
        group = self._runner.kv_cache_config.kv_cache_groups[self._group_of[layer.layer_name]]
        return KeyReader(layer, group.kv_cache_spec.block_size)

    def _stepping(self, execute: Callable[..., Any]) -> Callable[..., Any]:
        def execute_model(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            self._before_step(scheduler_output)
            self._plan = None
            self._scheduled = scheduler_output.num_scheduled_tokens if self._requests else {}
            try:
                return execute(scheduler_output, *args, **kwargs)
            finally:
                self._scheduled = {}

        return execute_model

    def _recording(self, number: int, forward: Callable[..., Any]) -> Callable[..., Any]:
        def recording_forward(layer: Any, query: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if self._scheduled:
                self._record(number, query)
            return forward(layer, query, *args, **kwargs)

        return recording_forward

    @torch.inference_mode()
    def _before_step(self, step: Any) -> None:
        # The blocks of a request that is not in this step may belong to another request from now on: it has ended, or
        # it was preempted. Until this step runs, they have its keys.
        for name, request in list(self._requests.items()):
            if name not in step.num_scheduled_tokens:
                self._compute(request)
        for name in step.finished_req_ids:
            if (ended := self._requests.pop(name, None)) is not None:
                self._ended[ended.key] = ended
        while len(self._ended) > self._limit:
            del self._ended[next(iter(self._ended))]
        for new in step.scheduled_new_reqs:
            self._add(new)
        cached = step.scheduled_cached_reqs
        for name, blocks in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if blocks is not None and (known := self._requests.get(name)) is not None:
                known.add_blocks(blocks, replace=name in cached.resumed_req_ids)

    def _add(self, new: Any) -> None:
        """Add a request if it asks for attention."""
        sampling = new.sampling_params
        asked = None if sampling is None else (sampling.extra_args or {}).get(ARGUMENT)
        if asked is not None:
            kept_steps = self._steps_ahead + 1 + (STEPS_AFTER_STOP_TEXT if sampling.stop else 0)
            request = self._requests[new.req_id] = Request(asked, new.prompt_len, kept_steps)
            request.add_blocks(new.block_ids, replace=True)

    def _record(self, number: int, query: torch.Tensor) -> None:
        """Keep the queries of the layer that runs."""
        if self._plan is None:
            self._plan = self._planned()
        for request, rows, queries in self._plan:
            if number in request.layers:
                queries.of_layer[number] = query[rows].clone()

    def _planned(self) -> list[tuple[Request, slice, Queries]]:
        """Return which queries of this step are needed. The runner has arranged its requests."""
        batch, offset = self._runner.input_batch, 0
        found = []
        for index, name in enumerate(batch.req_ids):
            count = self._scheduled[name]
            request = self._requests.get(name)
            if request is not None:
                first = int(batch.num_computed_tokens_cpu[index])
                request.tokens = first + count
                wanted = request.wanted(first, count, self._drafted)
                if wanted is not None:
                    after = self._runner.seq_lens[index : index + 1] - (count - wanted[1])
                    queries = Queries(after.clone())
                    request.pending.append(queries)
                    found.append((request, slice(offset + wanted[0], offset + wanted[1]), queries))
            offset += count
        return found

    def _compute(self, request: Request) -> None:
        """Compute the rows of the queries that are pending. The request's keys must be in the cache."""
        pending = [queries for queries in request.pending if queries.of_layer]
        request.pending.clear()
        if not pending:
            return
        layers = pending[0].of_layer
        counts = [len(queries.of_layer[next(iter(layers))]) for queries in pending]
        ends = torch.cat([queries.end.expand(n) for queries, n in zip(pending, counts, strict=True)])
        back = [n - i for n in counts for i in range(n)]
        positions = ends - torch.tensor(back, device=ends.device, dtype=ends.dtype)
        start, stop = request.span or (request.prompt_tokens, request.tokens)
        tokens = request.prompt_tokens if request.span else request.tokens
        found = {}
        for number in layers:
            query = torch.cat([queries.of_layer[number] for queries in pending])
            blocks = request.blocks[self._group_of[self._layers[number].layer_name]]
            keys = self._readers[number].read(blocks, tokens)
            scale = self._layers[number].impl.scale
            found[number] = _summed_weights(query.float(), positions, keys, scale)[:, start:stop]
        request.rows.append(Rows(positions, found))

    @torch.inference_mode()
    def take(self, key: str, position: int | None, dropped: Sequence[str]) -> dict[str, Any] | None:
        """Return the row of the query at a position, summed over this worker's heads, and the number of these heads.
        Forget the request, and others whose rows nobody will take. None: this worker does not have it.

        No step ran since the request ended, or `_before_step` has computed its rows.
        """
        request = None
        for one in (*dropped, key):
            request = self._forget(one)
        if request is None:
            return None
        self._compute(request)
        for rows in reversed(request.rows):
            places = [i for i, p in enumerate(rows.positions.tolist()) if position is None or p == position]
            if places:
                return {
                    "heads": {n: self._layers[n].num_heads for n in rows.of_layer},
                    "sums": {n: summed[places[-1]].tolist() for n, summed in rows.of_layer.items()},
                }
        return None

    def _forget(self, key: str) -> Request | None:
        for name, request in self._requests.items():
            if request.key == key:
                return self._requests.pop(name)
        return self._ended.pop(key, None)

    def kept(self) -> int:
        """Return the number of requests that were not forgotten."""
        return len(self._requests) + len(self._ended)


def _summed_weights(query: torch.Tensor, positions: torch.Tensor, keys: Any, scale: float) -> torch.Tensor:
    """Return the attention of queries, summed over their heads: [query, token]. `keys`: chunks of all keys."""
    scores = []
    for chunk in keys:
        grouped = query.view(len(query), chunk.shape[1], -1, chunk.shape[2])
        scores.append(torch.einsum("qkgd,tkd->qkgt", grouped, chunk))
    joined = torch.cat(scores, dim=-1) * scale
    later = torch.arange(joined.shape[-1], device=joined.device) > positions[:, None]
    return joined.masked_fill_(later[:, None, None], float("-inf")).softmax(-1).sum((1, 2))


class AttentionWorker:
    """Methods that vLLM adds to its workers (`worker_extension_cls`)."""

    mai_recorder: Recorder | None

    def mai_attention_start(self) -> tuple[list[int], str | None]:
        """Start to record. Returns the layers of this worker, and why it cannot give attention weights, or None."""
        try:
            self.mai_recorder = Recorder(self)
        except UnreadableCache as error:
            return [], str(error)
        return sorted(self.mai_recorder._layers), None

    def mai_attention_take(self, key: str, position: int | None, dropped: list[str]) -> dict[str, Any] | None:
        assert self.mai_recorder is not None
        return self.mai_recorder.take(key, position, dropped)

    def mai_attention_kept(self) -> int:
        assert self.mai_recorder is not None
        return self.mai_recorder.kept()
