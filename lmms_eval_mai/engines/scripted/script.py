"""Scripts of the scripted engine: recorded answers, read from a file.

A script file has JSON lines, one per call (docs/scripted-engine.md):

    {"task": "pope_s", "doc_id": 0, "stage": "short", "text": "[[Yes]]",
     "prompt_tokens": 310, "cached_tokens": 0, "output_tokens": 4, "ttft_s": 0.03, "seconds": 0.05}
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal, get_args

from lmms_eval_mai.contract import Prompt, Stage
from lmms_eval_mai.engines.checkpoints import file_digest
from lmms_eval_mai.errors import ArgumentError, MissingAnswer

Fault = Literal["error", "hang", "death"]


@dataclass(frozen=True)
class Answer:
    """One recorded answer. A token count that is not in the record is 0."""

    text: str
    finish_reason: str = "stop"
    prompt_tokens: int = 0
    image_tokens: int | None = None
    """Prompt tokens of images. None: not known."""
    cached_tokens: int = 0
    output_tokens: int = 0
    answer_tokens: int | None = None
    """Tokens of the extracted answer."""
    answer_logprob: float | None = None
    """The sum of the log-probabilities of the tokens of the extracted answer. None: not known."""
    min_logprob: float | None = None
    """The smallest of these log-probabilities. None: not known."""
    ttft_s: float | None = None
    """Seconds to the first token. None: computed from the engine's arguments."""
    seconds: float | None = None
    """Seconds in total. None: computed from the engine's arguments (Eq. 27)."""
    fault: Fault | None = None
    """error: the call fails. hang: the call never ends. death: the engine crashes, and all calls in flight fail."""


FIELDS = ("task", "doc_id", "stage", "repeat", *(field.name for field in fields(Answer)))
"""The fields of a record."""

Script = Callable[[Prompt], Answer]
"""Returns the answer to a prompt. Raises `MissingAnswer`, or another `SampleError` to simulate a failed call."""


class RecordedScript:
    """A script from a file. The key of a record is its task, document, stage and repeat; a record without `repeat` is
    for all repeats."""

    def __init__(self, path: Path) -> None:
        """Raises `ArgumentError` if the file or one of its lines cannot be read."""
        self._path = path
        try:
            text = path.read_text(encoding="utf-8")
            self.name = f"{path.name} {file_digest(path)}"
        except (OSError, UnicodeDecodeError) as error:
            raise ArgumentError(
                f"The script {path} cannot be read ({getattr(error, 'strerror', None) or error}). "
                "Give the path of a JSON-lines file: small=PATH, large=PATH."
            ) from None
        self._answers: dict[tuple[str, int, str, int | None], Answer] = {}
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                self._add(number, line)

    def __call__(self, prompt: Prompt) -> Answer:
        key = prompt.key
        call = (key.task, key.doc_id, key.stage)
        answer = self._answers.get((*call, key.repeat)) or self._answers.get((*call, None))
        if answer is None:
            raise MissingAnswer(
                f"{self._path} has no answer for {key}. Add a line with task {key.task!r}, doc_id {key.doc_id} and "
                f"stage {key.stage!r}, or limit the run to recorded documents."
            )
        return answer

    def _add(self, number: int, line: str) -> None:
        where = f"Line {number} of the script {self._path}"
        try:
            record = json.loads(line)
            key = (record.pop("task"), record.pop("doc_id"), record.pop("stage"), record.pop("repeat", None))
            for name in record:
                if name not in Answer.__dataclass_fields__:
                    raise TypeError(f"unknown field {name!r}")
            if key[2] not in get_args(Stage):
                raise ArgumentError(
                    f"{where}: stage {key[2]!r} is unknown: choose one of {', '.join(get_args(Stage))}."
                )
            answer = Answer(record.pop("text"), **record)
            if answer.fault not in (None, *get_args(Fault)):
                raise TypeError(f"fault={answer.fault!r} must be one of {', '.join(get_args(Fault))}")
        except json.JSONDecodeError as error:
            raise ArgumentError(f"{where} is not JSON ({error}). Each line must be one JSON object.") from None
        except KeyError as error:
            raise ArgumentError(f"{where} has no field {error}. A record needs task, doc_id, stage and text.") from None
        except (TypeError, AttributeError) as error:
            raise ArgumentError(
                f"{where} cannot be read ({error}). A record is a JSON object with the fields {', '.join(FIELDS)}."
            ) from None
        if key in self._answers:
            raise ArgumentError(f"{where} answers {key[:3]} a second time. Delete one of the two lines.")
        self._answers[key] = answer
