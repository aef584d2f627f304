"""The page: a report as one HTML file that opens without a network, with figures and all samples.

`page.html(report, evidence)` returns the file. The tables are HTML that jinja2 writes. All other data are blocks of
compressed JSON, which the scripts of the page decompress. plotly draws the figures.

    page.py          the file: the template, its tables and its blocks
    figures.py       the figures, with plotly's classes
    sample_data.py   all samples as compact columns
    occupancy.py     calls in flight over the time of a run
    images.py        thumbnails of the documents' images
    assets/          template, style and scripts

Text of models and data sets is hostile. The template escapes all texts, the scripts set texts only with `textContent`
and attributes, and the file's content security policy allows no other script and no request.
"""
