"""Measured times of methods on one pair of models (Table 12 and more), for `lmms-eval-mai bench`.

lengths.py       forced output lengths and exits: those of the paper's benchmarks
planned.py       an engine that answers as planned
drawn.py         documents with drawn images of a given size
documents.py     the samples of a run, from drawn documents or from those of a task
rows.py          the rows of the table, and refusals before anything starts
engines.py       engines that are started on first use and stay up
pair.py          runs on one or two engines: MAI, Full RT, one model alone, and the bound
prototype.py     the paper's prototype: new engines in new processes for each stage
whole.py         lmms-eval's whole command, with its own vllm model and with mode=large
measure.py       all rows, interleaved, several times
table.py         medians, ratios, the printed table and the line of JSON
"""
