"""The engines: each of them runs one model.

Start with `contract.py` of the package, the contract of all engines. `build.py` lists the four kinds and builds one.
`restart.py` wraps an engine of any kind. The library of an engine is imported only when that engine is used.

docs/architecture.md says how to add an engine or an argument.
"""
