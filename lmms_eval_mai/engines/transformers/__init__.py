"""The `transformers` engine: a model in this process, run by Hugging Face transformers.

`engine.py` implements the engine contract with one thread. `model.py` has the loaded model, which answers one call at a
time. `inputs.py` turns a chat into tensors, `generation.py` has the arguments of `generate`, `attention.py` computes
attention weights, and `token_texts.py` finds the tokens of a text.
"""
