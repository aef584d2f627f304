"""Asks a running server of the demo pair the development documents, and writes what `calibrate --loss answers` reads.

    lmms-eval-mai serve --pair demo
    python -m experiments.promise.traces dev/test.parquet traces

Writes traces/NAME.traces.jsonl for the large model's short answers, for large R, and for Full RT.
"""

import argparse
import asyncio
import base64
import json
from pathlib import Path
from typing import Any

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


async def ask(client: httpx.AsyncClient, gate: asyncio.Semaphore, row: dict[str, Any], kind: dict[str, str]) -> str:
    """Return the line of a document."""
    options = [row[letter] for letter in "ABCD" if row[letter]]
    mai = {**kind, "benchmark": "shapes", "kind": "letter" if options else "word"}
    image = "data:image/png;base64," + base64.b64encode(row["image"]["bytes"]).decode()
    content = [{"type": "image_url", "image_url": {"url": image}}, {"type": "text", "text": row["question"]}]
    body = {"messages": [{"role": "user", "content": content}], "mai": mai | ({"options": options} if options else {})}
    async with gate:
        reply = await client.post("/v1/chat/completions", json={"model": "demo", **body})
    reply.raise_for_status()
    return json.dumps({"id": str(row["id"]), "question": row["question"], "mai": reply.json()["mai"]}) + "\n"


async def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("documents", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    given = parser.parse_args()
    rows, gate = pq.read_table(given.documents).to_pylist(), asyncio.Semaphore(OPEN)
    given.folder.mkdir(parents=True, exist_ok=True)
    async with httpx.AsyncClient(base_url=given.url, timeout=600) as client:
        for name in given.kinds:
            lines = await asyncio.gather(*(ask(client, gate, row, KINDS[name]) for row in rows))
            (given.folder / f"{name}.traces.jsonl").write_text("".join(lines))


if __name__ == "__main__":
    asyncio.run(main())
