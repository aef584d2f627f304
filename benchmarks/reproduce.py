"""`lmms-eval-mai reproduce` against the single lmms-eval commands: calls, wall time, and equal results.

    python benchmarks/reproduce.py                    # the demo pair on the 1,000 documents of shapes
    python benchmarks/reproduce.py --limit 40 --kills 2 --tables 10

Every command is a process of its own and starts its own engines; its wall time includes this start. The single commands
are those that `--dry-run` prints. The data set is loaded once before. Each run of the one command is compared with that
of its single command, document by document: score, exit, answer, parsed answers, and text and tokens of every call.
Then the command is started again in an empty folder and killed (SIGKILL) at random moments, and its results are
compared with those of the first one. A call that was on the disk at a kill and has another duration in the results was
made twice. Answers of vLLM may depend on the calls that run at the same time (rounding), so the number of documents
that differ is printed for each run.
"""

import argparse
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import print_json, print_table

PROGRAMS = Path(sys.executable).parent
TIMES = ("queued_s", "ttft_s", "total_s", "started_at", "cached_tokens", "shared")
"""Fields of a call that two runs with the same answers may differ in."""


@dataclass(frozen=True)
class Outcome:
    """The results of one run."""

    scores: dict[str, float]
    documents: dict[int, Any]
    """All that the samples file has of each document, without times."""
    calls: int
    shared: int


Durations = dict[tuple[Any, ...], float]
"""Run, document, side and stage of a call -> its seconds, as far as the trace has them."""


@dataclass(frozen=True)
class Compared:
    """A run of the one command beside its single command."""

    name: str
    single: Outcome
    one: Outcome
    single_s: float

    @property
    def different(self) -> int:
        """Return the number of documents that differ."""
        return different(self.single, self.one)


def outcome(folder: Path) -> Outcome:
    """Read the folder of a run."""
    (results,) = folder.rglob("*_results.json")
    (samples,) = folder.rglob("*_samples_*.jsonl")
    found = json.loads(results.read_text())["results"]
    scores = {name: value for one in found.values() for name, value in one.items() if isinstance(value, float)}
    documents, calls, shared = {}, 0, 0
    for line in samples.read_text().split("\n"):
        if line:
            sample = json.loads(line)
            trace = sample["token_counts"][0]
            calls += len(trace["calls"])
            shared += sum(bool(call.get("shared")) for call in trace["calls"])
            documents[sample["doc_id"]] = {
                **{name: sample.get(name) for name in ("target", "score", "filtered_resps")},
                **{name: trace[name] for name in ("exit", "answers", "input_tokens", "output_tokens")},
                "calls": [{k: v for k, v in call.items() if k not in TIMES} for call in trace["calls"]],
            }
    return Outcome(scores, documents, calls, shared)


def different(a: Outcome, b: Outcome) -> int:
    """Return the number of documents that differ."""
    return sum(a.documents.get(doc) != b.documents.get(doc) for doc in {*a.documents, *b.documents})


def run(command: Sequence[str], log: Path) -> float:
    """Run a command to its end. Returns its wall seconds."""
    began = time.perf_counter()
    with log.open("ab") as file:
        code = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=False).returncode
    if code:
        sys.exit(f"{shlex.join(command)} ended with exit code {code}:\n{log.read_text(errors='replace')[-3000:]}")
    return time.perf_counter() - began


def reproduce(arguments: argparse.Namespace, output: Path) -> list[str]:
    """Return the command."""
    command = [sys.executable, "-m", "lmms_eval_mai", "reproduce", "--pair", arguments.pair]
    command += ["--benchmarks", arguments.benchmarks, "--tables", arguments.tables, "--output_path", str(output)]
    for name in ("limit", "model_args"):
        if value := getattr(arguments, name):
            command += [f"--{name}", str(value)]
    return command


def single_commands(arguments: argparse.Namespace, output: Path) -> list[list[str]]:
    """Return the single commands, as `--dry-run` prints them. This also loads the data set."""
    done = subprocess.run([*reproduce(arguments, output), "--dry-run"], capture_output=True, text=True, check=True)
    lines = [line for line in done.stdout.split("\n") if line.startswith("lmms-eval ")]
    return [[str(PROGRAMS / "lmms-eval"), *shlex.split(line)[1:]] for line in lines]


def killed(arguments: argparse.Namespace, output: Path, log: Path, calls: int) -> tuple[int, Durations]:
    """Run the command and kill it `arguments.kills` times, then let it end. Returns how often it was killed, and the
    calls that were on the disk at a kill."""
    chance, count = random.Random(arguments.seed), 0
    kept: Durations = {}
    moments = sorted(chance.randrange(1, calls) for _ in range(arguments.kills))
    for moment in moments:
        with log.open("ab") as file:
            process = subprocess.Popen(
                reproduce(arguments, output), stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )
        while process.poll() is None and lines(output / "calls.jsonl") < moment:
            time.sleep(0.01)
        if process.poll() is None:
            count += 1
            os.kill(process.pid, signal.SIGKILL)
        process.wait()
        kept = on_disk(output / "calls.jsonl") | kept
        print(f"Killed with {len(kept)} calls on the disk.", file=sys.stderr, flush=True)
    run(reproduce(arguments, output), log)
    return count, kept


