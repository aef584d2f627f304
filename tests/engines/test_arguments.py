"""Arguments are checked before any engine's library is imported, and the message names the argument."""

import subprocess
import sys
from typing import Any, Literal

import pytest

from lmms_eval_mai.engines.arguments import Arguments, Count, Number, Share, read
from lmms_eval_mai.errors import ArgumentError

TYPO = """
import sys
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.run.config import parse

try:
    parse({arguments!r})
except ArgumentError as error:
    print(error)
print("imported:", *(name for name in ("vllm", "torch", "transformers", "aiohttp") if name in sys.modules))
"""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(
            {"pair": "demo", "small_max_model_length": 5}, ["max_model_length", "max_model_len"], marks=pytest.mark.slow
        ),
        ({"small": "http://host/v1", "mode": "small", "small_retry": 5}, ["openai", "retry_for"]),
        ({"pair": "demo", "engine": "transformers", "batchsize": 5}, ["transformers", "batch_size"]),
    ],
)
def test_message_about_a_typo_suggests_the_right_argument_and_comes_before_the_import_of_the_engines_library(
    arguments: dict[str, object], words: list[str]
) -> None:
    """The names of vLLM's arguments are known only from vLLM itself, which is imported for them."""
    child = subprocess.run([sys.executable, "-c", TYPO.format(arguments=arguments)], capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
    message, imported = child.stdout.strip().split("\n")
    assert all(word in message for word in words), message
    assert imported == "imported:" or "vllm engine" in message, imported


class Example(Arguments):
    count: Count = 1
    number: Number | None = None
    share: Share = 1.0
    order: Literal["a", "b"] = "a"
    api_key: int = 0


def test_numbers_are_read_as_lmms_eval_passes_them() -> None:
    found = read(Example, {"count": 3.0, "number": 2, "share": 1})
    assert (found.count, found.number, found.share) == (3, 2.0, 1.0)


@pytest.mark.parametrize(
    ("name", "value"),
    [*(("count", value) for value in (0, 2.5, True, "many", None)), *(("number", value) for value in (-1, "2", False)),
     ("number", float("inf")), ("share", 0), ("share", 1.1), ("order", "c"), ("api_key", "sk-1"), ("unknown", 1)],
)  # fmt: skip
def test_an_argument_that_cannot_work_is_refused_by_name_and_no_secret_is_shown(name: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=rf"small_{name}=") as error:
        read(Example, {name: value}, "small_")
    assert "sk-1" not in str(error.value)
