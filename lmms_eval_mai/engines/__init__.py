"""The engines: each of them runs one model, as `contract.py` of the package says. The library of an engine is imported
only when that engine is used.

docs/architecture.md says how to add an engine or an argument.
"""
