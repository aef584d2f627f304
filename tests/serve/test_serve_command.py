"""The command `lmms-eval-mai serve` in a process of its own."""

import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from support.serving import address_in, chat, chat_records, image_url, user, wait_until, written

if TYPE_CHECKING:
    from support.processes import Command

CHAT = "/v1/chat/completions"
SECRETS = ("Is there a dog", "the-key", "data:image")


def serve(command: "type[Command]", folder: Path, models: dict[str, Any], *options: str) -> "tuple[Command, str]":
    """Start a server on scripted engines, and return it and its address."""
    model_args = ",".join(f"{name}={value}" for name, value in models.items())
    arguments = ["serve", "--port", "0", "--served_name", "pair", "--model_args", model_args, *options]
    environment, log = {"SERVER_KEY": "the-key"}, folder / "log"
    process = command(folder, log, *arguments, name="lmms-eval-mai", environment=environment)
    return process, address_in(log, process.process)


@pytest.mark.parametrize("how", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_signal_stops_the_server_after_the_requests_in_flight_are_answered(
    how: int, command: "type[Command]", tmp_path: Path
) -> None:
    models = written(tmp_path, *chat_records(8, seconds=0.6))
    mine = tmp_path / "mine.yaml"
    mine.write_text("[{ask: large.simple}, {stop: {exit: guessed, answer: large.simple}}]")
    process, url = serve(command, tmp_path, models, "--api_key_env", "SERVER_KEY", "--methods", str(mine))
    headers = {"Authorization": "Bearer the-key"}
    with httpx.Client(base_url=url, headers=headers, timeout=60) as client, ThreadPoolExecutor(6) as pool:

        def ask(_: int, **fields: Any) -> Any:
            return client.post(CHAT, json=chat(**fields))

        first = ask(0, mai={"method": "mine"}).json()
        assert first["choices"][0]["message"]["content"] == "answer 0"
        assert (first["mai"]["method"], first["mai"]["exit"]) == ("mine", "guessed")
        kind, data = image_url(format="BMP").split(",")  # lmms-eval lets Pillow read images without their end
        cut = client.post(CHAT, json=chat() | {"messages": [user("Hm?", f"{kind},{data[: len(data) // 8 * 4]}")]})
        assert cut.status_code == 400 and cut.json()["error"]["code"] == "invalid_image"
        replies = [pool.submit(ask, number) for number in range(6)]
        wait_until(lambda: client.get("/health").json()["requests"] == 6)
        os.kill(process.process.pid or 0, how)
        found = {reply.result(60).json()["choices"][0]["message"]["content"] for reply in replies}
    assert found == {f"answer {number}" for number in range(2, 8)}
    code, text = process.end()
    assert code == (130 if how == signal.SIGINT else 0), text
    assert not any(secret in text for secret in SECRETS)


def test_engine_that_cannot_be_started_again_ends_the_server_with_1(command: "type[Command]", tmp_path: Path) -> None:
    small, large = chat_records(2)
    large[0]["fault"] = "death"
    process, url = serve(command, tmp_path, written(tmp_path, small, large) | {"engine_restarts": 0})
    response = httpx.post(f"{url}{CHAT}", json=chat(), timeout=60)
    assert response.status_code == 503 and response.json()["error"]["code"] == "engine_down"
    assert int(response.headers["Retry-After"]) > 0
    code, text = process.end()
    assert code == 1 and "The large engine is not restarted" in " ".join(text.split()) and "Traceback" not in text


@pytest.mark.long
def test_sigterm_while_the_engines_start_ends_the_server(command: "type[Command]", tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # an engine's server that never answers
        url, log = f"http://127.0.0.1:{silent.getsockname()[1]}/v1", tmp_path / "log"
        arguments = ["serve", "--port", "0", "--model_args", f"small={url},large={url}"]
        process = command(tmp_path, log, *arguments, name="lmms-eval-mai")
        wait_until(lambda: log.exists() and "starting small=" in log.read_text())
        process.process.terminate()
        code, text = process.end()
    assert code == 143 and "Traceback" not in text
