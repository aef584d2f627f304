"""The demo pair on every real engine: vLLM in this process, two vLLM servers, transformers, and a mixture of them."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.processes import DEMO_DOCUMENTS, end, lines_of, start, wait_for_lines
from support.servers import Server

from lmms_eval_mai.run.presets import FOLDER

PRESET = {"max_new_tokens": 512}
"""The arguments of pair=demo, for servers, which have no preset."""


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    logs = tmp_path_factory.mktemp("servers")
    found = {side: Server(FOLDER / "demo" / side, logs / side) for side in ("small", "large")}
    for server in found.values():
        server.start()
    for server in found.values():
        server.wait()
    yield found
    for server in found.values():
        server.kill()


def run(folder: Path, name: str, **arguments: Any) -> dict[str, Any]:
    """Run a cascade over the first documents, and return its exits, answers, tokens and scores."""
    output = folder / f"{name}.json"
    arguments = {**PRESET, "max_open_samples": 16, "journal": folder / name, **arguments}
    end(start(folder, output, "shapes_s", DEMO_DOCUMENTS, **arguments))
    assert output.exists(), output.with_suffix(".log").read_text()[-3000:]
    found: dict[str, Any] = json.loads(output.read_text())
    return found


@pytest.fixture(scope="module")
def expected(demo_run: Any) -> dict[str, Any]:
    """Return the results of vLLM in this process."""
    found: dict[str, Any] = demo_run[0]
    assert len(Counter(found["exits"])) >= 2 and len(found["exits"]) == DEMO_DOCUMENTS
    return found


@pytest.mark.parametrize("name", ["openai", "transformers", "mixed"])
def test_every_engine_gives_the_same_results(
    name: str, servers: dict[str, Server], expected: dict[str, Any], tmp_path: Path
) -> None:
    arguments: dict[str, dict[str, Any]] = {
        "openai": {side: server.url for side, server in servers.items()},
        "transformers": {"pair": "demo", "engine": "transformers", "dtype": "float32"},
        "mixed": {"pair": "demo", "small_engine": "transformers", "small_dtype": "float32",
                  "large": servers["large"].url},
    }  # fmt: skip
    assert run(tmp_path, name, **arguments[name]) == expected


def test_a_server_that_is_killed_and_restarted_loses_no_call_and_repeats_none(
    servers: dict[str, Server], expected: dict[str, Any], tmp_path: Path
) -> None:
    journal, output, kept = tmp_path / "journal", tmp_path / "found.json", tmp_path / "kept.jsonl"
    arguments = {**PRESET, "max_open_samples": 16, "journal": journal}
    urls = {side: server.url for side, server in servers.items()}
    process = start(tmp_path, output, "shapes_s", DEMO_DOCUMENTS, **arguments, small_retry_for=600, **urls)
    assert wait_for_lines(process, journal, 40), output.with_suffix(".log").read_text()[-3000:]
    kept.hardlink_to(next(journal.glob("*.jsonl")))
    servers["small"].kill()
    before = len(lines_of(journal))
    servers["small"].start()
    end(process)
    assert output.exists(), output.with_suffix(".log").read_text()[-3000:]
    assert before < 40 + 3 * DEMO_DOCUMENTS and json.loads(output.read_text()) == expected
    keys = Counter(tuple(json.loads(line)["key"]) for line in kept.read_text().split("\n") if '"call":' in line)
    assert set(keys.values()) == {1}
    log = output.with_suffix(".log").read_text()
    assert (
        f"{servers['small'].url} (small) does not answer" in log
        and "Its requests are retried for up to 600 s (small_retry_for)" in " ".join(log.split())
    )
