"""The journal of a run: a finished call is on the disk before its answer is used, so that a stopped run can be resumed.

Start with `journal.py`: the lines of a journal, and the calls in it. `journaled_engine.py` returns journaled calls
without calling the engine. `writer.py` opens and writes a file, `files.py` has the default folder and the format of
the lines, `call_records.py` turns a call into fields and back, `lock.py` keeps two runs from writing one journal,
`removal.py` removes the journal of a completed run, and `unfinished_runs.py` looks for the journals of other runs.

To add a journal field, add a field with a default value to `Call` in `contract.py`: the journal writes and reads
all fields of a call. If another change of the lines makes older journals unreadable, increase `FORMAT` in `files.py`.
"""
