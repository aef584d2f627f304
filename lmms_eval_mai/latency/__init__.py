"""Latency: the measured times of models, and the time of finished runs that is computed from them.

    plan.py         which sizes and lengths a profile has
    requests.py     requests of exact sizes to an engine
    vision.py       preprocessing and vision encoder alone
    measure.py      a whole profile of one model
    repeats.py      mean, median and spread of repeated measurements
    profiles.py     the measurements of one model on one device (Tables 1 to 4), and their file
    times.py        the time of one call: by Eq. 27, and with a single time to the first token (TTFT)
    throughput.py   the time of many calls at once, from measurements of batches

`reports/` applies them to the calls of finished runs (Table 11), shows profiles as tables, and has the paper's own
profile.
"""
