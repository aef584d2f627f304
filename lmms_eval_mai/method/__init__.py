"""The method of the paper.

Start with `methods.py`: it is Section 4, as the steps of each method, with a table of the equations. `walk.py` walks
through the steps, `run.py` makes their calls, `calls.py` makes one call, `prompts.py` has the templates of Appendix C, `agreement.py` decides
whether two answers agree by the rules of their benchmark in `benchmarks.py`, and `trace.py` defines the input and the
output. `files.py` reads a method of one's own.

To add a benchmark, add it to `BENCHMARKS` in `benchmarks.py`, and its YAML files to `task_configs/`.
"""
