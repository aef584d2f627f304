"""The file of a profile, `profile-<model>-<device>.json`: its fields as JSON."""

import dataclasses
import json
import math
import re
import tempfile
from pathlib import Path
from typing import Any

from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.profiles.profile import BatchPoint, DecodingPoint, ImagePoint, Profile, Seconds, TtftPoint

FORMAT = 1
"""The number of the file's format."""


def file_name(model: str, device: str) -> str:
    """Return the name of a profile's file."""

    def plain(text: str) -> str:
        return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-")

    return f"profile-{plain(model)}-{plain(device)}.json"


def make_folder(folder: Path) -> None:
    """Make a folder for profiles before they are measured, if it does not exist. Raises `ArgumentError` if no file can
    be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ArgumentError(
            f"No profile can be written to {folder} ({error.strerror}). Give another --output_path."
        ) from None


def write(profile: Profile, folder: Path) -> Path:
    """Write the file of a profile into a folder, which is made if it does not exist. Raises `ArgumentError`."""
    path = folder / file_name(profile.name, profile.device)
    record = {"format": FORMAT, **dataclasses.asdict(dataclasses.replace(profile, source=""))}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record, ensure_ascii=False, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise ArgumentError(f"The profile {path} cannot be written ({error.strerror}).") from None
    return path


def read(path: Path) -> Profile:
    """Read a profile. Raises `ArgumentError` if the file is not one."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ArgumentError(f"The profile {path} cannot be read ({error.strerror}).") from None
    except ValueError:
        raise ArgumentError(f"The profile {path} cannot be read, because it is not JSON.") from None
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise ArgumentError(
            f"{path} is not a profile of this version. Make one with lmms-eval-mai profile --model MODEL."
        )
    try:
        found = Profile(
            **{name: _text(record[name]) for name in ("name", "model", "device", "engine", "dtype")},
            versions=dict(record["versions"]),
            settings=dict(record["settings"]),
            source=str(path),
            preprocessing=_points(record, "preprocessing", ImagePoint),
            vision=_points(record, "vision", ImagePoint),
            ttft=_points(record, "ttft", TtftPoint),
            decoding=_points(record, "decoding", DecodingPoint),
            batches=_points(record, "batches", BatchPoint),
        )
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ArgumentError(f"The profile {path} is broken ({type(error).__name__}: {error}).") from None
    if not found.ttft or not found.decoding:
        raise ArgumentError(f"The profile {path} has no times to the first token, or no times of decoding.")
    return found


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _points(record: dict[str, Any], name: str, kind: type[Any]) -> tuple[Any, ...]:
    return tuple(kind(**{field: _value(field, value) for field, value in one.items()}) for one in record[name])


def _value(field: str, value: Any) -> Any:
    """Return a field of a point: `Seconds`, or a whole number. The times are divided by the sizes of batches and by the
    output tokens, so these are not 0."""
    if isinstance(value, dict):
        found = Seconds(**value)
        if not 0 < found.typical < math.inf:
            raise ValueError(value)
        return found
    if not isinstance(value, int) or value < (field in ("batch_size", "output_tokens")):
        raise ValueError(f"{field}: {value}")
    return value
