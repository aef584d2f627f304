"""The `transformers` engine: a model in this process, run by Hugging Face transformers.

`engine.py` implements the engine contract. `loaded_model.py` has the model that runs. `batching.py` makes batches of
waiting calls, `inputs.py` turns a chat into model inputs, and `generation.py` has the arguments, penalties,
log-probabilities and stopping criteria of `generate`, and what speculative decoding needs. `attention.py` computes
attention weights, and `token_texts.py` finds the tokens of a text.
"""
