"""`lmms-eval-mai reproduce`: all runs that the chosen tables of the paper need, in one process.

    methods.py      the methods of the paper and variants of a task that each table needs
    plan.py         the runs in order, and the equivalent lmms-eval commands
    tasks.py        loads the task of a benchmark and checks it
    folder.py       the output folder: which runs are finished, and what they were made with
    run_all.py      starts the engines of each pair once, and makes the runs that are missing with lmms-eval's
                    `simple_evaluate`

Each run is `method/run.py` on the engines. A call that another run has made is found in the call store: the method
gets its answer and goes on. So which calls a method makes is written in `method/methods.py` alone.

To support a table, add the methods that it needs to `methods.py`.
"""
