"""The `openai` engine: a model behind OpenAI-compatible endpoints on this or other machines.

`engine.py` implements the engine contract, `chat.py` writes chat requests and reads their replies, `endpoints.py`
chooses an endpoint and retries requests, `client.py` sends a request, and `options.py` reads the arguments. The package
starts no servers.
"""
