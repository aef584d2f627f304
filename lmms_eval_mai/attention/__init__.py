"""The analysis of Section 5.3 and Appendix B.7: how the large model's attention is distributed over thinking.

`lmms-eval-mai attention` runs it. Nothing here knows lmms-eval: the command opens the samples of a task and scores the
answers.

    statistics.py   means with 95% intervals, and paired tests
    sparsity.py     total weight and sparsity of attention (Fig. 3-5), and the heaviest tokens (Table 16)
    corollary.py    both sides of Eq. 11
"""
