"""Asks vLLM's workers for attention weights and reads their answers (`attention_worker.py`)."""

from dataclasses import dataclass
from typing import Any

from lmms_eval_mai.contract import CallKey, EngineConfig, Prompt, TokenWeights
from lmms_eval_mai.engines.transformers.token_texts import TokenSpan
from lmms_eval_mai.engines.vllm.internals import call_workers
from lmms_eval_mai.engines.vllm.token_texts import TokenReader
from lmms_eval_mai.errors import ArgumentError, EngineStartError, SampleError

WORKER_EXTENSION = "lmms_eval_mai.engines.vllm.attention_worker.AttentionWorker"

ENVIRONMENT = {"VLLM_USE_V2_MODEL_RUNNER": "0"}
"""The extension reads the state of vLLM's first model runner. The second one keeps it elsewhere."""


def check_arguments(config: EngineConfig) -> None:
    """Refuse arguments that the extension excludes. Raises `ArgumentError`."""
    if config.arguments.get("worker_extension_cls"):
        raise ArgumentError(
            f"{config.side}_worker_extension_cls is given, but attention weights need an extension of their own. Leave "
            "it out, or use transfer=full."
        )


def prepare(engine_args: Any, config: EngineConfig) -> None:
    """Let an engine load the extension, and keep its attention out of CUDA graphs. Raises `ArgumentError`."""
    check_arguments(config)
    engine_args.worker_extension_cls = WORKER_EXTENSION
    compilation = engine_args.compilation_config
    if compilation.cudagraph_mode is None:  # vLLM would choose full graphs
        from vllm.config import CUDAGraphMode

        compilation.cudagraph_mode = CUDAGraphMode.PIECEWISE


def check(config: EngineConfig, vllm_config: Any) -> int:
    """Return the number of the model's decoder layers. Raises `ArgumentError` if it cannot give attention weights."""
    reason = refusal(vllm_config)
    if reason is not None:
        raise ArgumentError(
            f"{config.side}={config.model} cannot give attention weights: {reason} Or use transfer=full."
        )
    layers: int = vllm_config.model_config.get_total_num_hidden_layers()
    return layers


def refusal(vllm_config: Any) -> str | None:
    """Return why an engine of this configuration cannot give attention weights, as sentences. The workers check the
    layers themselves when they start."""
    from vllm.utils.torch_utils import is_quantized_kv_cache

    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    cache_dtype = vllm_config.cache_config.cache_dtype
    if model.use_mla:
        return "its cache has no keys (multi-head latent attention). Use another model."
    if model.is_hybrid or model.is_attention_free:
        return "some of its layers have no attention. Use another model."
    if model.get_sliding_window():
        return f"its attention has a sliding window of {model.get_sliding_window()} tokens. Use another model."
    if is_quantized_kv_cache(cache_dtype):
        return f"kv_cache_dtype={cache_dtype} stores quantized keys. Leave it out."
    if vllm_config.compilation_config.cudagraph_mode.has_full_cudagraphs():
        mode = vllm_config.compilation_config.cudagraph_mode.name
        return f"cudagraph_mode={mode} runs the attention inside a CUDA graph. Use PIECEWISE or leave it out."
    if parallel.decode_context_parallel_size > 1 or parallel.prefill_context_parallel_size > 1:
        return "context parallelism divides the keys among the workers. Leave it out."
    if parallel.use_ubatching:
        return "dual batch overlap divides each step in two. Leave it out."
    return None


@dataclass(frozen=True)
class Asked:
    """The attention that one call asks for."""

    key: str
    """Names the request in the workers."""
    layers: tuple[int, ...]
    span: TokenSpan | None
    """The tokens of the prompt to which the attention is wanted. None: the output."""

    def extra_args(self) -> dict[str, Any]:
        """Return `SamplingParams.extra_args`, with which the request reaches the workers."""
        span = None if self.span is None else [self.span.start, self.span.end]
        return {"mai_attention": {"key": self.key, "layers": list(self.layers), "span": span}}


class AttentionReader:
    """Reads the attention weights of the calls to one running engine."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm
        self._tokens: TokenReader
        self._not_taken: list[str] = []

    async def start(self, config: EngineConfig, layers: int) -> None:
        """Let the workers record. Raises `EngineStartError` if this model or tokenizer cannot give attention
        weights."""
        try:
            self._tokens = TokenReader(self._llm.renderer.get_tokenizer())
            replicas = await call_workers(self._llm, "mai_attention_start")
        except Exception as error:
            raise EngineStartError(
                f"{config.side}={config.model} cannot give attention weights ({error}). Use another model, or "
                "transfer=full."
            ) from error
        for workers in replicas:
            reason = next((reason for _, reason in workers if reason is not None), None)
            found = {layer for of_worker, _ in workers for layer in of_worker}
            if reason is None and found != set(range(1, layers + 1)):
                reason = f"vLLM runs attention in {len(found)} of its {layers} layers"
            if reason is not None:
                raise EngineStartError(
                    f"{config.side}={config.model} cannot give attention weights, because {reason}. Use another model, "
                    "or transfer=full."
                )

    def ask(self, key: str, prompt: Prompt, prompt_tokens: list[int]) -> Asked:
        """Return what a call asks for. `key`: names the call. Raises `SampleError` if the text is not found."""
        assert prompt.attention is not None
        text = prompt.attention.text
        span = None if text is None else self._tokens.find_in_prompt(prompt_tokens, prompt, text)
        return Asked(key, prompt.attention.layers, span)

    def forget(self, asked: Asked) -> None:
        """Let the workers drop what they keep for a call without an answer. They do so with the next call."""
        self._not_taken.append(asked.key)

    async def take(self, asked: Asked, call: CallKey, result: Any, text: str) -> TokenWeights:
        """Return the weights of a finished call. `result`: vLLM's output. `text`: the answer."""
        tokens = list(result.outputs[0].token_ids)
        # The last token of an answer is never fed, so the last query is the one before it.
        position = len(result.prompt_token_ids) + len(tokens) - 2 if asked.span is None else None
        dropped, self._not_taken = self._not_taken, []
        replicas = await call_workers(self._llm, "mai_attention_take", asked.key, position, dropped)
        parts = [part for workers in replicas for part in workers if part is not None]
        span = asked.span or self._tokens.find_in_output(tokens, call, text)
        rows = []
        for layer in asked.layers:
            row = _mean(parts, layer, len(span.texts))
            if row is None:
                raise SampleError(f"{call}: vLLM gave no attention weights of layer {layer}. See its log above.")
            rows.append(row)
        return TokenWeights(span.texts, tuple(rows))


def _mean(parts: list[dict[str, Any]], layer: int, length: int) -> tuple[float, ...] | None:
    """Return the mean over the heads of all workers, with 0 for the tokens that were not fed. None: no worker has the
    layer."""
    of_layer = [(part["heads"][layer], part["sums"][layer]) for part in parts if layer in part["sums"]]
    if not of_layer:
        return None
    heads = sum(count for count, _ in of_layer)
    means = [sum(values) / heads for values in zip(*(sums for _, sums in of_layer), strict=True)]
    return tuple((means + [0.0] * length)[:length])
