"""The fingerprint of a run: everything that can change an answer. Runs with the same fingerprint may share calls.

The head of a journal contains it. A journal's name is a digest of it and of the format, followed by the rank.
"""

import contextlib
import hashlib
import importlib.metadata
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lmms_eval_mai.contract import SIDES, Identity
from lmms_eval_mai.paper import prompts

if TYPE_CHECKING:
    from lmms_eval_mai.run.config import Config

Fingerprint = dict[str, str]
"""Values by field, for people to read. For example, "small model" has the value "Qwen/Qwen3-VL-2B-Instruct"."""

SPARSE = ("transfer", "sparse_delta", "sparse_layer", "sparse_from", "sparse_order", "sparse_boundary")
"""The arguments of sparse transfer."""


def of_run(config: "Config", engines: Mapping[str, Identity], decoding: Mapping[str, Any]) -> Fingerprint:
    """Return the fingerprint of a run. `engines`: `Engine.identity()` by side. `decoding`: generation arguments by
    task, `--gen_kwargs` included."""
    preset = config.decoding
    if preset == "official":
        values = sorted((config.official_decoding or {}).items())
        preset = "official: " + ", ".join(f"{name}={value}" for name, value in values)
    fields = {
        "lmms-eval-mai": version("lmms-eval-mai"),
        "lmms-eval": version("lmms-eval"),
        "templates": prompts.digest(),
        "tasks": ",".join(sorted(decoding)),
        "decoding": json.dumps(decoding, sort_keys=True, default=str),
        "decoding preset": preset,
        "mode": config.mode,
        "think": config.think,
        "max_new_tokens": str(config.max_new_tokens),
        "on_overflow": config.on_overflow,
        "transfer_answer": config.transfer_answer,
        "anls_threshold": str(config.rules.anls_threshold),
        "chartqa_match": config.rules.chartqa_match,
    }
    if config.verify != "agreement":
        check = config.first_check()
        own = [f"{name}: {value}" for name, value in sorted(check.by_benchmark.items())]
        fields |= {"verify": config.verify, "min_confidence": ", ".join([str(check.min_confidence), *own])}
    if config.transfer == "sparse":  # without it, the fingerprint is that of versions without this argument
        fields |= {name: str(getattr(config, name)) for name in SPARSE}
    for side, identity in engines.items():
        fields |= {f"{side} {name}": value for name, value in identity.items()}
    return fields


def digest(fingerprint: Fingerprint) -> str:
    """Return a hash of 16 hexadecimal digits."""
    return hashlib.blake2b(json.dumps(fingerprint, sort_keys=True).encode(), digest_size=8).hexdigest()


def compared(fingerprint: Mapping[str, str]) -> dict[str, str]:
    """Return what people vary to compare runs: the mode, the models and the kinds of the engines. The version of an
    engine and the digest of a script are left out."""
    found = {"mode": fingerprint.get("mode", "")}
    for side in SIDES:
        found[f"{side} engine"] = fingerprint.get(f"{side} engine", "").partition(" ")[0]
        found[f"{side} model"] = fingerprint.get(f"{side} model", "")
        found[f"{side} script"] = fingerprint.get(f"{side} script", "").rpartition(" ")[0]
    return found


def differences(previous: Mapping[str, str], current: Mapping[str, str]) -> list[str]:
    """Return one text per field that differs, with both values. A field that holds several arguments is compared
    argument by argument."""
    old, new = _flat(previous), _flat(current)
    return [
        f"{field} was {old.get(field, 'not given')} and is {new.get(field, 'not given')}"
        for field in sorted({*old, *new})
        if old.get(field) != new.get(field)
    ]


def _flat(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields with JSON objects taken apart: {"a": '{"b": 1}'} becomes {"a b": 1}."""
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


def version(package: str) -> str:
    """Return the version of an installed package, or "unknown"."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
