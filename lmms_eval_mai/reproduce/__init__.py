"""`lmms-eval-mai reproduce`: all runs that the chosen tables of the paper need, in one process.

    methods.py          the methods of the paper as modes and variants of a task
    tables.py           which methods a table needs
    subjects.py         a benchmark or another task; tasks.py loads and checks it
    calls.py            the calls of a method for one document
    plan.py             the runs in order, and how many of their calls no earlier run makes
    estimate.py         the estimated time of a plan, from latency profiles; lengths.py has the lengths of calls
    options.py          the lmms-eval command that is equivalent to a run
    common.py           what all runs of an output folder have in common
    folder.py           the output folder, and which runs are finished
    run_all.py          starts the engines of each pair once, and makes the runs that are missing
    evaluation.py       makes one run with lmms-eval's `simple_evaluate`
    sharing_engine.py   finds calls that other runs made; shared_calls.py keeps them on the disk
    printing.py         prints the plan, the equivalent commands and the tables

To support a table, add its methods to `tables.py`. To add a method, add it to `METHODS` in `methods.py` and its calls
to `calls.py`.
"""
