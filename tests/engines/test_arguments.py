"""Engine arguments are checked before any engine's library is imported."""

import subprocess
import sys

import pytest

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
            {"pair": "demo", "small_max_model_length": 5},
            ["'max_model_length'", "vllm engine (small)", "max_model_len"],
            marks=pytest.mark.slow,
        ),
        ({"small": "http://host/v1", "mode": "small", "small_retry": 5}, ["openai engine (small)", "retry_for"]),
        ({"pair": "demo", "engine": "transformers", "batchsize": 5}, ["transformers engine (small)", "batch_size"]),
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
