"""The lmms-eval command that a user pastes after `lmms-eval-mai doctor`: its parts, and checks of them."""

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmms_eval_mai.cli.findings import Finding, error_text
from lmms_eval_mai.engines.arguments import did_you_mean
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.plugin import MODEL_ID
from lmms_eval_mai.run.config import Config, parse, refuse_lmms_evals_own
from lmms_eval_mai.run.decoding import check_conflict, sampling
from lmms_eval_mai.run.decoding_arguments import IGNORED

PROGRAMS = ("lmms-eval", "lmms_eval")
PARTS = ("model", "model_args", "tasks", "gen_kwargs", "include_path")


@dataclass(frozen=True)
class Command:
    """The parts that are checked. None: not given."""

    model: str | None = None
    model_args: str | None = None
    tasks: str | None = None
    gen_kwargs: str | None = None
    include_path: str | None = None
    arguments: tuple[str, ...] = ()
    """All arguments of lmms-eval."""

    def task_names(self) -> list[str]:
        return [task for task in (self.tasks or "").split(",") if task]


def read(given: Sequence[str]) -> Command:
    """Read the arguments after `doctor`. The name of lmms-eval and all before it, such as `torchrun`, are left out.

    lmms-eval's own parser takes seconds to import, so the parts are found without it.
    """
    programs = [number for number, text in enumerate(given) if Path(text).name in PROGRAMS]
    arguments = list(given[programs[0] + 1 :] if programs else given)
    if programs and arguments[:1] == ["eval"]:
        arguments.pop(0)
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    for part in PARTS:
        parser.add_argument(f"--{part}")
    parts, _ = parser.parse_known_args(arguments)
    return Command(**vars(parts), arguments=tuple(arguments))


def is_ours(model: str | None) -> bool:
    """Return whether the model arguments are those of `mai_cascade`: it is named, its name is misspelled, or no model
    is named."""
    return model is None or model == MODEL_ID or MODEL_ID in did_you_mean(model, [MODEL_ID])


def check_arguments(model_args: str) -> tuple[Config | None, Finding]:
    """Parse the model arguments as lmms-eval and the model do. Returns None if they are wrong."""
    try:
        values = values_of("--model_args", model_args)
        refuse_lmms_evals_own(values)
        config = parse(values)
    except Exception as error:
        return None, Finding("arguments", "PROBLEM", error_text(error))
    twice = [name for name, count in Counter(re.findall(r"(?:^|,)\s*(\w+)=", model_args)).items() if count > 1]
    if twice:
        text = f"{', '.join(twice)} is given more than once: lmms-eval uses the last value. Leave the others out."
        return config, Finding("arguments", "PROBLEM", text)
    text = f"mode={config.mode}, think={config.think}, decoding={config.decoding}"
    return config, Finding("arguments", "ok", text)


def check_decoding(gen_kwargs: str, config: Config | None) -> Finding:
    """Check `--gen_kwargs` as a run does."""
    try:
        given = values_of("--gen_kwargs", gen_kwargs)
        config = config or parse({})
        sampling(given, config, own_task=False)
        check_conflict(given, config)
    except Exception as error:
        return Finding("gen_kwargs", "PROBLEM", error_text(error))
    ignored = [name for name in given if name in IGNORED]
    if not ignored:
        return Finding("gen_kwargs", "ok", ", ".join(f"{name}={value}" for name, value in given.items()))
    return Finding("gen_kwargs", "warning", f"{', '.join(ignored)} is ignored by {MODEL_ID}.")


def check_options(command: Command) -> Iterator[Finding]:
    """Check the names and types of all options with lmms-eval's own parser."""
    if not command.arguments:
        return
    try:
        parser = _parser_of_lmms_eval()
        values, unknown = parser.parse_known_args(list(command.arguments))
    except argparse.ArgumentError as error:
        yield Finding("options", "PROBLEM", f"lmms-eval refuses an option: {error_text(error).rstrip('.')}.")
        return
    except Exception as error:
        text = f"{' '.join(command.arguments)}: lmms-eval's parser cannot be used ({error_text(error).rstrip('.')})."
        yield Finding("options", "skipped", text)
        return
    options = [text.split("=")[0] for text in unknown if text.startswith("-")]
    for option in options:
        hint = did_you_mean(option, [*parser._option_string_actions, "--gpus"])
        yield Finding("options", "PROBLEM", f"{option} is not an option of lmms-eval.{hint}")
    if unknown and not options:
        yield Finding("options", "PROBLEM", f"{' '.join(unknown)} belongs to no option of lmms-eval.")
    if (values.log_samples or values.predict_only) and not values.output_path:
        yield Finding("options", "PROBLEM", "--log_samples needs --output_path: lmms-eval refuses it without.")
    if values.config:
        yield Finding("options", "skipped", f"The configurations in --config {values.config} are not checked.")
    for part in PARTS:
        if getattr(command, part) is None and getattr(values, part) != parser.get_default(part):
            yield Finding("options", "skipped", f"A short form of --{part} is not checked. Write --{part}.")


def check_for_plan(command: Command) -> Iterator[Finding]:
    """Yield what makes a plan of the GPU memory useless: another model, and misspelled options. The options are checked
    only if there are others than those that are read here, because lmms-eval's parser takes seconds to import."""
    if command.model not in (None, MODEL_ID):
        hint = did_you_mean(str(command.model), [MODEL_ID])
        yield Finding("model", "PROBLEM", f"--gpus plans only {MODEL_ID}, and --model is {command.model}.{hint}")
    parts = [f"--{part}" for part in PARTS]
    options = [text.split("=")[0] for text in command.arguments if text.startswith("-")]
    others = [option for option in options if option not in parts]
    for option in others:
        if whole := [part for part in parts if part.startswith(option)]:
            yield Finding("options", "PROBLEM", f"{option} is not read with --gpus. Write {' or '.join(whole)}.")
    if others:
        yield from (finding for finding in check_options(command) if finding.mark == "PROBLEM")


def _parser_of_lmms_eval() -> argparse.ArgumentParser:
    from lmms_eval.__main__ import parse_eval_args

    given, sys.argv = sys.argv, ["lmms-eval"]  # the function parses the arguments of the process too
    try:
        parser: argparse.ArgumentParser = parse_eval_args()[0]
    finally:
        sys.argv = given
    parser.exit_on_error = False
    return parser


def values_of(option: str, text: str) -> dict[str, Any]:
    """Parse an option's `NAME=VALUE,...` as lmms-eval does. Raises `ArgumentError`."""
    from lmms_eval.utils import simple_parse_args_string

    try:
        values: dict[str, Any] = simple_parse_args_string(text)
    except ValueError:
        raise ArgumentError(f"{option} must be NAME=VALUE,NAME=VALUE: a part of it has no '='.") from None
    return values
