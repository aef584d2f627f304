"""The figures of a run as plain data, ready for JSON: the same sums as in the final table, for each stage too."""

import dataclasses
from collections.abc import Mapping
from typing import Any, get_args

from lmms_eval_mai.contract import Side, Stage
from lmms_eval_mai.engines.parameters import parameters
from lmms_eval_mai.redaction import without_password
from lmms_eval_mai.run.config import Config
from lmms_eval_mai.run.fingerprint import SPARSE, version
from lmms_eval_mai.run.metering import RunTotals, TaskTotals, Usage
from lmms_eval_mai.run.trace_record import SPECULATION

RESULTS, FIGURES = "_results.json", "_mai_cascade.json"
"""How the names of lmms-eval's results and of the file of figures beside them end."""
FORMAT = 1
"""Increase this number if a field is renamed, removed or counted in another way."""


def figures(totals: RunTotals, config: Config, settings: Mapping[str, str]) -> dict[str, Any]:
    """Return the figures of a run. docs/output.md describes the fields. `settings`: of each engine, by side."""
    total = totals.of_all_tasks()
    return {
        "format": FORMAT,
        "version": version("lmms-eval-mai"),
        "lmms_eval_version": version("lmms-eval"),
        "mode": config.mode,
        **({name: getattr(config, name) for name in SPARSE} if config.transfer == "sparse" else {}),
        **_first_check(config),
        "engines": {
            one.side: {
                "engine": one.engine,
                "model": without_password(one.model),
                "settings": without_password(settings.get(one.side, "")),
                **({"parameters": counted} if (counted := parameters(one)) is not None else {}),
            }
            for one in config.engines()
        },
        "ranks": totals.ranks,
        "wall_s": _seconds(totals.wall_s),
        "earlier_s": _seconds(totals.earlier_s),
        "samples": total.samples,
        "not_answered": total.failed,
        "errors": dict(totals.failures.kinds.most_common()),
        "tasks": {name: _task(task, config) for name, task in sorted(totals.tasks.items())},
    }


def _first_check(config: Config) -> dict[str, Any]:
    """Return the rule of the first check, if it is not the paper's, with its thresholds and what chose them."""
    if config.verify == "agreement":
        return {}
    found = dataclasses.asdict(config.first_check())
    if config.calibration is not None:
        found["calibration"] = dataclasses.asdict(config.calibration)
    return {"first_check": found}


def _task(totals: TaskTotals, config: Config) -> dict[str, Any]:
    return {
        "samples": totals.samples,
        "not_answered": totals.failed,
        "unreadable": totals.unreadable,
        "wall_s": _seconds(totals.wall_s),
        "exits": {exit: totals.exits[exit] for exit in config.exits()},
        **({"selections": dataclasses.asdict(totals.selections)} if config.transfer == "sparse" else {}),
        **{engine.side: _engine(totals, engine.side) for engine in config.engines()},
    }


def _engine(totals: TaskTotals, side: Side) -> dict[str, Any]:
    """Return the sums of one engine's calls, and the same sums for each stage that has calls."""
    stages = {
        stage: _usage(usage) for stage in get_args(Stage) if (usage := totals.usage.get((side, stage))) is not None
    }
    return {**_usage(totals.usage_of(side)), "stages": stages}


def _usage(usage: Usage) -> dict[str, Any]:
    found = {**dataclasses.asdict(usage), "call_seconds": _seconds(usage.call_seconds)}
    unused = {name for name in SPECULATION if not usage.calls or found[name] is None}
    if not usage.shared_calls:
        unused.add("shared_calls")
    return {name: figure for name, figure in found.items() if name not in unused}


def _seconds(seconds: float) -> float:
    return round(seconds, 6)
