"""One run: many samples on two engines.

Start with `session.py`. It builds the engines in their wrappers (`engine_chain.py`), opens the journal, and lets
`scheduler.py` run the samples. `progress.py` records each finished sample in the journal and in the meter
(`metering.py`), and `table.py` prints the result. `config.py` reads and checks all arguments of `--model mai_cascade`,
and `presets.py` the named pairs.

This package knows the method (`paper`) and the engines. It does not know lmms-eval's requests, tasks and results: it
gets the names of samples and a function that opens one.

To add an argument of the run, add a field to `Config` and a reader to `READERS` in `config.py`; if it can change an
answer, also add it to `fingerprint.py`. Journal: the fields of `Call` (`engines/base.py`) are written and read
automatically, so a new one needs only a default value. All other lines are written in `journal.py`; if older journals
become unreadable, increase `FORMAT` in `journal_files.py`. Engine arguments belong to the engines.
"""
