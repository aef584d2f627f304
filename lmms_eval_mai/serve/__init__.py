"""The server of `lmms-eval-mai serve`: the cascade behind an OpenAI-compatible API.

The path of a request: `app.py` checks the key and reads the body, `chat_request.py` checks its fields, sizes and
images, and `question.py` turns the chat into a `Question`. `service.py` asks it on the engines, like those of the
Python API, and counts the calls for `/metrics`. `app.py` makes the reply from its trace, and `errors.py` that for an
error. `server.py` starts and stops the whole.

HTTP is on the event loop of the main thread, and the engines are on a loop of their own (`run/engines.py`). Requests
are parsed and images are decoded in other threads.
"""
