"""Golden files: what two versions of this package answer to the same questions, and in what they differ.

    python tools/golden.py make BIN FOLDER [--limit 100]    # BIN: the folder of the commands of one version
    python tools/golden.py compare FOLDER OTHER_FOLDER

`make` runs the demo pair in float32 on real engines: every method, tasks with two stages, sparse transfer, and the
server. Both versions must run on one machine, because another processor may round differently. `compare` prints each
kind of difference with its number and an example, and exits with 1 if there is one. Times, which are never equal, are
not compared, and neither are counts of cached tokens, which depend on the order of the samples.
"""

import argparse
import base64
import json
import math
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

PAIR = "pair=demo,dtype=float32"
EXAMPLES = Path(__file__).parents[1] / "examples"
RUNS: dict[str, tuple[str, str]] = {
    "second_check_off": ("shapes_s", f"{PAIR},method=mai_confidence_direct,min_confidence=0.8"),
    "both": ("shapes_e", f"{PAIR},min_confidence=0.8,method={EXAMPLES / 'both.yaml'}"),
    "two_stages": ("shapes_r_s2", PAIR),
    "large_first": ("shapes_e_s2", f"{PAIR},min_confidence=0.8,method={EXAMPLES / 'large_first.yaml'}"),
    "short_limit": ("shapes_s", f"{PAIR},max_new_tokens=8"),
    "sparse": ("shapes_s", f"{PAIR},engine=transformers,method=full_rt,transfer=sparse,sparse_layer=0.5"),
}
"""Name -> the task and the model arguments. Besides them, `compare` runs each model alone with each prompt, Full RT,
MAI, MAI by confidence, and own thinking."""
CHATS: tuple[dict[str, Any], ...] = ({}, {"method": "full_rt"}, {"method": "large", "think": "R"}, {"think": "E"})
"""How the server is asked: the field `mai` of its requests."""
QUESTIONS = ("How many cells hold a ring?", "How many cells hold a red shape?", "What is in row 2, column 1?")
OTHER = re.compile(r"_s$|seconds|_at$|cached|time|date|hash|path|folder|wall|speed|latency|elapsed|^shared$")
"""Names of fields that are not compared."""
CLONE = re.compile(r"^.*/lmms_eval_mai/")
"""The beginning of a path in the clone of a version."""
NAMING = ("benchmark", "method", "model", "cascade", "against")
"""The columns that name a row of a table."""


def run(commands: Path, name: str, *arguments: str) -> str:
    """Run a command of the version. Returns what it prints. Raises `SystemExit` with the end of its log if it fails."""
    began = time.monotonic()
    done = subprocess.run([commands / name, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{name} {' '.join(arguments)}\n{(done.stdout + done.stderr)[-3000:]}")
    print(f"{time.monotonic() - began:5.0f} s  {name} {' '.join(arguments)}", flush=True)
    return done.stdout


def make(commands: Path, folder: Path, limit: int) -> None:
    """Write the golden files of one version."""
    pair = ("--pair", "demo", "--benchmarks", "shapes", "--model_args", "dtype=float32", "--limit", str(limit))
    run(commands, "lmms-eval-mai", "compare", *pair, "--tables", "6,7,8,10", "--output_path", str(folder / "runs"))
    for name, (task, arguments) in RUNS.items():
        given = ("--tasks", task, "--model_args", arguments, "--limit", str(limit), "--log_samples")
        run(commands, "lmms-eval", "--model", "mai_cascade", *given, "--output_path", str(folder / "runs" / name))
    options = ("--tables", "all", "--format", "json")
    (folder / "report.json").write_text(run(commands, "lmms-eval-mai", "report", str(folder / "runs"), *options))
    (folder / "server.json").write_text(json.dumps(served(commands)))


def served(commands: Path) -> dict[str, Any]:
    """Return the replies of the server."""
    port, url = "18765", "http://127.0.0.1:18765"
    image = base64.b64encode((Path(__file__).parents[1] / "docs" / "shapes.png").read_bytes()).decode()
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}}
    arguments = ["serve", "--pair", "demo", "--port", port, "--model_args", "dtype=float32"]
    server = subprocess.Popen([commands / "lmms-eval-mai", *arguments], stderr=subprocess.DEVNULL)
    replies = {}
    try:
        with httpx.Client(base_url=url, timeout=300, transport=httpx.HTTPTransport(retries=100)) as client:
            while server.poll() is None and not _answers(client):
                time.sleep(1)
            for mai in CHATS:
                for question in QUESTIONS:
                    content = [picture, {"type": "text", "text": question}]
                    chat = {"model": "demo", "messages": [{"role": "user", "content": content}], "mai": mai}
                    replies[f"{mai} {question}"] = client.post("/v1/chat/completions", json=chat).json()
    finally:
        server.terminate()
        server.wait()
    return replies


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/health").is_success
    except httpx.HTTPError:
        return False


