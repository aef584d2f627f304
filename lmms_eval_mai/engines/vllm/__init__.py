"""The `vllm` engine: one model in vLLM's `AsyncLLM`, whose processes exist for the whole run.

`engine.py` makes the calls, `configuration.py` turns arguments into vLLM's configuration, with the GPUs and shares of
`gpu_memory.py`; `processes.py` builds the `AsyncLLM` and ends its processes; `environment.py` has the variables and
vLLM's log while it starts; `conversion.py` translates a call.
"""
