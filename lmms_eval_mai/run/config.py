"""The arguments of `--model mai_cascade`: read, checked and frozen before anything is started.

lmms-eval parses `--model_args` into bool, int, float and str (lmms_eval/utils.py): nested values arrive as
strings and -1 as -1.0, so every value is coerced here. What is not an argument of ours belongs to an engine:
`small_<arg>`, `large_<arg>`, or `<arg>` for both.
"""

import ast
import dataclasses
import difflib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lmms_eval_mai.engines.base import Side
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.paper.agreement import Rules
from lmms_eval_mai.paper.cascade import MODES
from lmms_eval_mai.paper.prompts import Variant
from lmms_eval_mai.run import presets

ENGINES = ("vllm", "transformers", "openai", "scripted")
SIDES: tuple[Side, Side] = ("small", "large")


@dataclass(frozen=True)
class SideConfig:
    """One of the two models."""

    side: Side
    engine: str
    """Its kind: one of `ENGINES`."""
    model: str
    """Hugging Face name or path of a checkpoint (vllm, transformers); address of an endpoint, or several (openai); path
    of a script (scripted)."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """What goes to the engine itself."""


@dataclass(frozen=True)
class Config:
    """Everything `--model_args` can say."""

    small: SideConfig
    large: SideConfig
    mode: str = "cascade"
    """cascade (the paper's MAI), transfer (Full RT), small or large (one model alone, the task's own prompt)."""
    think: Variant = "R"
    """The small model's thinking prompt in tasks that do not name one: R or E."""
    max_open_samples: int = 256
    """Samples on their way at once; their images are in memory."""
    max_new_tokens: int | None = None
    """Caps the output of every call."""
    sleep: bool = False
    """Whether two vLLM engines take turns on cards that hold one model at a time."""
    on_overflow: str = "truncate"
    """Thinking that does not fit the context: truncate (keep its end, say how much was dropped) or error."""
    rules: Rules = Rules()  # noqa: RUF009 - frozen
    journal: str | None = None
    """Folder of the journals; None is `journal_files.default_folder()`, "off" is none."""
    max_errors: float = 0
    """Samples that may fail: a number, or below 1 a share of those that were asked for."""
    call_timeout: float | None = None
    """Seconds for one call."""
    engine_restarts: int = 2
    """How often each engine may come back when it died."""
    model_name: str | None = None
    """A label; lmms-eval names the output folder after it."""

    def sides(self) -> tuple[SideConfig, ...]:
        """The models this mode uses."""
        return {"small": (self.small,), "large": (self.large,)}.get(self.mode, (self.small, self.large))


def parse(arguments: Mapping[str, Any]) -> Config:
    """Model arguments as lmms-eval passes them -> `Config`. Raises `ArgumentError`."""
    left = dict(arguments)
    pair = left.pop("pair", None)
    preset = presets.load(pair) if pair is not None else {}
    left = {**preset, **left}
    mode = _choice("mode", left.pop("mode", "cascade"), MODES)
    think = _choice("think", left.pop("think", "R"), ("R", "E"))
    open_samples = positive_int("max_open_samples", left.pop("max_open_samples", Config.max_open_samples))
    cap = left.pop("max_new_tokens", None)
    rules = Rules(
        anls_threshold=_share("anls_threshold", left.pop("anls_threshold", Rules.anls_threshold)),
        chartqa_match=_choice("chartqa_match", left.pop("chartqa_match", "exact"), ("exact", "relaxed")),
    )
    on_overflow = _choice("on_overflow", left.pop("on_overflow", Config.on_overflow), ("truncate", "error"))
    journal = _journal(left.pop("journal", None))
    max_errors = _number("max_errors", left.pop("max_errors", Config.max_errors), least=0)
    if max_errors > 1 and max_errors != int(max_errors):
        raise ArgumentError(f"max_errors={max_errors:g} cannot be: give a number of samples, or a share below 1.")
    call_timeout = left.pop("call_timeout", None)
    if call_timeout is not None:
        call_timeout = _number("call_timeout", call_timeout, least=1e-3)
    restarts = int(_number("engine_restarts", left.pop("engine_restarts", Config.engine_restarts), least=0))
    model_name = left.pop("model_name", None)
    sleep = _choice("sleep", left.pop("sleep", False), (True, False))
    engine = left.pop("engine", None)
    if engine is not None:
        _choice("engine", engine, ENGINES)
    if pair is not None and engine == "scripted":
        raise ArgumentError(
            f"pair={pair} names checkpoints, and engine=scripted has none: give small=... and large=..."
        )
    models = {side: left.pop(side, None) for side in SIDES}
    kinds = {side: _kind(side, left.pop(f"{side}_engine", None), engine, models[side]) for side in SIDES}
    # What a preset says beside the models is for vLLM.
    given = {name: value for name, value in left.items() if name in arguments}
    small, large = (
        _side_config(side, kinds[side], models[side], left if kinds[side] == "vllm" else given) for side in SIDES
    )
    config = Config(
        small=small,
        large=large,
        mode=mode,
        think=think,
        max_open_samples=open_samples,
        max_new_tokens=None if cap is None else positive_int("max_new_tokens", cap),
        sleep=sleep,
        on_overflow=on_overflow,
        rules=rules,
        journal=journal,
        max_errors=max_errors,
        call_timeout=call_timeout,
        engine_restarts=restarts,
        model_name=None if model_name is None else str(model_name),
    )
    if sleep and [side_config.engine for side_config in config.sides()] != ["vllm", "vllm"]:
        raise ArgumentError(f"sleep=true lets two vLLM engines take turns, and mode={mode} has others: leave it out.")
    for side_config in config.sides():
        if not side_config.model:
            side = side_config.side
            what = "PATH of a JSON-lines script" if side_config.engine == "scripted" else "http://HOST:PORT/v1"
            raise ArgumentError(f"engine={side_config.engine} has no default model: give {side}={what}.")
    return config


