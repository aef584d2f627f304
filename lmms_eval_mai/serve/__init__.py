"""The server of `lmms-eval-mai serve`: the cascade behind an OpenAI-compatible API.

The path of a request: `app.py` checks the key and reads the body, `schema.py` checks its fields and sizes, `images.py`
its images, and `question.py` turns the chat into a `Question`. `service.py` asks it on the engines, like those of the
Python API. `reply.py` makes the reply from its trace, and `errors.py` that for an error. `metrics.py` observes the
calls. `server.py` starts and stops the whole.

HTTP is on the event loop of the main thread, and the engines are on a loop of their own (`run/engines.py`). Requests
are parsed and images are decoded in other threads.
"""
