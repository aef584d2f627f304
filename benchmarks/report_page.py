"""The page of a report at full size: time and memory to make it, its size, and how soon it answers in Chromium.

    python benchmarks/report_page.py                 # 9 made-up runs on 9,000 documents, about a minute
    python benchmarks/report_page.py --folder out    # runs of your own

The made-up runs are those of Tables 5 to 8, 10 and 15 on a benchmark of POPE's size. Each thinking has 60 to 180 random
words, so it is harder to compress than real text. The command runs in a process of its own, so its time includes all
imports. The page is opened several times; the figures of the browser are medians.

* samples: from the start of the navigation until the list of samples is there and all filters answer.
* figures: until all figures are drawn.
* filter, sample, search: from the action until its result is in the document. The search is the first one, which
  decompresses all texts.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import print_json, print_table

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.folders import Answers, World
from support.worlds import write_all

STEPS = {
    "filter": "() => showSamples({exit: 'transfer'})",
    "sample": "() => openSample(browser.found[0])",
    "search": "() => showSamples({q: 'word7 '})",
}
"""Action -> its call in the page, which returns when the result is there."""


def write_runs(folder: Path, documents: int) -> None:
    """Write made-up runs with texts of a realistic length and with start times."""
    chance = random.Random(1)

    def answer(gold: str, right: float) -> str:
        return gold if chance.random() < right else "no" if gold == "yes" else "yes"

    golds = chance.choices(["yes", "no"], k=documents)
    answers = [Answers(gold, *(answer(gold, right) for right in (0.86, 0.87, 0.85, 0.88, 0.89))) for gold in golds]
    write_all(World("pope", answers), folder)
    thoughts: dict[tuple[bool, str, int], str] = {}
    for file in folder.glob("*_samples_*.jsonl"):
        start = 1_700_000_000.0
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for line in lines:
            line["input"] = f"Is there a thing{line['doc_id'] % 80} in the image?\nAnswer with a word."
            for call in line["token_counts"][0]["calls"]:
                start += 0.05
                call |= {"started_at": start, "total_s": 0.2 + 0.01 * call["output_tokens"]}
                if call["stage"] == "think":  # greedy: all runs have the same thinking of a prompt
                    key = "_s2" in file.name, call["side"], line["doc_id"]
                    words = thoughts.setdefault(key, _words(chance))
                    call |= {"text": f"{words} {call['text']}", "output_tokens": len(words.split())}
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _words(chance: random.Random) -> str:
    """Return a text in which some words are frequent, as in a language."""
    return " ".join(f"word{int(chance.paretovariate(0.8))}" for _ in range(chance.randint(60, 180)))


def make_page(folder: Path, page: Path) -> dict[str, float]:
    """Run the command. Returns its wall and computing seconds and its memory."""
    command = [sys.executable, "-m", "lmms_eval_mai", "report", str(folder), "--html", str(page)]
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"The command failed: {' '.join(command)}")
    wall = time.perf_counter() - start
    return {"wall_s": wall, "cpu_s": usage.ru_utime + usage.ru_stime, "memory_mb": usage.ru_maxrss / 1024}


def open_page(page: Path, repeats: int) -> dict[str, float]:
    """Open the page several times. Returns medians in milliseconds."""
    from playwright.sync_api import sync_playwright

    found: dict[str, list[float]] = {}
    with sync_playwright() as playwright:
        path = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for _ in range(repeats):
            opened = browser.new_page(viewport={"width": 1280, "height": 900})
            opened.goto(page.as_uri())
            opened.wait_for_selector("body[data-ready=all]", timeout=120_000)
            marks = "performance.getEntriesByType('mark').map(mark => [mark.name, mark.startTime])"
            times: dict[str, Any] = dict(opened.evaluate(marks))
            for name, call in STEPS.items():
                start = "const start = performance.now()"
                timed = f"async () => {{ {start}; await ({call})(); return performance.now() - start; }}"
                times[name] = opened.evaluate(timed)
            for name, value in times.items():
                found.setdefault(name, []).append(value)
            opened.close()
        browser.close()
    return {name: statistics.median(values) for name, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=9000, help="of the made-up runs")
    parser.add_argument("--folder", type=Path, help="output folder of lmms-eval (default: made-up runs)")
    parser.add_argument("--repeats", type=int, default=5, help="how often the page is opened")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = arguments.folder
        if folder is None:
            folder = Path(name) / "runs"
            write_runs(folder, arguments.documents)
        size = sum(file.stat().st_size for file in folder.rglob("*_samples_*.jsonl")) / 1e6
        page = Path(name) / "report.html"
        made = make_page(folder, page)
        megabytes = page.stat().st_size / 1e6
        times = open_page(page, arguments.repeats)
    rows = [
        ["samples files", f"{size:.0f} MB"],
        ["report and page, wall time", f"{made['wall_s']:.1f} s"],
        ["report and page, computing time", f"{made['cpu_s']:.1f} s"],
        ["memory", f"{made['memory_mb']:.0f} MB"],
        ["page", f"{megabytes:.1f} MB"],
        *([f"browser: {name}", f"{value:.0f} ms"] for name, value in times.items()),
    ]
    print_table("The page of a report", ["", "value"], rows)
    print_json("report_page", {"samples_mb": size, **made, "page_mb": megabytes, "browser_ms": times})


if __name__ == "__main__":
    main()
