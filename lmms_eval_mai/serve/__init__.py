"""The server of `lmms-eval-mai serve`: the cascade behind an OpenAI-compatible API.

The path of a request: `app.py` checks the key, `chat.py` admits the request (`admission.py`), `body.py` reads its body,
`schema.py` checks its fields, and `question.py` turns the chat into a `Question`. `downloads.py` downloads its images
if they are at http addresses of allowed hosts. `samples.py` opens the question as a sample of the session, which
`run/session.py` runs like those of the Python API. `reply.py` makes the reply from its trace, `streaming.py` a reply in
parts, and `errors.py` the reply for an error. `observer.py` tells `metrics.py` and `streaming.py` about the calls.
`server.py` starts and stops the whole, and `protocol.py` limits the heads of requests.

HTTP is on the event loop of the main thread, and the engines are on that of the session, in a thread of its own.
Requests are parsed and images are decoded in other threads.
"""
