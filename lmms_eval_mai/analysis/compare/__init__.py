"""`lmms-eval-mai compare`: the runs of several methods on the same tasks, in one process."""
