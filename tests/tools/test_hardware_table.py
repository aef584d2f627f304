"""docs/hardware.md: the arguments that it advises are those with which the pairs fit."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "docs"))

import hardware_table  # noqa: E402

from lmms_eval_mai.engines.vllm.gpu_plan import pair_plan  # noqa: E402
from lmms_eval_mai.engines.vllm.placement import Launcher  # noqa: E402
from lmms_eval_mai.engines.vllm.planning.gpus import parse_gpus  # noqa: E402
from lmms_eval_mai.errors import ArgumentError  # noqa: E402
from lmms_eval_mai.run.config import parse  # noqa: E402

PAGE = (ROOT / "docs" / "hardware.md").read_text(encoding="utf-8")
BY_NAME = {name: gpus for gpus, name in hardware_table.GPUS.items()}


def rows(pair: str) -> dict[str, list[str]]:
    """Return the rows of a pair's table: `--gpus` -> the other cells."""
    part = re.split(r"^### ", PAGE, flags=re.MULTILINE)
    (table,) = [one for one in part if one.startswith(f"`{pair}`")]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("|")]
    return {BY_NAME[name]: others for name, *others in cells[2:]}


def fits(gpus: str, arguments: dict[str, str | bool]) -> bool:
    config = parse(arguments)
    try:
        return pair_plan(config.engines(), parse_gpus(gpus), Launcher(), config.sleep) is not None
    except ArgumentError:
        return False


@pytest.mark.parametrize("pair", hardware_table.PAIRS)
def test_pairs_start_where_the_table_tells_so_and_with_the_arguments_that_it_advises(pair: str) -> None:
    found = rows(pair)
    assert found.keys() == hardware_table.GPUS.keys()
    for gpus, (starts, *_, advised) in found.items():
        assert fits(gpus, {"pair": pair}) == (starts == "yes"), gpus
        for arguments in re.findall("`([^`]*=[^`]*)`", advised):
            given = dict(argument.split("=") for argument in arguments.split(","))
            given = {name: True if value == "true" else value for name, value in given.items()}
            assert fits(gpus, {"pair": pair, **given}), (gpus, arguments)
