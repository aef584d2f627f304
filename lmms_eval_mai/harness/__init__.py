"""The lmms-eval side: the model `mai_cascade` and its tasks. This package knows lmms-eval and its internals.

Start with `model.py`, the class that lmms-eval calls. `requests.py` turns a request into a sample, `results.py` turns a
trace into a result, `saved.py` follows the results until they are on the disk, `command.py` gives the running command
its messages and exit codes, and `tasks.py` has the functions of the YAML files in `task_configs/`.
"""
