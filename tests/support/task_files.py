"""Lets libyaml read the 2,000 task files that lmms-eval reads at each start, in a sixth of the time."""

from typing import Any

import yaml


class _Loader(yaml.CFullLoader):
    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self.name = getattr(stream, "name", "")  # lmms-eval finds the functions of a task beside its file


def read_with_libyaml() -> None:
    """Replace the loader in this process. Tests of programs without `support` keep lmms-eval's own."""
    yaml.FullLoader = yaml.loader.FullLoader = _Loader  # type: ignore[misc, assignment]
