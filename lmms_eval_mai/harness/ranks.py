"""Collects the figures of all ranks. lmms-eval itself collects only scores and samples."""

import torch

from lmms_eval_mai.run.metering import RunTotals


def of_all_ranks(totals: RunTotals, world_size: int) -> RunTotals:
    """Return the figures of the whole run. All ranks must call this at the same point of the run."""
    if world_size == 1 or not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return totals
    found: list[RunTotals] = [totals] * world_size
    torch.distributed.all_gather_object(found, totals)
    return RunTotals.of_ranks(found)
