"""Latency: measures the times of a model.

    plan.py         which sizes and lengths a profile has
    requests.py     requests of exact sizes to an engine
    vision.py       preprocessing and vision encoder alone
    measure.py      a whole profile of one model
    repeats.py      mean, median and spread of repeated measurements

`profiles/` has the result, and the times of calls that are computed from it.
"""
