"""How long it takes. Each answer says its kind: measured wall time, computed one after another (Eq. 27), or computed in
full batches.

    profile.py         the measured times of one model on one device as tidy rows, their file, and the paper's
    measure.py         measures a profile: requests to an engine, and the vision encoder without one
    profile_tables.py  profiles as tables (Tables 1 to 4, Figure 1 (a))
    call_times.py      the time of calls by a profile: Eq. 27, with a single TTFT, and in full batches
    estimate.py        the calls of finished runs with these times (Table 11), the seconds of each document, and the
                       measured wall time of finished runs (Table 12)
    bench.py           measured wall time of methods on one pair, with the table of medians and ratios. documents.py has
                       what is answered, and whole.py runs lmms-eval
"""
