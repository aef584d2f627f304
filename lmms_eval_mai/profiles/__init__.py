"""The measured times of models, and the time of calls that is computed from them.

    profile.py      the measurements of one model on one device (Tables 1 to 4), and of batches
    files.py        the file of a profile
    times.py        the time of one call: by Eq. 27, and with a single time to the first token (TTFT)
    throughput.py   the time of many calls at once, from measurements of batches

`latency/` measures profiles, `reports/` applies them to the calls of finished runs (Table 11) and has the paper's own
profile, and the scripted engine takes the times of its calls from one.
"""
