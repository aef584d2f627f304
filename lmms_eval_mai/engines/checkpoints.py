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
    folder = local_folder(model, revision)
    if folder is None:
        return revision or "unknown"
    if folder != Path(model).expanduser():
        return folder.name  # the cache names a snapshot after its commit
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
    """Return the size of a checkpoint's weights in bytes. None: unknown.

    The index of the weights has the size of all of them, also after a partial download. Without an index the files are
    counted: those on this machine, else those that the hub lists.
    """
    folder = local_folder(model, revision)
    if folder is not None:
        if size := (_index(folder).get("metadata") or {}).get("total_size"):
            return int(size)
        if size := sum(file.stat().st_size for file in folder.glob("*.safetensors") if _is_loaded(file.name)):
            return size
        if folder == Path(model).expanduser():
            return None
    from huggingface_hub import HfApi

    try:
        files = HfApi().model_info(model, revision=revision, files_metadata=True).siblings or []
    except Exception as error:
        logger.debug(f"The hub does not list the size of {model} ({error})")
        return None
    return sum(file.size or 0 for file in files if _is_loaded(file.rfilename)) or None


def check_weights(argument: str, model: str, revision: str | None = None) -> None:
    """Refuse a checkpoint of which weight files are missing, for example after a partial download: an engine would find
    out minutes later. A checkpoint from the hub is checked only offline; otherwise its files can still be downloaded.
    Raises `ArgumentError`."""
    from huggingface_hub import constants

    folder = local_folder(model, revision)
    if folder is None or (folder != Path(model).expanduser() and not constants.is_offline_mode()):
        return
    named = sorted(set((_index(folder).get("weight_map") or {}).values()))
    missing = [name for name in named if not (folder / name).exists()]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ArgumentError(
            f"{argument}={model} is not complete: {', '.join(missing[:3])}{more} of its {len(named)} weight files are "
            f"missing from {folder}. Download the checkpoint again (`hf download`)."
        )


def local_folder(model: str, revision: str | None) -> Path | None:
    """Return the folder of a checkpoint on this machine: its own, or its snapshot in the cache of the hub."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    from huggingface_hub import try_to_load_from_cache

    try:
        found = try_to_load_from_cache(model, "config.json", revision=revision)
    except ValueError:  # not a name of the hub
        return None
    return Path(found).parent if isinstance(found, str) else None


def _index(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_loaded(name: str) -> bool:
    """Return whether an engine loads this file. `consolidated...` are the same weights a second time, in Mistral's
    format. Files in folders belong to other formats too."""
    return name.endswith(".safetensors") and "/" not in name and not name.startswith("consolidated")
