"""The `openai` engine: a model behind OpenAI-compatible endpoints on this or other machines.

`engine.py` implements the engine contract, `endpoints.py` chooses an endpoint and retries requests, `client.py` sends a
request, `replies.py` reads its reply, `images.py` and `png.py` encode images, and `errors.py` converts errors.

This package knows the HTTP API. It does not start servers. It does not know the other engines, the method or
lmms-eval.

To add an argument, add a field to `OpenAIOptions` in `options.py`; if it cannot change an answer, also add its name to
`PERFORMANCE_ARGUMENTS`.
"""
