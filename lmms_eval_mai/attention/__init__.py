"""The analysis of Section 5.3 and Appendix B.7: how the large model's attention is distributed over thinking.

`lmms-eval-mai attention` runs it; the command opens the samples of a task and scores the answers.

    analysis.py     runs all parts: first the calls of all documents, then the heads of the large model
    calls.py        the calls of one document: thinkings, scores and answers
    heads.py        reads single heads with the transformers engine, and keeps what they read on the disk
    figures.py      the rows of Figures 3 to 5 and of Table 16
    table9.py       the rows of Table 9, and tokens that are chosen without attention
    results.py      the file with all rows; drawing.py draws them

`lmms_eval_mai/statistics.py` has the intervals and the paired tests.
"""
