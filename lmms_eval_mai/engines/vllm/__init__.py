"""The `vllm` engine: one model in vLLM, in a process that exists for the whole run.

Start with `engine.py`, which implements the engine contract. `configuration.py` builds vLLM's configuration, and
`gpu_memory.py` decides where two models run and how they share a GPU. `environment.py` sets the variables that vLLM
reads meanwhile. `processes.py` starts and stops the processes, and ends those of a run that was killed.
`conversion.py` turns a call into vLLM's request, and its output into our call.

This package uses vLLM's public interface: `AsyncEngineArgs`, `AsyncLLM` and its renderer.
"""
