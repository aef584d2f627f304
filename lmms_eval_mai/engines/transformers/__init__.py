"""The `transformers` engine: a model in this process, run by Hugging Face transformers.

`engine.py` implements the engine contract with one thread. `model.py` has the loaded model, which answers one call at a
time. `generation.py` has the arguments and the output of `generate`, and `attention.py` computes attention weights.
"""
