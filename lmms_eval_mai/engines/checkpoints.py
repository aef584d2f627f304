"""Checkpoints as the engines of this machine name them."""

import os

from lmms_eval_mai.errors import ArgumentError


def check_checkpoint(argument: str, model: str) -> None:
    """A path that is not there would be taken for a name on the Hugging Face hub, and fail much later. Raises
    `ArgumentError`."""
    path = os.path.expanduser(model)
    looks_like_path = path.startswith((".", "/")) or model.count("/") > 1
    if looks_like_path and not os.path.exists(os.path.join(path, "config.json")):
        raise ArgumentError(
            f"{argument}={model} is no checkpoint: there is no {os.path.join(path, 'config.json')}. "
            "Give the folder of a Hugging Face checkpoint, or a name on the hub."
        )
