"""The method of the paper.

Start with `cascade.py`: it is Section 4, one function per mode, with a table of the equations. `calls.py` makes the
calls of one sample, `prompts.py` has the templates of Appendix C, `agreement.py` decides whether two answers agree
by the rules of their benchmark in `benchmarks.py`, and `sample.py` defines the input and the output of the method.

To add a benchmark, add its rules to `BENCHMARKS` in `benchmarks.py` and its prompt to `TRANSFER_TEMPLATE` in
`prompts.py`. Its images and questions belong to `harness/tasks.py`, and its YAML files to `task_configs/`.
"""
