"""Computes how two engines share the GPUs: context, memory share and limits of each engine.

The context is tried from the longest to the shortest until both engines fit. Each engine first gets what it needs to
start; what is left of a GPU is divided equally among the engines on it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lmms_eval_mai.contract import Side
from lmms_eval_mai.engines.vllm.planning.gpus import Gpu
from lmms_eval_mai.engines.vllm.planning.memory import CONTEXT_BYTES, GIB, Limits, Terms, terms
from lmms_eval_mai.engines.vllm.planning.models import ModelSize

CONTEXTS = (32_768, 24_576, 16_384, 12_288, 8_192)
"""Contexts in tokens, tried in this order."""
FULL_IMAGE_CONTEXT = 24_576
"""The smallest of these contexts that always takes the largest image of Qwen3-VL (16,384 tokens) and 4,096 tokens of
thinking. Below it, images get a limit of pixels."""
GPU_SHARE = 0.90
"""Share of a GPU's memory that all engines on it take together, unless the user gives the memory of each."""
SPARE_BYTES = GIB // 4
"""Memory that each engine gets beyond its estimated need. With less, a shorter context is planned: vLLM does not start
if an estimate is too small."""
SLEEPER_BYTES = 3 * GIB
"""With `sleep=true`: CUDA context, graphs and buffers that a sleeping engine keeps, and the context of the other."""
OPEN_SAMPLES = (128, 512)
"""Smallest and largest number of open samples that a plan gives."""
TOKENS_PER_SAMPLE = 512
"""Tokens of a typical call: an image of 640 x 480 pixels, question and answer. Only for the number of open samples."""


@dataclass(frozen=True)
class Request:
    """One engine as the user wants it. None: the plan decides."""

    side: Side
    model: str
    size: ModelSize
    gpus: tuple[int, ...]
    """Numbers of its GPUs."""
    tensor_parallel: int
    """Number of GPUs that hold one copy of the model together."""
    stages: int = 1
    """Pipeline stages, each with a part of the layers."""
    context: int | None = None
    share: float | None = None
    """`gpu_memory_utilization`."""
    kv_cache_bytes: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_pixels: int | None = None
    enforce_eager: bool = False
    quantized: bool = False
    """Whether the weights already have fewer than 16 bits."""

    def trusted(self) -> bool:
        """Return whether the user chose context and memory, so that no estimate may refuse the engine."""
        return self.context is not None and (self.share is not None or self.kv_cache_bytes is not None)


