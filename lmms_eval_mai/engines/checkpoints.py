"""Checkpoints on this machine or on the Hugging Face hub: checks, identity and size. Also the identity of arguments."""

import hashlib
import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from loguru import logger

from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.redaction import redacted

CHUNK = 65_536
"""Bytes. For a file with more than 64 chunks (weights), only its size and 16 chunks are hashed."""


def check_checkpoint(argument: str, model: str) -> None:
    """Refuse a path that does not exist: it would be used as a name on the Hugging Face hub and fail much later. Raises
    `ArgumentError`."""
    path = os.path.expanduser(model)
    looks_like_path = path.startswith((".", "/")) or model.count("/") > 1
    if looks_like_path and not os.path.exists(os.path.join(path, "config.json")):
        raise ArgumentError(
            f"{argument}={model} is not a checkpoint: there is no {os.path.join(path, 'config.json')}. "
            "Give the folder of a Hugging Face checkpoint, or a name on the hub."
        )


def text_only_error(argument: str, model: str, architectures: Sequence[str] | None) -> ArgumentError:
    """Return the error for a model without vision."""
    return ArgumentError(
        f"{argument}={model} cannot read images: its architecture ({', '.join(architectures or ['unknown'])}) is "
        "text-only. Give a vision-language model."
    )


def checkpoint_identity(model: str, revision: str | None) -> str:
    """Return the hash of a folder's files. For a name on the Hugging Face hub, return the commit in the local cache,
    else `revision`; "unknown" before the first download."""
    folder = Path(model).expanduser()
    if not folder.is_dir():
        return _commit(model, revision)
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    lines = [f"{path.name} {file_digest(path)}" for path in files if path.suffix not in (".md", ".log")]
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=8).hexdigest()


def file_digest(path: Path) -> str:
    """Return the hash of a small file's bytes. For a large file, hash its size and 16 chunks spread over it."""
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


def argument_identity(given: Mapping[str, Any], performance_arguments: Collection[str]) -> str:
    """Return the engine arguments that can change an answer, as text without secrets.

    `performance_arguments` change the speed, the device or the memory of an engine, but no answer. They are left out: a
    run may be resumed with less memory or on another GPU.
    """
    kept = {name: value for name, value in given.items() if name not in performance_arguments}
    return json.dumps(redacted(kept), sort_keys=True, default=str)


def weight_bytes(model: str, revision: str | None = None) -> int | None:
    """Return the size of a checkpoint's weights in bytes, from the disk or from the hub's listing. None: unknown."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        return sum(file.stat().st_size for file in folder.glob("*.safetensors")) or None
    from huggingface_hub import HfApi, snapshot_download

    try:
        cached = Path(snapshot_download(model, local_files_only=True, allow_patterns=["*.safetensors"]))
        if size := sum(file.stat().st_size for file in cached.glob("*.safetensors")):
            return size
    except Exception as error:
        logger.debug(f"{model} is not in the local cache ({error})")
    try:
        files = HfApi().model_info(model, files_metadata=True).siblings or []
    except Exception as error:
        logger.debug(f"The hub does not list the size of {model} ({error})")
        return None
    return sum(f.size or 0 for f in files if f.rfilename.endswith(".safetensors")) or None


def _commit(model: str, revision: str | None) -> str:
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(model, "config.json", revision=revision)
    return Path(found).parent.name if isinstance(found, str) else revision or "unknown"
