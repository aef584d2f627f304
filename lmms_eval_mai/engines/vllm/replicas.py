"""Chooses the replica of a call if vLLM runs several replicas of one model (`data_parallel_size`).

vLLM balances calls by load. The later calls of a sample would then miss the prefix cache of the replica that answered
the first one.
"""

import hashlib
from typing import Any

from lmms_eval_mai.contract import CallKey


def replica_count(parallel_config: Any) -> int:
    """Return the number of replicas among which the caller of vLLM's engine can choose. `parallel_config`: vLLM's."""
    local: bool = parallel_config.local_engines_only
    count: int = parallel_config.data_parallel_size_local if local else parallel_config.data_parallel_size
    return count


def replica_of(key: CallKey, replicas: int) -> int | None:
    """Return the number of the replica that gets all calls of this call's sample, also when the run is resumed. Samples
    are distributed evenly. None: there is one replica."""
    if replicas <= 1:
        return None
    sample = f"{key.task} {key.doc_id} {key.repeat}"
    return int.from_bytes(hashlib.blake2b(sample.encode(), digest_size=8).digest()) % replicas