def _kind(side: Side, own: Any, both: Any, model: Any) -> str:
    """The kind of an engine: the side's own `<side>_engine`, or what an address asks for, or `engine`, or `vllm`."""
    remote = str(model).lstrip("[ \"'").lower().startswith(("http://", "https://"))
    name, both = (f"{side}_engine", both) if own is not None else ("engine", both or "vllm")
    kind = _choice(name, own or ("openai" if remote else both), ENGINES)
    if remote != (kind == "openai") and model is not None:
        shown = re.sub(r"//[^/@]*@", "//<redacted>@", str(model))
        raise ArgumentError(
            f"{side}={shown} is {'an' if remote else 'no'} address of an endpoint, and {side}_engine={kind}: "
            f"{'leave the engine out' if remote else f'give {side}=http://HOST:PORT/v1'}."
        )
    return kind


def _side_config(side: Side, engine: str, model: Any, left: Mapping[str, Any]) -> SideConfig:
    other = "large_" if side == "small" else "small_"
    arguments = {
        name.removeprefix(f"{side}_"): decode(value, name)
        # A side's own argument comes last and so wins over the one for both.
        for name, value in sorted(left.items(), key=lambda item: item[0].startswith(f"{side}_"))
        if not name.startswith(other)
    }
    if model is None:
        model = presets.load(presets.DEFAULT)[side] if engine in ("vllm", "transformers") else ""
    return SideConfig(side, engine, str(model), arguments)


def decode(value: Any, name: str = "A value") -> Any:
    """An engine argument as lmms-eval hands it over -> its value: JSON or Python text of a dict or list, none."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    if text.lower() in ("none", "null"):
        return None
    if text[:1] in ("{", "["):
        for read in (json.loads, ast.literal_eval):
            try:
                return read(text)
            except (ValueError, SyntaxError):
                continue
        # Without the value, which may hold a key.
        raise ArgumentError(f'{name} is neither JSON nor a Python literal. Quote the names in it, e.g. {{"image": 8}}.')
    return value


def check_names(side: Side, given: Iterable[str], known: Collection[str], engine: str) -> None:
    """Refuse arguments that neither we nor the engine know, with the nearest that exist."""
    ours = (
        [f.name for f in dataclasses.fields(Config)] + [f.name for f in dataclasses.fields(Rules)] + ["engine", "pair"]
    )
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, [*ours, *known], n=3)
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            if name in ("model", "pretrained", "model_version"):
                hint = " There are two models here: small=... and large=..."
            raise ArgumentError(
                f"Unknown model argument {name!r}: neither mai_cascade nor the {engine} engine ({side}) has it."
                f"{hint} The README lists the arguments."
            )


def _choice(name: str, value: Any, allowed: Iterable[Any]) -> Any:
    allowed = list(allowed)
    if value not in allowed:
        raise ArgumentError(f"{name}={value} is unknown: choose one of {', '.join(map(str, allowed))}.")
    return value


def positive_int(name: str, value: Any) -> int:
    """A whole number of at least 1, which lmms-eval may have read as a float. Raises `ArgumentError`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not float(value).is_integer() or value < 1:
        shown = f"{value:g}" if isinstance(value, float) else value
        raise ArgumentError(f"{name}={shown} cannot be: give a whole number of at least 1.")
    return int(value)


def _number(name: str, value: Any, least: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < float("inf"):
        shown = f"{value:g}" if isinstance(value, float) else value
        raise ArgumentError(f"{name}={shown} cannot be: give a number of at least {least:g}.")
    return value


def _journal(value: Any) -> str | None:
    """lmms-eval reads true and false as bool."""
    if value is None or value is True or value == "on":
        return None
    return "off" if value is False else str(decode(value) or "off")


def _share(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise ArgumentError(f"{name}={value} cannot be: give a number above 0 and at most 1.")
    return float(value)
