"""The method of the paper. Start with `methods.py`: it is Section 4, as the steps of each method, with a table of the
equations. `walk.py` walks through the steps, `run.py` makes their calls, and `calls.py` makes one call.

To add a benchmark, add it to `BENCHMARKS` in `benchmarks.py`, and its YAML files to `task_configs/`.
"""
