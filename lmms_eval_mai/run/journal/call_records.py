"""The record of a finished call: the fields of a `Call` as JSON can hold them, and back."""

import dataclasses
from typing import Any

from lmms_eval_mai.contract import Call, CallKey, TokenWeights


def fields_of(call: Call) -> dict[str, Any]:
    """Return all fields of a call except its key and the log-probabilities of all tokens."""
    return {name: value for name, value in dataclasses.asdict(call).items() if name not in ("key", "logprobs")}


def call_of(key: CallKey, fields: dict[str, Any]) -> Call:
    """Return the call with these fields, as they were read from JSON."""
    attention = fields.pop("attention", None)
    if attention is not None:
        weights = tuple(tuple(row) for row in attention["weights"])
        attention = TokenWeights(tuple(attention["tokens"]), weights)
    return Call(key=key, **fields, attention=attention)
