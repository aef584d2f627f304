"""Plans the GPU memory of a run before an engine starts: pure arithmetic, without vLLM, torch or a GPU.

Start with `plan.py`: from the GPUs (`gpus.py`), the two models (`models.py`) and the user's arguments it computes the
context, the share of memory and the limits of each engine, or what is missing. `memory.py` has the terms of the
sum. `advice.py` names what would fit instead.

This package knows how vLLM divides the memory of a GPU. It does not start anything and opens no CUDA context.

To add a GPU's name, add it to `KNOWN_GPUS` in `gpus.py`. To let `doctor --gpus` plan a model that is not on this
machine, add it to `known_models.yaml`.
"""
