"""The `vllm` engine: one model in vLLM, in a process that exists for the whole run.

Start with `engine.py`, which implements the engine contract. `configuration.py` builds vLLM's configuration, and
`starting.py` starts an engine from it. On GPUs, `nvml.py` reads the GPUs, `gpu_plan.py` and `planning/` decide where
each engine runs and with how much memory, `machine_checks.py` finds what would end the start, and `placement.py` sets
the environment. `renderer.py` turns a chat into tokens and images, in this process or in others
(`renderer_processes.py`), and once for all calls that have the same chat at the same time (`rendered_input.py`).
`detokenizer.py` turns the tokens of an answer into text. `attention.py` asks for attention weights, and
`attention_worker.py` computes them in vLLM's workers. `watchdog.py` kills the engine processes after this process was
killed.

This package knows vLLM; private parts of vLLM are used only in `internals.py`, and in vLLM's workers in
`attention_worker.py` and `attention_keys.py`. It does not know the other engines, the method or lmms-eval.

Arguments of vLLM need no code: every argument of vLLM's `AsyncEngineArgs` is passed on. If an argument cannot change an
answer, add its name to `PERFORMANCE_ARGUMENTS` in `arguments.py`, so that a run can be resumed with another value.
"""
