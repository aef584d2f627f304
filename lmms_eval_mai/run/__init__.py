"""One run: many samples on two engines. Start with `evaluation.py`: one evaluation, whose samples `scheduler.py` runs
on the engines of `engines.py`. `config.py` reads all arguments of `--model mai_cascade`, and `pairs.py` those of the
models and their engines; `ask.py` is the Python API.

To add an argument of the run, add a field with a docstring to `Config` in `config.py`. If it cannot change an answer,
mark it with `NO_EFFECT`. Engine arguments belong to the engines.
"""
