"""Reports: from finished runs to the paper's tables, and to tables that the paper lacks.

`build.report(folders)` reads lmms-eval's output folders, and those of `attention`. It returns a `Report`: tables,
figures and gaps as plain data. `formats.py` writes it as Markdown, CSV, LaTeX or JSON.

    reading.py         output folders -> runs (`records.py`), one line of a samples file at a time
    attention_tables.py  Tables 9 and 16, from the output folders of `lmms-eval-mai attention`
    scoring.py         the score of an answer that lmms-eval has not scored: a short answer inside a cascade
    evidence.py        the runs by benchmark and method, and what two runs have in common
    estimates.py       the score of a run with its interval, and the comparison of two runs
    paper_numbers.py   the paper's numbers (`paper_numbers.yaml`)
    paper_tables/      Tables 5 to 16 of the paper
    more_tables/       what the paper lacks
    report.py          `Report`, `Table`, `Figure`, `Estimate`
    page/              the same as an HTML page, with figures and all samples

`lmms_eval_mai/statistics.py` has the intervals and the paired tests. To add a table, write a function that gets the
`Evidence` and returns tables, and list it in `build.py`.
"""
