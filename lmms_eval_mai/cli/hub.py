"""The Hugging Face hub: whether it answers, and which models and data sets are in its cache.

Nothing is downloaded here. One request has to end within `LIMIT_S`. If the hub does not answer, this process uses only
the cache, because the libraries would retry each request for up to a minute.
"""

import glob
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmms_eval_mai.contract import EngineConfig
from lmms_eval_mai.engines.checkpoints import check_checkpoint, local_folder
from lmms_eval_mai.errors import ArgumentError

LIMIT_S = 5


@dataclass(frozen=True)
class Hub:
    """The state of the hub when `doctor` started."""

    address: str
    absence: str | None
    """Why the hub is not used, as the first half of a sentence. None: it is used."""


def connect() -> Hub:
    """Ask the hub once whether it answers. If it does not, let this process use only the cache.

    Call this before the libraries that use the hub are imported, because some read HF_HUB_OFFLINE only then.
    """
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # no messages about retries
    from huggingface_hub import constants

    address = constants.ENDPOINT
    if constants.is_offline_mode():
        return Hub(address, "HF_HUB_OFFLINE is set")
    status = head(address)
    if status is not None and status < 500:
        return Hub(address, None)
    os.environ["HF_HUB_OFFLINE"] = "1"
    constants.HF_HUB_OFFLINE = True
    return Hub(address, f"{address.removeprefix('https://')} cannot be reached")


def head(url: str) -> int | None:
    """Return the HTTP status of a HEAD request. None: no answer within `LIMIT_S`."""
    found: list[int] = []
    # A look-up of a name in DNS has no time limit of its own, so the request runs in a thread that may be left behind.
    thread = threading.Thread(target=_head, args=(url, found), daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    return found[0] if found else None


def _head(url: str, found: list[int]) -> None:
    try:
        from huggingface_hub import get_session
        from huggingface_hub.utils import build_hf_headers

        found.append(get_session().head(url, headers=build_hf_headers(), timeout=LIMIT_S).status_code)
    except Exception:
        return


def check_model(config: EngineConfig, hub: Hub) -> None:
    """Refuse a model that is neither on this machine nor can be downloaded. Raises `ArgumentError`."""
    if config.engine not in ("vllm", "transformers") or "://" in config.model or hub.absence is None:
        return
    check_checkpoint(config.side, config.model)
    if os.environ.get("VLLM_USE_MODELSCOPE") or local_folder(config.model, config.arguments.get("revision")):
        return
    raise ArgumentError(
        f"{hub.absence}, and {config.model} is not in the cache. Download it with `hf download {config.model}`, or "
        "give the folder of a checkpoint."
    )


def in_cache(path: str, name: str | None, arguments: dict[str, Any]) -> bool:
    """Return whether the `datasets` library has a data set of the hub in its cache. `name`: its configuration.

    Without network the library uses only this cache, and not the files in the cache of the hub.
    """
    from datasets.naming import camelcase_to_snakecase

    owner, _, short = path.rpartition("/")
    folder = "___".join(part for part in (owner, camelcase_to_snakecase(short)) if part)
    root = glob.escape(str(Path(arguments.get("cache_dir") or _cache_folder()).expanduser() / folder))
    names = [glob.escape(name), glob.escape(name) + "-*"] if name else ["*"]
    return any(glob.glob(f"{root}/{one}/*/*/dataset_info.json") for one in names)


def _cache_folder() -> str:
    """Return the folder in which lmms-eval lets `datasets` keep its cache."""
    try:
        from lmms_eval.api.task import _resolve_hf_datasets_cache_dir

        return str(_resolve_hf_datasets_cache_dir())
    except ImportError:
        from datasets import config

        return str(config.HF_DATASETS_CACHE)
