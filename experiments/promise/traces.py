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
import json
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
    image: bytes
    options: list[str]


def read(file: Path) -> Iterator[Question]:
    if file.suffix == ".parquet":
        for row in pq.read_table(file).to_pylist():
            options = [row[letter] for letter in "ABCD" if row[letter]]
            yield Question(str(row["id"]), row["question"], row["image"]["bytes"], options)
        return
    for line in file.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        image = (file.parent / row["image"]).read_bytes()
        yield Question(str(row["id"]), row["question"], image, row.get("options", []))


async def ask(client: httpx.AsyncClient, gate: asyncio.Semaphore, question: Question, fields: dict[str, Any]) -> str:
    """Return the line of a question. `fields`: those of the request."""
    mai = {**fields["mai"], "kind": "letter" if question.options else "word"}
    mai |= {"options": question.options} if question.options else {}
    image = "data:image;base64," + base64.b64encode(question.image).decode()
    content = [{"type": "image_url", "image_url": {"url": image}}, {"type": "text", "text": question.text}]
    body = {**fields, "messages": [{"role": "user", "content": content}], "mai": mai}
    async with gate:
        reply = await client.post("/v1/chat/completions", json=body)
    if reply.is_error:
        raise SystemExit(f"Question {question.id}: {reply.json()['error']['message']}")
    return json.dumps({"id": question.id, "question": question.text, "mai": reply.json()["mai"]}) + "\n"


async def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--benchmark", help="rules of agreement, as in mai.benchmark of a request (docs/serve.md)")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    given = parser.parse_args()
    questions, gate = [*read(given.questions)], asyncio.Semaphore(OPEN)
    given.folder.mkdir(parents=True, exist_ok=True)
    async with httpx.AsyncClient(base_url=given.url, timeout=600) as client:
        model = (await client.get("/v1/models")).json()["data"][0]["id"]
        for name in given.kinds:
            fields = {"model": model, "mai": {**KINDS[name], "benchmark": given.benchmark}}
            lines = await asyncio.gather(*(ask(client, gate, question, fields) for question in questions))
            (given.folder / f"{name}.traces.jsonl").write_text("".join(lines))


if __name__ == "__main__":
    asyncio.run(main())
