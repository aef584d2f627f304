"""The decoding of each call, from the decoding arguments of a task and of `--gen_kwargs`.

Values reach the engines as lmms-eval's own vllm model passes them on.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from lmms_eval_mai.contract import Sampling, Stage
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.paper.prompts import MAX_TOKENS
from lmms_eval_mai.run.config import Config
from lmms_eval_mai.run.decoding_arguments import NUMBERS, check_names, number, stop_texts

OWN_TASK: dict[str, Any] = {"temperature": 0, "top_p": 1, "max_new_tokens": MAX_TOKENS, "num_beams": 1}
"""The values in the task files of this package."""


def sampling(gen_kwargs: Mapping[str, Any], config: Config, own_task: bool, repeat: int = 0) -> dict[Stage, Sampling]:
    """Return how each stage is decoded. Raises `ArgumentError` for an unknown name or a value that cannot work.

    `own_task`: whether it is a task of this package. Its limit applies to every call. The limit of another lmms-eval
    task applies to its short answers, and `MAX_TOKENS` to its thinking and to the answers with thinking. With a seed,
    each repeat adds its number to it, so that repeats differ. None and an empty text count as not given. 0 counts as
    not given for `top_p`, `repetition_penalty` and `max_new_tokens`.
    """
    check_names(gen_kwargs)
    if own_task and gen_kwargs.get("until"):
        raise ArgumentError(
            f"until={gen_kwargs['until']} is ignored in other lmms-eval tasks and not supported in this one. Give "
            "stop=TEXT in --gen_kwargs if an answer must end at a text."
        )
    if config.decoding == "official":
        if own_task:
            check_conflict({name: v for name, v in gen_kwargs.items() if v != OWN_TASK.get(name)}, config)
        gen_kwargs = {**gen_kwargs, **(config.official_decoding or {})}
    given = {name: number(name, gen_kwargs.get(name)) for name in NUMBERS}
    limit = int(given["max_new_tokens"] or MAX_TOKENS)
    base = Sampling(
        max_tokens=1,
        temperature=float(given["temperature"] or 0),
        top_p=float(given["top_p"] or 1),
        top_k=max(0, int(given["top_k"] or 0)),
        min_p=float(given["min_p"] or 0),
        repetition_penalty=float(given["repetition_penalty"] or 1),
        presence_penalty=float(given["presence_penalty"] or 0),
        frequency_penalty=float(given["frequency_penalty"] or 0),
        seed=None if given["seed"] is None else int(given["seed"]) + repeat,
        stop=stop_texts(gen_kwargs.get("stop")),
    )

    def limited(most: int) -> Sampling:
        return dataclasses.replace(base, max_tokens=min(most, config.max_new_tokens or most))

    short, long = limited(limit), limited(limit if own_task or config.decoding == "official" else MAX_TOKENS)
    return {"short": short, "think": long, "stage2": long, "transfer": long, "task": short}


def check_conflict(gen_kwargs: Mapping[str, Any], config: Config) -> None:
    """Refuse a value of `--gen_kwargs` that `decoding=official` would replace. Raises `ArgumentError`."""
    official = (config.official_decoding or {}) if config.decoding == "official" else {}
    for name, value in official.items():
        given = gen_kwargs.get(name)
        if given not in (None, "", value):
            raise ArgumentError(
                f"decoding=official sets {name}={value}, and --gen_kwargs sets {name}={given}. Leave one of them out."
            )
