"""One run: many samples on two engines.

Start with `run.py`: one evaluation, with its `journal`, whose samples `scheduler.py` runs. `engines.py` starts and
stops the engines, which may serve several runs. `progress.py` records each finished sample in the journal and in the
meter (`metering.py`), and `final_table.py` prints the result. `config.py` and `readers.py` read and check all arguments
of `--model mai_cascade`, and `presets.py` the named pairs. `failures.py` groups failed samples by their cause.

To add an argument of the run, add a field to `Config` in `config.py` and a reader to `READERS` in `readers.py`; if it
can change an answer, also add it to `fingerprint.py`. The docstring of the package `journal` tells where to add a
journal field. Engine arguments belong to the engines.
"""
