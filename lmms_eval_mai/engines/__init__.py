"""The engines: each of them runs one model.

Start with `contract.py` of the package, the contract of all engines. There are four kinds: `vllm/`, `transformers/`,
`openai/` (any OpenAI-compatible endpoint) and `scripted/` (recorded answers). `build.py` lists them and builds one.
`restart.py` wraps an engine of any kind.

The library of an engine is imported only when that engine is used.

docs/architecture.md says how to add an engine or an argument. If the user gives no engine for a model, `run/config.py`
chooses it. `cli/doctor.py` checks what an engine needs. A new figure of a call (tokens, seconds) is a field of `Call`
in `contract.py`.
"""
