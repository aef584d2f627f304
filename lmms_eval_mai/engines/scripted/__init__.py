"""The scripted engine: replays recorded answers with their lengths and latencies. It needs no model."""
