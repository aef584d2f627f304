"""`lmms-eval-mai reproduce`: all runs that the chosen tables of the paper need, in one process."""