@dataclass(frozen=True)
class EnginePlan:
    """The plan of one engine. Bytes are per GPU."""

    request: Request
    limits: Limits
    terms: Terms
    share: float
    """Its share of each of its GPUs, vLLM's `gpu_memory_utilization`."""
    kv_cache_bytes: int

    @property
    def kv_tokens(self) -> int:
        """Tokens that the KV cache holds."""
        return self.kv_cache_bytes // self.request.size.kv_bytes_per_token(
            self.limits.tensor_parallel, self.limits.stages
        )

    @property
    def sequences(self) -> float:
        """Sequences of full length that the KV cache holds."""
        return self.kv_cache_bytes / self.terms.one_sequence

    @property
    def open_samples(self) -> int:
        """Samples that should be open at the same time, so that this engine does not wait for work."""
        least, most = OPEN_SAMPLES
        return max(least, min(most, self.kv_tokens // TOKENS_PER_SAMPLE))

    @property
    def max_pixels(self) -> int | None:
        """The limit of pixels that the plan sets. None: no limit, or the user's own."""
        vision = self.request.size.vision
        if self.request.max_pixels is not None or self.limits.max_image_tokens >= vision.max_image_tokens:
            return None
        return None if vision.pixels_per_token is None else self.limits.max_image_tokens * vision.pixels_per_token


@dataclass(frozen=True)
class Plan:
    """The plan of a run."""

    engines: tuple[EnginePlan, ...]
    turns: bool
    """Whether the engines take turns on their GPUs (`sleep=true`)."""

    def context(self) -> int:
        """Return the shortest context of the engines."""
        return min(one.limits.context for one in self.engines)

    def shares_a_gpu(self) -> bool:
        """Return whether two engines have a GPU in common."""
        return len(self.engines) == 2 and bool(set(self.engines[0].request.gpus) & set(self.engines[1].request.gpus))

    @property
    def open_samples(self) -> int:
        """Samples that should be open at the same time, so that no engine waits for work."""
        return max(one.open_samples for one in self.engines)


@dataclass(frozen=True)
class Shortfall:
    """Bytes that are missing on one GPU, with the shortest context that was tried."""

    gpu: int
    missing_bytes: int
    available_bytes: int
    context: int
    side: Side | None = None
    """The engine that lacks them, because the user gives it too little. None: all engines on this GPU together."""


def plan(
    gpus: Sequence[Gpu], requests: Sequence[Request], turns: bool = False, calls: int | None = None
) -> Plan | Shortfall:
    """Return the plan with the longest context that fits with `SPARE_BYTES`, or what is missing. The shortest context
    needs no spare memory.

    `turns`: the engines take turns (`sleep=true`). `calls`: the largest number of calls of a run at the same time.
    """
    longest = max(request.size.max_context for request in requests)
    contexts = sorted({min(context, longest) for context in CONTEXTS}, reverse=True)
    found: Plan | Shortfall | None = None
    for context in contexts:
        spare = 0 if context == contexts[-1] else SPARE_BYTES
        found = _with_context(gpus, requests, context, turns, calls or OPEN_SAMPLES[1], spare)
        if isinstance(found, Plan):
            return found
    assert found is not None
    return found


def limits(request: Request, context: int, gpu: Gpu, calls: int) -> Limits:
    """Return the limits of an engine: the user's own, or those for this context."""
    seqs, batched_tokens = vllm_defaults(gpu)
    context = request.context or min(context, request.size.max_context)
    vision = request.size.vision
    image_tokens = vision.max_image_tokens
    if request.max_pixels is not None and vision.pixels_per_token is not None:
        image_tokens = max(1, request.max_pixels // vision.pixels_per_token)
    elif context < FULL_IMAGE_CONTEXT and vision.pixels_per_token is not None:
        image_tokens = max(1, min(image_tokens, 4_096, context * 3 // 8))
    batched_tokens = request.max_num_batched_tokens or batched_tokens
    return Limits(
        context=context,
        max_image_tokens=image_tokens,
        max_num_seqs=request.max_num_seqs or min(seqs, calls, batched_tokens),  # vLLM refuses more than the tokens
        max_num_batched_tokens=batched_tokens,
        tensor_parallel=request.tensor_parallel,
        enforce_eager=request.enforce_eager,
        stages=request.stages,
    )


def vllm_defaults(gpu: Gpu) -> tuple[int, int]:
    """Return vLLM's default `max_num_seqs` and `max_num_batched_tokens` (engine/arg_utils.py,
    `get_batch_defaults`)."""
    large = gpu.total_bytes >= 70 * GIB and "a100" not in gpu.name.lower()
    return (1024, 16_384) if large else (256, 8_192)


def budget_bytes(gpu: Gpu, engines: int, turns: bool, all_given: bool = False) -> int:
    """Return the memory that all engines on this GPU may take together, without their CUDA contexts. `all_given`:
    whether the user gives the memory of each of them."""
    outside = SLEEPER_BYTES if turns and engines > 1 else engines * CONTEXT_BYTES
    share = 1.0 if all_given else GPU_SHARE
    return max(0, min(int(share * gpu.usable_bytes), gpu.free_bytes - outside))


@dataclass(frozen=True)
class _Need:
    """One engine with the limits and the memory terms of a context."""

    request: Request
    limits: Limits
    terms: Terms

    def least_bytes(self, gpu: Gpu) -> int:
        """Return what the engine takes at least: what the user gives it, else what it needs to start."""
        if self.request.kv_cache_bytes is not None:
            return self.terms.fixed() + self.request.kv_cache_bytes
        if self.request.share is not None:
            return int(self.request.share * gpu.usable_bytes)
        return self.terms.needed()

    def given_bytes(self, gpu: Gpu) -> int:
        """Return the memory that the user gives the engine, without any estimate."""
        if self.request.kv_cache_bytes is not None:
            return self.request.kv_cache_bytes
        return int((self.request.share or 0) * gpu.usable_bytes)

    def missing_bytes(self, gpu: Gpu) -> int:
        """Return how much more the engine needs than the user gives it."""
        return 0 if self.request.trusted() else max(0, self.terms.needed() - self.least_bytes(gpu))

    def takes_surplus(self) -> bool:
        return self.request.share is None and self.request.kv_cache_bytes is None


def _with_context(
    gpus: Sequence[Gpu], requests: Sequence[Request], context: int, turns: bool, calls: int, spare: int
) -> Plan | Shortfall:
    needs = []
    for request in requests:
        limit = limits(request, context, gpus[request.gpus[0]], calls)
        needs.append(_Need(request, limit, terms(request.size, limit)))
    bytes_on_gpus: dict[Side, list[tuple[Gpu, int]]] = {request.side: [] for request in requests}
    for number in sorted({number for request in requests for number in request.gpus}):
        on_gpu = [need for need in needs if number in need.request.gpus]
        for group in [[need] for need in on_gpu] if turns else [on_gpu]:
            all_given = not any(need.takes_surplus() for need in group)
            budget = budget_bytes(gpus[number], len(on_gpu), turns, all_given)
            if (shortfall := _shortfall(number, gpus[number], group, budget, spare)) is not None:
                return shortfall
            surplus = max(0, budget - sum(need.least_bytes(gpus[number]) for need in group))
            takers = sum(need.takes_surplus() for need in group)
            for need in group:
                extra = surplus // takers if need.takes_surplus() else 0
                bytes_on_gpus[need.request.side].append((gpus[number], need.least_bytes(gpus[number]) + extra))
    engines = tuple(_engine_plan(need, bytes_on_gpus[need.request.side]) for need in needs)
    return _too_little_on_a_smaller_gpu(gpus, engines) or Plan(engines, turns)


def _too_little_on_a_smaller_gpu(gpus: Sequence[Gpu], engines: Sequence[EnginePlan]) -> Shortfall | None:
    """Return what an engine lacks on the smallest of its GPUs. Its share is the same on all of them, so a larger GPU
    that it shares with another engine may leave too little on a smaller one."""
    for engine in engines:
        for number in engine.request.gpus:
            given = round(engine.share * gpus[number].usable_bytes)
            missing = engine.terms.needed() - given
            if missing > 1 and not engine.request.trusted() and engine.request.kv_cache_bytes is None:
                return Shortfall(number, missing, given, engine.limits.context, engine.request.side)
    return None


def _shortfall(number: int, gpu: Gpu, needs: Sequence[_Need], budget: int, spare: int) -> Shortfall | None:
    """Return what these engines lack on one GPU. None: they fit. `spare`: bytes that each of them gets beyond its need,
    unless the user gives its memory."""
    context = max(need.limits.context for need in needs)
    if all(need.request.trusted() for need in needs):
        # vLLM refuses an engine if less memory is free than the user gives it. This needs no estimate.
        given = sum(need.given_bytes(gpu) for need in needs)
        return Shortfall(number, given - gpu.free_bytes, gpu.free_bytes, context) if given > gpu.free_bytes else None
    own = max(needs, key=lambda need: need.missing_bytes(gpu))
    if (missing := own.missing_bytes(gpu)) > 0:
        return Shortfall(number, missing, own.least_bytes(gpu), own.limits.context, own.request.side)
    spares = spare * sum(need.takes_surplus() for need in needs)
    missing = sum(need.least_bytes(gpu) for need in needs) + spares - budget
    return Shortfall(number, missing, budget, context) if missing > 0 else None


def _engine_plan(need: _Need, on_gpus: Sequence[tuple[Gpu, int]]) -> EnginePlan:
    """Return the plan of an engine. Its share is the same on each of its GPUs, so the smallest one counts."""
    share = need.request.share
    if share is None:
        share = min(given / gpu.usable_bytes for gpu, given in on_gpus)
    smallest = min(round(share * gpu.usable_bytes) for gpu, _ in on_gpus)
    kv_cache = need.request.kv_cache_bytes
    return EnginePlan(
        request=need.request,
        limits=need.limits,
        terms=need.terms,
        share=share,
        kv_cache_bytes=max(0, smallest - need.terms.fixed()) if kv_cache is None else kv_cache,
    )
