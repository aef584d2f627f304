"""The server of `lmms-eval-mai serve`: the cascade behind an OpenAI-compatible API.

The path of a request: `app.py` checks the key, `limits.py` reads the body and admits the request, `schema.py` checks
its fields, `question.py` turns the chat into a `Question`, and `images.py` reads its images. `service.py` opens the
question as a sample, which `run/run.py` runs like those of the Python API. `reply.py` makes the reply from its trace,
and `errors.py` that for an error. `metrics.py` observes the calls. `server.py` starts and stops the whole, and limits
connections.

HTTP is on the event loop of the main thread, and the engines are on a loop of their own (`run/engines.py`). Requests
are parsed and images are decoded in other threads.
"""
