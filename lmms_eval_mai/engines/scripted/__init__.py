"""The scripted engine: replays recorded answers with their lengths and latencies. It needs no model.

`engine.py` is the engine with its options and its times, and `script.py` reads the recorded answers from a file of JSON
lines.
"""
