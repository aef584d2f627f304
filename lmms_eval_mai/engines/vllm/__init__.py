"""The `vllm` engine: one model in vLLM, in a process that exists for the whole run.

Start with `engine.py`, which implements the engine contract. `configuration.py` builds vLLM's configuration,
`gpu_memory.py` decides where two models run and how they share a GPU, and `machine_checks.py` finds what would end the
start minutes later. `starting.py` starts an engine and stops it, with the environment of `environment.py`. `plugin.py`
runs inside the engine's processes. `renderer.py` turns a chat into tokens and images. `outputs.py` turns vLLM's output
into a call.

This package knows vLLM, and uses its public interface: `AsyncEngineArgs`, `AsyncLLM`, its renderer, and the plugin
group `vllm.general_plugins`. What has no public way is in `internals.py`, with the reasons.
"""
