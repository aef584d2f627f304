"""The `transformers` engine: a model in this process, run by Hugging Face transformers.

`engine.py` implements the engine contract. `running_model.py` has one start of it: its threads, and the calls that
wait. `loaded_model.py` has the model that runs. `batching.py` makes batches of waiting calls, `inputs.py` turns a chat
into model inputs, and `generation.py` has the arguments, penalties, log-probabilities and stopping criteria of
`generate`, and what speculative decoding needs. `attention.py` computes attention weights, and `token_texts.py` finds
the tokens of a text.

This package knows transformers and PyTorch. It does not know the other engines, the method or lmms-eval.

To add an argument, add a field to `TransformersOptions` in `options.py`; if it cannot change an answer, also add its
name to `PERFORMANCE_ARGUMENTS`.
"""
