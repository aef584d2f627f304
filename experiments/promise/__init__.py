"""Whether the promise of `calibrate` holds: random splits of real runs, and populations whose true loss is known."""