def golden(folder: Path) -> dict[str, Any]:
    """Return all values of the golden files of a folder by their places. Places in lists are numbers, and rows of a
    table have their names in brackets."""
    found: dict[str, Any] = {}
    for file in sorted((folder / "runs").rglob("*_samples_*.jsonl")):
        parts = [part for part in file.relative_to(folder / "runs").parts[:-1] if not part.startswith("mai_cascade-")]
        for line in map(json.loads, file.read_text().splitlines()):
            kept = {"answer": line["filtered_resps"], "score": line.get("exact_match"), "trace": line["token_counts"]}
            found |= flat("/".join([*parts, str(line["doc_id"])]), kept)
    report = json.loads((folder / "report.json").read_text())
    for table in report["tables"].values():
        table["rows"] = {
            f"[{', '.join(str(row[name]) for name in NAMING if name in row)}]": row for row in table["rows"]
        }
    # The requests of all versions have one order.
    return found | flat("report", report) | flat("server", [*json.loads((folder / "server.json").read_text()).values()])


def flat(place: str, value: Any) -> dict[str, Any]:
    """Return the values inside a value by their places, without those that are not compared."""
    if isinstance(value, dict):
        items = [(name, one) for name, one in value.items() if not OTHER.search(name) and name not in ("id", "created")]
    elif isinstance(value, list):
        items = list(enumerate(value))
    else:
        return {place: CLONE.sub("", value) if isinstance(value, str) else value}
    found: dict[str, Any] = {}
    for name, one in items:
        found |= flat(f"{place}/{name}", one)
    return found


def compare(folders: list[Path]) -> int:
    """Print the differences. Returns how many kinds there are."""
    one, other = map(golden, folders)
    kinds: Counter[str] = Counter()
    examples = {}
    for place in sorted({*one, *other}):
        a, b = one.get(place), other.get(place)
        is_close = isinstance(a, float) and isinstance(b, float) and math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-4)
        kind = re.sub(r"/(\d+|\[[^]]*\])(?=/|$)", "/*", place)
        if place not in one or place not in other:
            field = re.sub(r"^(report/tables/.*?/\*)/.*", r"\1", re.sub(r"^.*?/(?=trace/)", "", kind))
            kind = f"only in {folders[place in other]}: {field}"
        elif a == b or is_close:
            continue
        kinds[kind] += 1
        examples.setdefault(kind, f"{place}: {a!r} {b!r}")
    for kind, number in kinds.items():
        print(f"{number:6,}  {kind}\n        {examples[kind][:300]}")
    print(json.dumps({"values": len({*one, *other}), "differences": kinds.total(), "kinds": len(kinds)}))
    return len(kinds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("make", "compare"))
    parser.add_argument("folders", nargs=2, type=Path)
    parser.add_argument("--limit", type=int, default=100)
    given = parser.parse_args()
    if given.step == "compare":
        return min(compare(given.folders), 1)
    make(*given.folders, given.limit)
    return 0


if __name__ == "__main__":
    sys.exit(main())