def on_disk(file: Path) -> Durations:
    """Read the calls in the file of shared calls. A torn last line is left out."""
    found: Durations = {}
    for line in file.read_text().split("\n")[1:-1]:
        record = json.loads(line)
        task, document, _, side, stage = record["key"]
        found[record["run"], task, document, side, stage] = round(record["call"]["total_s"], 6)
    return found


def in_results(output: Path, names: Sequence[str]) -> Durations:
    """Read the calls in the samples files of these runs, without those that other runs made."""
    found: Durations = {}
    for name in names:
        (samples,) = (output / name).rglob("*_samples_*.jsonl")
        for line in samples.read_text().split("\n")[:-1]:
            sample = json.loads(line)
            for call in sample["token_counts"][0]["calls"]:
                key = (name, Path(name).name, sample["doc_id"], call["side"], call["stage"])
                if call["total_s"] is not None:  # a shared call has no time
                    found[key] = round(call["total_s"], 6)
    return found


def lines(file: Path) -> int:
    return file.read_bytes().count(b"\n") if file.exists() else 0


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run all commands. Returns the figures."""
    log = folder / "log.txt"
    commands = single_commands(arguments, folder / "single")
    one_s = run(reproduce(arguments, folder / "one"), log)
    print(f"The one command took {one_s:.1f} s.", file=sys.stderr, flush=True)
    compared = []
    for command in commands:
        place = Path(command[command.index("--output_path") + 1])
        name = str(place.relative_to(folder / "single"))
        single_s = run(command, log)
        compared.append(Compared(name, outcome(place), outcome(folder / "one" / name), single_s))
        print(f"{name} took {single_s:.1f} s.", file=sys.stderr, flush=True)
    figures = print_runs(compared, one_s)
    if arguments.kills:
        calls = lines(folder / "one" / "calls.jsonl")
        figures |= compare_killed(compared, killed(arguments, folder / "killed", log, calls), folder)
    return figures


def compare_killed(compared: Sequence[Compared], kills: tuple[int, Durations], folder: Path) -> dict[str, Any]:
    """Compare the runs of the command that was killed with those of the first one. Returns the figures."""
    pairs = [(one.one, outcome(folder / "killed" / one.name)) for one in compared]
    made = {name: lines(folder / name / "calls.jsonl") - 1 for name in ("one", "killed")}
    count, kept = kills
    final = in_results(folder / "killed", [one.name for one in compared])
    twice = sum(final.get(key) != seconds for key, seconds in kept.items())
    found = {
        "kills": count,
        "different_after_kills": sum(different(*pair) for pair in pairs),
        "equal_scores_after_kills": all(a.scores == b.scores for a, b in pairs),
        "marks_equal_after_kills": all(a.shared == b.shared for a, b in pairs),
        "calls_after_kills": made["killed"],
        "on_disk_at_kills": len(kept),
        "made_twice": twice,
    }
    print(
        f"Killed {count} times: {found['different_after_kills']} documents differ from the run that was not killed. "
        f"The file of calls has {made['killed']} calls, and {made['one']} without kills. {len(kept)} calls were on the "
        f"disk at a kill, and {twice} of them were made twice."
    )
    return found


def print_runs(compared: Sequence[Compared], one_s: float) -> dict[str, Any]:
    """Print each run and the sums. Returns the figures."""
    rows = [
        (
            one.name,
            str(len(one.single.documents)),
            str(one.single.calls),
            str(one.one.calls - one.one.shared),
            f"{one.single_s:.1f}",
            str(one.different),
            "yes" if one.single.scores == one.one.scores else "no",
        )
        for one in compared
    ]
    headers = ("Run", "Documents", "Calls, single", "Calls made", "Single s", "Documents that differ", "Equal scores")
    print_table("One command and the single commands", headers, rows)
    single_calls = sum(one.single.calls for one in compared)
    made = sum(one.one.calls - one.one.shared for one in compared)
    single_s = sum(one.single_s for one in compared)
    print(
        f"Calls: {made} of {single_calls} ({made / single_calls:.3f}). "
        f"Wall: {one_s:.1f} s of {single_s:.1f} s ({one_s / single_s:.3f}), engine starts included."
    )
    return {
        "runs": len(compared),
        "calls": {"single": single_calls, "one": made, "ratio": made / single_calls},
        "wall_s": {"single": single_s, "one": one_s, "ratio": one_s / single_s},
        "documents": sum(len(one.single.documents) for one in compared),
        "different": {one.name: one.different for one in compared},
        "equal_scores": all(one.single.scores == one.one.scores for one in compared),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", default="demo")
    parser.add_argument("--benchmarks", default="shapes")
    parser.add_argument("--tables", default="5,6,7,8,10,15")
    parser.add_argument("--limit", type=int, help="documents of each task (default: all)")
    parser.add_argument("--model_args", default="", help="e.g. dtype=float32")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    parser.add_argument("--folder", type=Path, help="keep all files in this new folder")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        figures = measure(arguments, folder.resolve())
    print_json("reproduce", {"limit": arguments.limit, "tables": arguments.tables, **figures})


if __name__ == "__main__":
    main()
