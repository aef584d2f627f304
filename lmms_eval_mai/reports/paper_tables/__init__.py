"""The tables of the paper, from the runs. Each function gets the `Evidence` and yields the tables that its runs allow.

A table of other models or other benchmarks has the same form, and no paper numbers.
"""
