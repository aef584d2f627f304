"""What can change an answer: the fingerprint that heads a journal. Two runs with the same one may share calls."""

import contextlib
import hashlib
import importlib.metadata
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmms_eval_mai.errors import redacted
from lmms_eval_mai.paper import prompts

if TYPE_CHECKING:
    from lmms_eval_mai.run.config import Config

Fingerprint = dict[str, str]
"""Field -> value, both for people: "small model" -> "Qwen/Qwen3-VL-2B-Instruct"."""

Identity = dict[str, str]
"""What of one engine can change an answer: its kind and version, model, checkpoint, arguments."""

CHUNK = 65_536
"""Bytes. Files of more than 64 chunks (weights) are told apart by their size and 16 chunks; others by all of it."""


def of_run(config: "Config", engines: Mapping[str, Identity], decoding: Mapping[str, Any]) -> Fingerprint:
    """The fingerprint of a run. `engines`: side -> what `Engine.identity` says. `decoding`: task -> its generation
    arguments, `--gen_kwargs` included."""
    fields = {
        "lmms-eval-mai": _version("lmms-eval-mai"),
        "lmms-eval": _version("lmms-eval"),
        "templates": file_digest(Path(prompts.__file__)),
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


def arguments(given: Mapping[str, Any], indifferent: Collection[str]) -> str:
    """Engine arguments that can change an answer, as text without secrets. `indifferent` are those that say how fast
    or where, so that a run may be resumed with less memory or on another card."""
    kept = {name: value for name, value in given.items() if name not in indifferent}
    return json.dumps(redacted(kept), sort_keys=True, default=str)


def checkpoint(model: str, revision: str | None) -> str:
    """A folder: the hash of its files. A name on the Hugging Face hub: the commit that is in the local cache, or that
    is asked for; "unknown" before the first download."""
    folder = Path(model).expanduser()
    if not folder.is_dir():
        return _commit(model, revision)
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    parts = [f"{path.name} {file_digest(path)}" for path in files if path.suffix not in (".md", ".log")]
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()


def file_digest(path: Path) -> str:
    """Of a small file the hash of its bytes; of a large one that of its size and of chunks spread over it."""
    size = path.stat().st_size
    found = hashlib.blake2b(str(size).encode(), digest_size=8)
    with path.open("rb") as file:
        if size <= 64 * CHUNK:
            found.update(file.read())
        else:
            for number in range(16):
                file.seek(number * (size - CHUNK) // 15)
                found.update(file.read(CHUNK))
    return found.hexdigest()


def _commit(model: str, revision: str | None) -> str:
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(model, "config.json", revision=revision)
    return Path(found).parent.name if isinstance(found, str) else revision or "unknown"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
