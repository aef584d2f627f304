"""Asks a running server questions of one's own by the three methods that `calibrate --loss answers` compares.

    lmms-eval-mai serve --pair demo
    python -m experiments.promise.traces questions.jsonl traces

A line of questions.jsonl: {"id": "17", "question": "How many cells hold a ring?", "image": "17.png"}, with the path of
the picture from the folder of the file, and "options": ["1", "2"] if the answer is to be a letter. A parquet file of
experiments/demo_pair/make_shapes.py will do, too. Writes traces/NAME.traces.jsonl for the large model's short answers,
for large R, and for Full RT.
"""

import argparse
import asyncio
import base64
import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pyarrow.parquet as pq

KINDS = {
    "large_s": {"method": "large"},
    "large_r": {"method": "large", "think": "R"},
    "full_rt": {"method": "full_rt"},
}
"""Name of a file -> the fields of its requests."""
OPEN = 64
"""Requests at the same time."""


class Question(NamedTuple):
    id: str
    text: str
    image: bytes | Path
    options: list[str]


def read(file: Path) -> Iterator[Question]:
    if file.suffix == ".parquet":
        for row in pq.read_table(file).to_pylist():
            options = [row[letter] for letter in "ABCD" if row[letter]]
            yield Question(str(row["id"]), row["question"], row["image"]["bytes"], options)
        return
    for line in filter(str.strip, file.read_text(encoding="utf-8").splitlines()):
        row = json.loads(line)
        yield Question(str(row["id"]), row["question"], file.parent / row["image"], row.get("options", []))


def checked(reply: httpx.Response, of: str) -> dict[str, Any]:
    """Return the body of a reply. Ends with a sentence if it is an error."""
    if reply.is_error:
        text = reply.text
        with contextlib.suppress(ValueError, TypeError, KeyError):  # a proxy does not reply as the server does
            text = reply.json()["error"]["message"]
        raise SystemExit(f"{of}: status {reply.status_code}: {text}")
    return dict(reply.json())


async def ask(client: httpx.AsyncClient, gate: asyncio.Semaphore, question: Question, fields: dict[str, Any]) -> str:
    """Return the line of a question. `fields`: those of the request."""
    mai = fields["mai"] | ({"kind": "letter", "options": question.options} if question.options else {})
    async with gate:  # only the pictures of open requests are in memory
        data = question.image.read_bytes() if isinstance(question.image, Path) else question.image
        image = "data:image;base64," + base64.b64encode(data).decode()
        content = [{"type": "image_url", "image_url": {"url": image}}, {"type": "text", "text": question.text}]
        body = {**fields, "messages": [{"role": "user", "content": content}], "mai": mai}
        reply = await client.post("/v1/chat/completions", json=body)
    mai = checked(reply, f"Question {question.id}")["mai"]
    return json.dumps({"id": question.id, "question": question.text, "mai": mai}) + "\n"


async def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="of the server; default: %(default)s")
    parser.add_argument("--benchmark", help="rules of agreement, as in mai.benchmark of a request (docs/serve.md)")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--api_key_env", metavar="VARIABLE", help="the variable with the key of the server")
    given = parser.parse_args()
    key = os.environ.get(given.api_key_env or "", "").strip()
    if given.api_key_env is not None and not key:
        parser.error(f"--api_key_env {given.api_key_env}: this environment variable is not set, or it is empty.")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    questions, gate = [*read(given.questions)], asyncio.Semaphore(OPEN)
    given.folder.mkdir(parents=True, exist_ok=True)
    async with httpx.AsyncClient(base_url=given.url.removesuffix("/v1"), headers=headers, timeout=600) as client:
        model = checked(await client.get("/v1/models"), given.url)["data"][0]["id"]
        for name in given.kinds:
            fields = {"model": model, "mai": {**KINDS[name], "benchmark": given.benchmark}}
            lines = await asyncio.gather(*(ask(client, gate, question, fields) for question in questions))
            (given.folder / f"{name}.traces.jsonl").write_text("".join(lines))


if __name__ == "__main__":
    asyncio.run(main())
