"""How the calls of a request are decoded."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from lmms_eval_mai.contract import Sampling, Stage
from lmms_eval_mai.run.config import Config
from lmms_eval_mai.run.decoding import OWN_TASK, sampling
from lmms_eval_mai.serve.errors import bad_request
from lmms_eval_mai.serve.schema import ChatRequest

FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "stop",
)
"""Fields of a request that are decoding arguments of the same name."""


def limit_of(request: ChatRequest) -> int | None:
    """Return the token limit that a request gives."""
    return request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens


def decoding_of(request: ChatRequest, config: Config, gen_kwargs: Mapping[str, Any]) -> dict[Stage, Sampling]:
    """Return how each stage is decoded. `gen_kwargs`: the server's decoding arguments, which a request may replace.

    The token limit of a request applies to the short answers and to a chat that is sent to one model as it is. The
    thinking, and the answers with thinking, have the limit of the server, because a client that wants a short answer
    does not expect that its limit cuts the thinking off. Raises `RequestError`.
    """
    values = {name: value for name in FIELDS if (value := getattr(request, name)) is not None}
    if isinstance(values.get("stop"), str):
        values["stop"] = [values["stop"]]
    _check_official(values, config)
    stages = sampling({**gen_kwargs, **values}, config, own_task=True)
    if (limit := limit_of(request)) is not None:
        for stage in ("short", "task"):
            own = stages[stage]
            stages[stage] = dataclasses.replace(own, max_tokens=min(limit, config.max_new_tokens or limit))
    return stages


def _check_official(values: Mapping[str, Any], config: Config) -> None:
    """Refuse a value that the server's `decoding=official` would replace."""
    official = (config.official_decoding or {}) if config.decoding == "official" else {}
    for name, value in official.items():
        if name in values and values[name] not in (value, OWN_TASK.get(name)):
            raise bad_request(
                f"This server decodes with {name}={value} (decoding=official). Leave {name} out.", param=name
            )
