"""Kills a node of a Ray cluster in the middle of a run, and checks that no answer is lost or repeated.

    pip install 'ray[serve]'
    python experiments/ray/node_failure.py                 # about four minutes on 2 cores; 8 GB of memory

Both nodes are on this machine (`ray.cluster_utils`). Each has one replica of both models of the demo pair, which
`demo_pair.yaml` serves, here with a proxy on the first node only, because both nodes would use the same port.
`lmms-eval --model mai_cascade` runs twice against them: all processes of the second node get SIGKILL in the middle of
the first run, and the second run has one node.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import yaml
from ray.cluster_utils import Cluster

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
BIN = Path(sys.executable).parent
URL = "http://127.0.0.1:8000"
SAMPLES, CALLS_BEFORE_KILL = 120, 60
MODELS = ",".join(f"{side}={URL}/models/v1,{side}_model=demo-{side}" for side in ("small", "large"))


def wait_for(condition: Any, seconds: float, problem: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(problem)
        time.sleep(0.2)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def start_run(folder: Path, name: str) -> "subprocess.Popen[bytes]":
    """Start lmms-eval with the models of the cluster."""
    arguments = f"{MODELS},max_new_tokens=512,max_open_samples=16,retry_for=300,store={folder / name}"
    line = ["lmms_eval", "--model", "mai_cascade", "--tasks", "shapes_s", "--limit", str(SAMPLES), "--log_samples",
            "--output_path", str(folder / f"{name}-output"), "--model_args", arguments]  # fmt: skip
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen([sys.executable, "-m", *line], stdout=log, stderr=log)


def calls(folder: Path) -> list[tuple[Any, ...]]:
    """Return the keys of the finished calls in the call store of a run."""
    lines = [line for file in folder.glob("*.jsonl") for line in file.read_text().splitlines() if '"call":' in line]
    return [tuple(json.loads(line)["key"]) for line in lines]


def samples(folder: Path, name: str) -> dict[int, tuple[Any, ...]]:
    """Return the answers and the target of each document of a finished run."""
    (file,) = (folder / f"{name}-output").rglob("*_samples_shapes_s.jsonl")
    found = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(found) == len({sample["doc_id"] for sample in found}), "a document was answered twice"
    return {sample["doc_id"]: (sample["resps"], sample["filtered_resps"], sample["target"]) for sample in found}


def exit_of_cascade() -> str:
    """Ask the cascade's server one question, and return the exit of the sample."""
    body = {
        "model": "mai_cascade",
        "messages": [{"role": "user", "content": "Which shape has three sides?\nA. triangle\nB. circle"}],
        "max_tokens": 16,
    }
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{URL}/v1/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=120) as reply:
        return str(json.load(reply)["mai"]["exit"])


def kill_node(raylet: int) -> int:
    """Kill all processes of a node. Returns their number."""
    processes = psutil.Process(raylet).children(recursive=True)
    processes.append(psutil.Process(raylet))
    for process in processes:
        process.kill()
    return len(processes)


def main() -> None:
    os.chdir(ROOT)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(FOLDER), str(ROOT), os.environ.get("PYTHONPATH", "")])
    os.environ["HF_HUB_OFFLINE"] = "1"
    folder = Path(tempfile.mkdtemp(prefix="node-failure-"))
    node: dict[str, Any] = {"num_cpus": 8, "object_store_memory": 100 << 20, "resources": {"small": 1, "large": 1}}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    second = cluster.add_node(**node)
    config = yaml.safe_load((FOLDER / "demo_pair.yaml").read_text()) | {"proxy_location": "HeadOnly"}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    with (folder / "serve.log").open("wb") as log:
        line = [str(BIN / "serve"), "run", "--address", cluster.address, str(folder / "config.yaml")]
        serve = subprocess.Popen(line, stdout=log, stderr=log)
    began = time.monotonic()
    try:
        wait_for(lambda: answers(f"{URL}/v1/models"), 400, f"The models did not start: see {folder}.")
        print(f"models and cascade started in {time.monotonic() - began:.0f} s", flush=True)
        run = start_run(folder, "killed")
        wait_for(
            lambda: len(calls(folder / "killed")) >= CALLS_BEFORE_KILL, 120, f"The run did not start: see {folder}."
        )
        kept = folder / "kept"
        kept.mkdir()
        for file in (folder / "killed").glob("*.jsonl"):
            (kept / file.name).hardlink_to(file)  # a finished run removes its store
        before = len(calls(kept))
        print(f"killed {kill_node(second.all_processes['raylet'][0].process.pid)} processes of the second node")
        print(f"after {before} calls", flush=True)
        assert run.wait(300) == 0, folder
        assert start_run(folder, "one-node").wait(300) == 0, folder
        print(f"exit of a question to the cascade's server: {exit_of_cascade()}")
        keys = Counter(calls(kept))
        same = samples(folder, "killed") == samples(folder, "one-node")
        assert max(keys.values()) == 1 and before < len(keys), "a call was answered twice, or the run ended too early"
        assert len(samples(folder, "killed")) == SAMPLES and same
        print(f"{SAMPLES} documents, {len(keys)} calls, none twice; the same answers on one node")
    finally:
        serve.send_signal(signal.SIGINT)
        serve.wait(60)
        cluster.shutdown()


if __name__ == "__main__":
    main()
