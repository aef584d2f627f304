"""The lmms-eval side: the model `mai_cascade` and its tasks.

Start with `model.py`, the class that lmms-eval calls. `requests.py` turns a request into a sample, `results.py` turns a
trace into a result, and `tasks.py` has the functions of the YAML files in `task_configs/`. `running_command.py` and
`exit_codes.py` handle the running `lmms-eval` command, and `usage.py` fills its tables.

This package knows lmms-eval and its internals. Only it, `cli` and `plugin.py` import lmms-eval's models and evaluator.
It decides the decoding of each stage, but not which stages run, and it does not know how the engines work.

To add a benchmark, add its functions to `DOC_TO_VISUAL` and `DOC_TO_TEXT` in `tasks.py`, its YAML files to
`task_configs/`, its rules of agreement to `paper/benchmarks.py`, and its Reason Transfer prompt to `paper/prompts.py`.
To show another field of a call in lmms-eval's samples file, add it to `results.py`.
"""
