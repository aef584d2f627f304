"""How long it takes. Each answer says its kind: measured wall time, computed one after another (Eq. 27), or computed in
full batches.

    profile.py         the measured times of one model on one device as tidy rows, and their file
    measure.py         measures a profile: requests.py on an engine, vision.py without one
    profile_tables.py  profiles as tables (Tables 1 to 4, Figure 1 (a)); paper_profiles.py has the paper's
    call_times.py      the time of calls by a profile: Eq. 27, with a single TTFT, and in full batches
    estimate.py        the calls of finished runs with these times (Table 11), and the seconds of each document
    measured.py        the measured wall time of finished runs (Table 12)
    bench.py           measured wall time of methods on one pair. documents.py and lengths.py have what is answered,
                       whole.py runs lmms-eval, and bench_table.py has medians and ratios
"""
