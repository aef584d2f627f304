"""Exit codes and messages of the command. lmms-eval alone catches every exception and exits with 0."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.processes import Command, large_pope, scripts, wait_for_lines

from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.harness import exit_codes

ROWS = 60


@pytest.fixture(scope="module")
def data(drawn_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return large_pope(drawn_data, tmp_path_factory.mktemp("exit_codes"), ROWS)


@pytest.fixture
def run_pope(command: type[Command], data: Path) -> Callable[..., Command]:
    """Run lmms-eval's command on POPE in a folder."""

    def run(
        folder: Path, output: Path | None = None, stopped_before_results: bool = False, **model_args: Any
    ) -> Command:
        arguments = {"engine": "scripted", "max_open_samples": 2, "journal": folder / "journal", **model_args}
        given = ",".join(f"{name}={value}" for name, value in arguments.items())
        line = ["--model", "mai_cascade", "--tasks", "pope_s", "--model_args", given]
        line += ["--output_path", str(output)] if output else []
        return command(data, folder / "log", *line, stopped_before_results=stopped_before_results)

    return run


@pytest.mark.parametrize(
    ("how", "code", "word"),
    [
        (signal.SIGINT, 130, "stopped by Ctrl-C"),
        (signal.SIGTERM, 143, "received SIGTERM"),
        (signal.SIGHUP, 129, "received SIGHUP"),
    ],
)
def test_signal_ends_the_command_with_its_exit_code_and_a_hint_how_to_resume(
    run_pope: Callable[..., Command], data: Path, tmp_path: Path, how: int, code: int, word: str
) -> None:
    process = run_pope(tmp_path, **scripts(data, "pope_s", ROWS, seconds=0.6))
    assert wait_for_lines(process.process, tmp_path / "journal", 20)
    os.kill(process.process.pid or 0, how)
    found, text = process.end()
    assert found == code
    assert f"mai_cascade: {word}. All finished calls are in {tmp_path}/journal/" in text
    assert "To resume, run the same command with the same models again." in text and "Traceback" not in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"time_scale": 0}, f"of {ROWS} samples failed, and max_errors=0 allows 0:"),
        ({"mode": "both"}, "mai_cascade: mode=both is unknown: choose one of cascade, transfer, small, large."),
    ],
)
def test_error_ends_the_command_with_1_and_one_message_without_a_traceback(
    run_pope: Callable[..., Command], tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    failing = scripts(tmp_path, "pope_s", ROWS, seconds=1, failing=(7, 30))
    code, text = run_pope(tmp_path, **arguments, **failing).end()
    assert code == 1 and "Traceback" not in text and message in text
    assert ("To resume, run the same command with the same models again." in text) is ("mode" not in arguments)


def test_results_that_cannot_be_written_end_the_command_with_1_and_keep_the_journal(
    run_pope: Callable[..., Command], data: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    arguments = {"time_scale": 0, **scripts(data, "pope_s", ROWS, seconds=1)}
    process = run_pope(tmp_path, output=tmp_path / "file" / "out", **arguments)
    code, text = process.end()
    assert code == 1 and "Traceback" not in text
    assert "lmms-eval cannot write its results ([Errno 20] Not a directory" in text
    assert f"All answers are still in {tmp_path}/journal/" in text
    process = run_pope(tmp_path, output=tmp_path / "out", **arguments)
    code, text = process.end()
    assert code == 0 and f"resuming: {ROWS} of {ROWS} done" in text
    assert f"mai_cascade: 0/{ROWS}" not in text.rpartition("resuming: ")[2]
    assert list((tmp_path / "journal").iterdir()) == [] and list((tmp_path / "out").glob("*/*_results.json"))
    # Our table comes last. The log also holds the first command.
    assert 0 < text.rindex("Throughput Summary") < text.rindex("mai_cascade mode=cascade: ")


def test_command_that_ends_before_its_results_are_written_keeps_the_journal(
    run_pope: Callable[..., Command], data: Path, tmp_path: Path
) -> None:
    arguments = {"time_scale": 0, **scripts(data, "pope_s", ROWS, seconds=1)}
    code, text = run_pope(tmp_path, output=tmp_path / "out", stopped_before_results=True, **arguments).end()
    assert code == 130 and list((tmp_path / "journal").iterdir())
    assert not list((tmp_path / "out").rglob("*_mai_cascade.json"))  # no figures without results
    code, text = run_pope(tmp_path, output=tmp_path / "out", **arguments).end()
    assert code == 0 and f"resuming: {ROWS} of {ROWS} done" in text
    (file,) = (tmp_path / "out").rglob("*_mai_cascade.json")
    figures = json.loads(file.read_text())  # they contain what the first attempt spent
    assert figures["samples"] == ROWS and 0 < figures["earlier_s"] < figures["wall_s"]
    assert figures["tasks"]["pope_s"]["small"]["calls"] == ROWS * 5 // 3


def test_error_in_library_use_is_an_exception_that_ends_with_the_hint() -> None:
    reported = exit_codes.report_errors_to_user(lambda: "Type this.")
    with pytest.raises(ArgumentError, match="invalid") as raised, reported:
        raise ArgumentError("invalid")
    assert str(raised.value) == "invalid\nType this."
    with pytest.raises(KeyboardInterrupt), exit_codes.report_errors_to_user(lambda: "Type this."):
        raise KeyboardInterrupt


def test_sigterm_handler_of_the_user_stays() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        with exit_codes.report_errors_to_user():
            signal.raise_signal(signal.SIGTERM)
        assert seen == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_lmms_eval_continues_with_the_next_configuration_after_an_error(
    command: type[Command], data: Path, tmp_path: Path
) -> None:
    good = {"engine": "scripted", "time_scale": 0, **scripts(data, "pope_s", ROWS, seconds=1)}
    good["journal"] = str(tmp_path / "journal")
    runs = [
        {"model": "mai_cascade", "tasks": "pope_s", "model_args": ",".join(f"{k}={v}" for k, v in args.items())}
        for args in ({"mode": "both"}, good, {**good, "think": "E"})
    ]
    (tmp_path / "runs.yaml").write_text(yaml.safe_dump(runs))
    config = ["--config", str(tmp_path / "runs.yaml")]
    command(data, tmp_path / "log", *config, errors=tmp_path / "errors").end()
    shown, errors = (tmp_path / "log").read_text(), (tmp_path / "errors").read_text()
    assert "mode=both is unknown" in errors and shown.replace(" ", "").count("|pope_accuracy|") == 2
    # The second configuration does not mention the first one's journal, and all are removed at the end.
    assert "unfinished run" not in shown + errors and list((tmp_path / "journal").iterdir()) == []
    assert shown.rindex("Throughput Summary") < shown.index("mai_cascade mode=cascade: ")
    assert shown.count("mai_cascade mode=cascade: ") == 2
