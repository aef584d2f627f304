"""The lmms-eval side: the model `mai_cascade` and its tasks. This package knows lmms-eval and its internals. Start with
`model.py`, the class that lmms-eval calls."""
