"""Checkpoints on this machine: whether they exist, their identity and their size, and how they load quietly."""

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.user_input import path_of

CHUNK = 65_536
"""Bytes. For a file with more than 64 chunks (weights), only its size and 16 chunks are hashed."""


def check_checkpoint(argument: str, model: str) -> None:
    """Refuse a path that does not exist: it would be used as a name on the Hugging Face hub and fail much later. Raises
    `ArgumentError`."""
    looks_like_path = model.startswith((".", "/", "~")) or (model.count("/") > 1 and "://" not in model)
    if looks_like_path and not path_of(model).exists():
        raise ArgumentError(
            f"{argument}={model} does not exist. Give the folder of a checkpoint, or a name on the Hugging Face hub."
        )


def text_only_error(argument: str, model: str, architectures: Sequence[str] | None) -> ArgumentError:
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
    if folder != path_of(model):
        return folder.name  # the cache names a snapshot after its commit
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    lines = [f"{path.name} {file_digest(path)}" for path in files if path.suffix not in (".md", ".log")]
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=8).hexdigest()


def file_digest(path: Path) -> str:
    """Return the hash of a small file's bytes. For a large file, hash its size and 16 chunks spread over it."""
    size = path.stat().st_size
    digest = hashlib.blake2b(str(size).encode(), digest_size=8)
    with path.open("rb") as file:
        if size <= 64 * CHUNK:
            digest.update(file.read())
        else:
            for number in range(16):
                file.seek(number * (size - CHUNK) // 15)
                digest.update(file.read(CHUNK))
    return digest.hexdigest()


def weight_bytes(model: str, revision: str | None = None) -> int | None:
    """Return the size of a checkpoint's weights in bytes. None: unknown.

    The index of the weights has the size of all of them, also after a partial download. Without an index the files are
    counted: those on this machine, else those that the Hugging Face hub lists. `consolidated...` are the same weights a
    second time, in Mistral's format.
    """
    folder = local_folder(model, revision)
    sizes: dict[str, int] = {}
    if folder is not None:
        if (index := folder / "model.safetensors.index.json").exists():
            with contextlib.suppress(ValueError, LookupError):  # damaged: the engine tells it
                return int(json.loads(index.read_bytes())["metadata"]["total_size"])
        sizes = {file.name: file.stat().st_size for file in folder.glob("*.safetensors")}
    if not sizes and folder != path_of(model):
        sizes = _sizes_on_hub(model, revision)
    plain = {name: size for name, size in sizes.items() if not name.startswith("consolidated")}
    return sum((plain or sizes).values()) or None


def _sizes_on_hub(model: str, revision: str | None) -> dict[str, int]:
    from huggingface_hub import HfApi

    try:
        listed = HfApi().model_info(model, revision=revision, files_metadata=True).siblings or []
    except Exception:  # offline, not on the hub, no permission: the kind of error is that of the library behind it
        return {}
    return {file.rfilename: file.size or 0 for file in listed if re.fullmatch(r"[^/]+\.safetensors", file.rfilename)}


def local_folder(model: str, revision: str | None) -> Path | None:
    """Return the folder of a checkpoint on this machine: its own, or its snapshot in the cache of the hub."""
    folder = path_of(model)
    if folder.is_dir():
        return folder
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        file = try_to_load_from_cache(model, "config.json", revision=revision)
    except HFValidationError:  # not a name of the hub
        return None
    return Path(file).parent if isinstance(file, str) else None


def is_debug() -> bool:
    """Return whether the user asked lmms-eval for its most detailed output (`--verbosity DEBUG`). Then the output of
    every library stays as it is."""
    return os.environ.get("VERBOSITY", "").upper() == "DEBUG"


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Hide the progress bars of transformers ("Loading weights") and its warnings inside the `with` block."""
    from transformers.utils import logging

    if is_debug():
        yield
        return
    had_bars, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if had_bars:
            logging.enable_progress_bar()
