"""Reports: from finished runs to the paper's tables, and to tables that the paper lacks.

`build.report(folders)` reads lmms-eval's output folders. It returns a `Report`: tables,
figures and gaps as plain data. `formats.py` writes it as Markdown, CSV, LaTeX or JSON.

    read.py            output folders -> runs, each with a table of its samples and a table of its calls
    methods.py         the way in which a run answers
    scoring.py         the score of an answer that lmms-eval has not scored: a short answer inside a cascade
    metrics.py         scores, differences and costs with their intervals
    evidence.py        the runs by benchmark and method, and what two runs have in common
    paper_numbers.py   the paper's numbers (`paper_numbers.csv`, `paper_numbers.yaml`)
    paper_tables.py    Tables 5 to 10 and 13 to 15
    method_tables.py   score and cost, comparisons, repeats and routers
    cascade_tables.py  exits, agreement, harm and rescue, kinds of questions
    rules.py           the cascade with other rules of agreement
    claims.py          what a report says first about each cascade
    figures.py         the data of the figures
    report.py          `Report`, `Table`, `Figure`, `Estimate`
    page/              the same as an HTML page, with figures and all samples

A table is a list of columns, each with its heading, its kind, its digits, and the function that gives a cell from a
row. To add a table, write a function that gets the `Evidence` and yields tables, and list it in `build.py`.
"""
