"""One run: many samples on two engines.

Start with `evaluation.py`: one evaluation, whose samples `scheduler.py` runs, with the finished calls in `store.py`.
`engines.py` starts and stops the engines, which may serve several evaluations. `progress.py` records each finished
sample, and `failures.py` those without an answer. `config.py` and `decoding.py` read and check all
arguments of `--model mai_cascade`, and `presets.py` the named pairs. `ask.py` is the Python API.

To add an argument of the run, add a field with a docstring to `Config` in `config.py`. If it cannot change an answer,
mark it with `NO_EFFECT`. Engine arguments belong to the engines.
"""
