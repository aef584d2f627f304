"""The command `lmms-eval-mai serve` in a process of its own."""

import os
import re
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from support.own_command import run_command
from support.serving import address_in, chat, chat_records, image_url, user, wait_until, written

if TYPE_CHECKING:
    from support.processes import Command


def cut_image_url() -> str:
    """Return an image without the end of its pixels. lmms-eval lets Pillow read such images."""
    kind, data = image_url(format="BMP").split(",")
    return f"{kind},{data[: len(data) // 8 * 4]}"


def requests_taken(metrics: str) -> float:
    """Return how many requests the server has answered or is answering. A request that is just ending counts twice for
    a moment."""
    counts = re.findall(r'^mai_(?:requests\{state="open"|replies_total\{status="200")\} (\S+)', metrics, re.MULTILINE)
    return sum(map(float, counts))


SECRETS = ("Is there a dog", "the-key", "data:image")


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_the_server_after_the_requests_in_flight_are_answered(
    how: int, command: "type[Command]", tmp_path: Path
) -> None:
    small, large = chat_records(8, seconds=0.6)
    models = written(tmp_path, small, large)
    model_args = ",".join(f"{name}={value}" for name, value in models.items())
    arguments = ["serve", "--port", "0", "--served-name", "pair", "--api-key-env", "SERVER_KEY"]
    log = tmp_path / "log"
    own = {"environment": {"SERVER_KEY": "the-key"}}
    process = command(tmp_path, log, *arguments, "--model_args", model_args, name="lmms-eval-mai", **own)
    url = address_in(log, process.process)
    headers = {"Authorization": "Bearer the-key"}
    with httpx.Client(base_url=url, headers=headers, timeout=60) as client, ThreadPoolExecutor(6) as pool:

        def ask(_: int) -> Any:
            return client.post("/v1/chat/completions", json=chat())

        assert ask(0).json()["choices"][0]["message"]["content"] == "answer 0"
        cut = client.post("/v1/chat/completions", json=chat() | {"messages": [user("Hm?", cut_image_url())]})
        assert cut.status_code == 400 and cut.json()["error"]["code"] == "invalid_image"
        replies = [pool.submit(ask, number) for number in range(6)]
        wait_until(lambda: requests_taken(client.get("/metrics").text) == 7)  # the first one and these six
        os.kill(process.process.pid or 0, how)
        found = {reply.result(60).json()["choices"][0]["message"]["content"] for reply in replies}
    assert found == {f"answer {number}" for number in range(2, 8)}
    code, text = process.end()
    assert code == (130 if how == signal.SIGINT else 0), text
    assert "requests in flight are answered first" in " ".join(text.split()).replace("Requests", "requests")
    assert not any(secret in text for secret in SECRETS)


def test_sigterm_while_the_engines_start_ends_the_server(command: "type[Command]", tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # an engine's server that never answers
        url, log = f"http://127.0.0.1:{silent.getsockname()[1]}/v1", tmp_path / "log"
        arguments = ["serve", "--port", "0", "--model_args", f"small={url},large={url}"]
        process = command(tmp_path, log, *arguments, name="lmms-eval-mai")
        wait_until(lambda: log.exists() and "starting small=" in log.read_text())
        process.process.terminate()
        code, text = process.end()
    assert code == 143 and "stopped by SIGTERM before the server was ready" in text
    assert "Traceback" not in text


def test_arguments_that_cannot_work_give_exit_code_1_and_a_sentence(capsys: Any, tmp_path: Path) -> None:
    models = written(tmp_path, *chat_records(1))
    scripted = ",".join(f"{name}={value}" for name, value in models.items())
    for arguments, text in (
        (["--max-queue", "-1"], "--max-queue -1 is invalid"),
        (["--request-timeout", "0"], "--request-timeout 0.0 is invalid"),
        (["--api-key-env", "NOT_SET_ANYWHERE"], "NOT_SET_ANYWHERE: this environment variable is not set"),
        (["--host", "256.256.256.256"], "cannot use 256.256.256.256:8000"),
        (["--model_args", f"{scripted},journal=here"], "A server has no journal"),
        (["--gen_kwargs", "temprature=1"], "Did you mean temperature"),
        (["--pair", "demu"], "Did you mean demo"),
    ):
        given = [*arguments] if "--model_args" in arguments or "--pair" in arguments else [
            "--model_args", scripted, *arguments
        ]  # fmt: skip
        code, _, errors = run_command(capsys, "serve", *given)
        assert code == 1 and text in errors
