"""A server that sends the same reply to every chat, with as little work as possible. For measurements of clients.

    python benchmarks/reply_server.py --ports 8000 8001 --seconds 0.5

One process listens on all ports, as replicas of one model. A request costs it less than a tenth of what it costs the
client, so the client is the limit. It understands only requests with a `Content-Length`.
"""

import argparse
import asyncio
import json
from functools import partial

MODELS = {"object": "list", "data": [{"id": "reply", "object": "model"}]}
CHAT = {
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "[[Yes]]"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 50, "completion_tokens": 5, "total_tokens": 55},
}


def response(body: object) -> bytes:
    data = json.dumps(body).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data) + data


class Connection(asyncio.Protocol):
    """One connection. Its client sends the next request after the reply."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._transport: asyncio.Transport
        self._start = b""
        self._missing = -1
        """Bytes of the request that have not arrived; -1: its header is not complete."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._missing < 0:
            self._start += data
            head, end, body = self._start.partition(b"\r\n\r\n")
            if not end:
                return
            length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
            self._missing, data = int(length or 0), body
        self._missing -= len(data)
        if self._missing <= 0:
            is_chat = self._start.startswith(b"POST")
            self._start, self._missing = b"", -1
            if is_chat and self._seconds:
                asyncio.get_running_loop().call_later(self._seconds, self._transport.write, CHAT_RESPONSE)
            else:
                self._transport.write(CHAT_RESPONSE if is_chat else MODELS_RESPONSE)


CHAT_RESPONSE, MODELS_RESPONSE = response(CHAT), response(MODELS)


async def serve(ports: list[int], seconds: float) -> None:
    loop = asyncio.get_running_loop()
    for port in ports:
        await loop.create_server(partial(Connection, seconds), "127.0.0.1", port, backlog=4096)
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ports", type=int, nargs="+", default=[8000])
    parser.add_argument("--seconds", type=float, default=0.0, help="seconds per chat")
    options = parser.parse_args()
    asyncio.run(serve(options.ports, options.seconds))


if __name__ == "__main__":
    main()
