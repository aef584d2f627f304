"""The lmms-eval side: the model `mai_cascade` and its tasks.

Start with `model.py`, the class that lmms-eval calls. `requests.py` turns a request into a sample, `results.py` turns a
trace into a result, and `tasks.py` has the functions of the YAML files in `task_configs/`. `running_command.py` and
`exit_codes.py` handle the running `lmms-eval` command, and `usage.py` fills its tables.

This package knows lmms-eval and its internals. docs/architecture.md lists the files to change for a new benchmark.
"""
