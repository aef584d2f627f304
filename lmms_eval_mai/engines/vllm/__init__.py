"""The `vllm` engine: one model in vLLM, in a process that exists for the whole run.

`engine.py` implements the engine contract. `placement.py` chooses devices and memory for two engines on one machine.
The renderer turns a chat into tokens and images for both engines. The watchdog ends the engine processes if this
process is killed.

This package knows vLLM, also its private parts. It does not know the other engines, the method or lmms-eval.

Arguments of vLLM need no code: every argument of vLLM's `AsyncEngineArgs` is passed on. If an argument cannot change an
answer, add its name to `PERFORMANCE_ARGUMENTS` in `arguments.py`, so that a run can be resumed with another value.
"""
