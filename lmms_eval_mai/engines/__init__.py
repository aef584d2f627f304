"""The engines: each of them runs one model.

Start with `contract.py` of the package, the contract of all engines. There are four kinds: `vllm/`, `transformers/`,
`openai/` (any OpenAI-compatible endpoint) and `scripted/` (recorded answers). `build.py` lists them and builds one.
`restart.py` wraps an engine of any kind.

This package knows models, prompts and calls. It does not know lmms-eval, the method, the journal or any benchmark. The
library of an engine is imported only when that engine is used.

To add an engine argument, add a field to the options of that engine (`OPTIONS` in `build.py` names the class). The
`vllm` engine takes all arguments of vLLM itself, so it needs no new field (`vllm/__init__.py`). To add an engine, write
a class with the methods of `Engine`, and add it to `ENGINES` and `OPTIONS` in `build.py`. If the user gives no engine
for a model, `run/config.py` chooses it. `cli/doctor.py` checks what an engine needs. A new figure of a call (tokens,
seconds) is a field of `Call` in `contract.py`.
"""
