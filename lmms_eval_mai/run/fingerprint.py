"""What can change an answer: the fingerprint that heads a journal. Two runs with the same one may share calls."""

import contextlib
import hashlib
import importlib.metadata
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lmms_eval_mai.engines.base import Identity
from lmms_eval_mai.paper import prompts

if TYPE_CHECKING:
    from lmms_eval_mai.run.config import Config

Fingerprint = dict[str, str]
"""Field -> value, both for people: "small model" -> "Qwen/Qwen3-VL-2B-Instruct"."""


def of_run(config: "Config", engines: Mapping[str, Identity], decoding: Mapping[str, Any]) -> Fingerprint:
    """The fingerprint of a run. `engines`: side -> what `Engine.identity` says. `decoding`: task -> its generation
    arguments, `--gen_kwargs` included."""
    fields = {
        "lmms-eval-mai": _version("lmms-eval-mai"),
        "lmms-eval": _version("lmms-eval"),
        "templates": prompts.digest(),
        "tasks": ",".join(sorted(decoding)),
        "decoding": json.dumps(decoding, sort_keys=True, default=str),
        "mode": config.mode,
        "think": config.think,
        "max_new_tokens": str(config.max_new_tokens),
        "on_overflow": config.on_overflow,
        "anls_threshold": str(config.rules.anls_threshold),
        "chartqa_match": config.rules.chartqa_match,
    }
    for side, identity in engines.items():
        fields |= {f"{side} {name}": value for name, value in identity.items()}
    return fields


def digest(fingerprint: Fingerprint) -> str:
    """16 hexadecimal digits."""
    return hashlib.blake2b(json.dumps(fingerprint, sort_keys=True).encode(), digest_size=8).hexdigest()


def differences(there: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    """What differs, with both values; of fields that hold arguments, those that differ."""
    there, here = _flat(there), _flat(here)
    fields = sorted({*there, *here})
    return [f"{field} was {there.get(field, 'not given')} and is {here.get(field, 'not given')}" for field in fields
            if there.get(field) != here.get(field)]  # fmt: skip


def _flat(fields: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, str) and value.startswith("{"):
            with contextlib.suppress(ValueError):
                value = json.loads(value)
        if isinstance(value, Mapping):
            flat |= {f"{name} {field}": one for field, one in _flat(value).items()}
        else:
            flat[name] = value
    return flat


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
