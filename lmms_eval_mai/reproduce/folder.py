"""The output folder of the command: one folder for each run, and the arguments that all of them have in common.

A run writes into a folder of its own below `unfinished`. When all its files are there, the folder is moved to its place
in one step. So a folder in its place is a finished run, wherever the command was killed.
"""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.reproduce.common import Common
from lmms_eval_mai.reproduce.plan import Run
from lmms_eval_mai.run.journal.files import sync_folder

ARGUMENTS = "reproduce.json"
CALLS = "calls.jsonl"
"""The file of the shared calls."""


@dataclass(frozen=True)
class OutputFolder:
    """The folder of `--output_path`."""

    path: Path

    @property
    def journal(self) -> Path:
        """Return the folder of the journals of unfinished runs."""
        return self.path / "journal"

    @property
    def calls(self) -> Path:
        """Return the file of the shared calls."""
        return self.path / CALLS

    def place(self, run: Run) -> Path:
        """Return the folder of a finished run: the `--output_path` of the equivalent lmms-eval command."""
        return self.path / run.name

    def unfinished(self, run: Run) -> Path:
        """Return the folder into which a run writes."""
        return self.path / "unfinished" / run.name

    def is_finished(self, run: Run) -> bool:
        return self.place(run).is_dir()

    def check(self, common: Common) -> None:
        """Refuse a folder whose runs have other arguments. Raises `ArgumentError`."""
        if self.path.exists() and not self.path.is_dir():
            raise ArgumentError(f"--output_path {self.path} is not a folder.")
        file = self.path / ARGUMENTS
        if not file.is_file():
            if self.path.is_dir() and any(self.path.iterdir()):
                raise ArgumentError(
                    f"--output_path {self.path} has files of another command. Give a folder of its own to "
                    "`lmms-eval-mai reproduce`."
                )
            return
        if differ := common.differences(self._earlier()):
            raise ArgumentError(
                f"The runs in --output_path {self.path} have other arguments: {'; '.join(differ)}. Give another "
                "--output_path, or the earlier arguments."
            )

    def create(self, common: Common) -> None:
        """Create the folder and write the arguments. The pairs of earlier commands stay. Raises `ArgumentError` if it
        cannot be written."""
        file = self.path / ARGUMENTS
        models = dict(self._earlier().models) if file.is_file() else {}
        record = {"arguments": dict(common.arguments), "models": models | dict(common.models)}
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            part = file.with_suffix(".part")
            part.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
            os.replace(part, file)
        except OSError as error:
            raise ArgumentError(f"--output_path {self.path} cannot be written ({error.strerror}).") from None

    def _earlier(self) -> Common:
        """Return the arguments of the earlier commands. Raises `ArgumentError`."""
        file = self.path / ARGUMENTS
        try:
            record = json.loads(file.read_text(encoding="utf-8"))
            return Common(dict(record["arguments"]), dict(record["models"]))
        except (OSError, ValueError, TypeError, KeyError):
            raise ArgumentError(f"{file} cannot be read. Give another --output_path.") from None

    def begin(self, run: Run) -> Path:
        """Return the empty folder into which a run writes."""
        folder = self.unfinished(run)
        shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
        folder.mkdir(parents=True)
        return folder

    def finish(self, run: Run) -> None:
        """Move the folder of a run to its place."""
        place = self.place(run)
        place.parent.mkdir(parents=True, exist_ok=True)
        os.rename(self.unfinished(run), place)
        sync_folder(place.parent)

    def clean_up(self) -> None:
        """Remove what only unfinished runs need. The shared calls stay, for runs that are added later."""
        for folder in (self.journal, self.path / "unfinished"):
            shutil.rmtree(folder, ignore_errors=True)
