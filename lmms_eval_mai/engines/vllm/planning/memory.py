"""The memory of one vLLM engine on one GPU, term by term.

vLLM gives the KV cache what is left of its share of the GPU: share x total - weights - the largest temporary buffers of
a test run - persistent buffers - CUDA graphs (v1/worker/gpu_worker.py, `determine_available_memory`). It then refuses
to start if one sequence of full length does not fit (v1/core/kv_cache_utils.py, `_check_enough_kv_cache_memory`).

The terms are estimates from the models' sizes, exact to about half a GiB. vLLM measures them itself at the start.
"""

from dataclasses import dataclass

from lmms_eval_mai.engines.vllm.planning.models import BYTES_PER_NUMBER, ModelSize

GIB = 1 << 30
BLOCK_TOKENS = 16
"""vLLM's KV cache on a GPU has blocks of 16 tokens."""
BUFFER_BYTES = int(0.6 * GIB)
"""Persistent buffers of an engine: workspaces, compiled kernels, the batch's inputs."""
GRAPH_BYTES = int(0.6 * GIB)
"""CUDA graphs of an engine. None with `enforce_eager=true`."""
CONTEXT_BYTES = int(0.6 * GIB)
"""CUDA context of an engine's process. vLLM does not count it as part of the engine's share."""
PINNED_BYTES_PER_WEIGHT_BYTE = 1.25
"""Memory of the machine that an engine with `sleep=true` takes for each byte of its weights. It copies them to pinned
memory in blocks, and PyTorch rounds the size of a block up to a power of two. The blocks are kept when the engine wakes
up. Estimated from vLLM 0.32's allocator, not measured."""


@dataclass(frozen=True)
class Terms:
    """Bytes that one engine needs on one of its GPUs before the KV cache gets the rest."""

    weights: int
    vision_peak: int
    """The largest temporary buffers: the vision tower with the largest images of one step."""
    buffers: int
    graphs: int
    one_sequence: int
    """KV cache that takes one sequence of full length. vLLM does not start with less."""

    def fixed(self) -> int:
        """Return the bytes of everything but the KV cache."""
        return self.weights + self.vision_peak + self.buffers + self.graphs

    def needed(self) -> int:
        """Return the smallest number of bytes with which the engine starts."""
        return self.fixed() + self.one_sequence


@dataclass(frozen=True)
class Limits:
    """The limits of one engine that decide its memory."""

    context: int
    """Tokens of prompt and answer."""
    max_image_tokens: int
    """Tokens of the largest image."""
    max_num_seqs: int
    """Sequences in one step."""
    max_num_batched_tokens: int
    """Tokens in one step."""
    tensor_parallel: int = 1
    enforce_eager: bool = False
    stages: int = 1
    """Pipeline stages, each with a part of the layers."""


def terms(model: ModelSize, limits: Limits) -> Terms:
    """Return the memory terms of one engine on each of its GPUs."""
    per_sequence_bytes = model.vocabulary * 4  # logits in float32
    # The first and the last stage also hold the embeddings or the output layer.
    outside_layers = model.vocabulary * model.hidden_size * BYTES_PER_NUMBER if limits.stages > 1 else 0
    stage_weights = min(model.weight_bytes, model.weight_bytes // limits.stages + outside_layers)
    return Terms(
        weights=stage_weights // limits.tensor_parallel,
        vision_peak=vision_peak_bytes(model, limits),
        buffers=BUFFER_BYTES + limits.max_num_seqs * per_sequence_bytes,
        graphs=0 if limits.enforce_eager else GRAPH_BYTES,
        one_sequence=one_sequence_bytes(model, limits.context, limits.tensor_parallel, stages=limits.stages),
    )


def one_sequence_bytes(
    model: ModelSize, context: int, tensor_parallel: int = 1, block_tokens: int = BLOCK_TOKENS, stages: int = 1
) -> int:
    """Return the smallest KV cache that takes one sequence of full length: its blocks, and the block that vLLM keeps
    empty (v1/core/kv_cache_utils.py, `get_kv_cache_configs`)."""
    blocks = -(-context // block_tokens) + 1
    return blocks * block_tokens * model.kv_bytes_per_token(tensor_parallel, stages)


def vision_peak_bytes(model: ModelSize, limits: Limits) -> int:
    """Return the temporary memory of the vision tower for one step's images, and of its outputs.

    One step takes as many of the largest images as fit into `max_num_batched_tokens`, and at least one
    (v1/core/encoder_cache_manager.py, `compute_mm_encoder_budget`). For each patch the tower holds its input, six
    vectors of its hidden size (residual, norm, queries, keys, values, attention output) and one of its MLP.
    """
    vision = model.vision
    images = max(1, limits.max_num_batched_tokens // limits.max_image_tokens)
    tokens = images * limits.max_image_tokens
    patch_numbers = 6 * vision.hidden_size + vision.intermediate_size + INPUT_NUMBERS_PER_PATCH
    output_numbers = model.hidden_size * vision.outputs_per_token
    return tokens * (vision.patches_per_token * patch_numbers + output_numbers) * BYTES_PER_NUMBER


INPUT_NUMBERS_PER_PATCH = 1_536
"""Qwen3-VL's patches: 16 x 16 pixels, 3 colours, 2 frames. Other models have fewer."""
