"""The engines. `base` is their contract, `build` builds an engine, and `restart` and `time_sharing` wrap one."""
