"""The scripted engine: replays recorded answers with their lengths and latencies. It needs no model.

`engine.py` is the engine and its options, `script.py` reads the recorded answers from a file of JSON lines, and
`latency.py` looks up the time to the first token.
"""
