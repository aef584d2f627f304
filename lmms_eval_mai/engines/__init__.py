"""The engines a pair can be made of. `base` holds what they have in common, `build` makes one."""
