"""The page: a report as one HTML file that opens without a network, with figures and all samples.

`page.html(report, runs)` returns the file. The tables are HTML that jinja2 writes. All other data are blocks of
compressed JSON, which the scripts of the page decompress. figures.py makes the figures with plotly, sample_data.py the
blocks of samples, and assets/ has template, style and scripts.

Text of models and data sets is hostile. The template escapes all texts, the scripts set texts only with `textContent`
and attributes, and the file's content security policy allows no other script and no request.
"""
