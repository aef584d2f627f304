"""Preprocessing and vision encoder alone (Tables 1 and 2), with the checkpoint's own processor in transformers.

The vision encoder has random weights, because the weights do not change its time. Of the language model, only one layer
is built.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor

from lmms_eval_mai.contract import Image, Message
from lmms_eval_mai.engines.transformers.inputs import InputBuilder
from lmms_eval_mai.times.profile import Row, row, summary
from lmms_eval_mai.times.requests import Noise

WARM_UP = 3
"""Number of runs that do not count. They are short here, and the first ones take many times longer."""


def measure(
    model: str, device: str, dtype: str, source: Mapping[str, Any], sides: tuple[int, ...], repeats: int
) -> Iterator[Row]:
    """Yield the rows of Tables 1 and 2. `source`: arguments for transformers. `sides`: width and height of the images.
    Raises transformers' errors."""
    path, noise = os.path.expanduser(model), Noise()
    processors: Any = AutoProcessor
    models: Any = AutoModelForImageTextToText
    processor = processors.from_pretrained(path, **source)
    builder = InputBuilder(processor)
    config = AutoConfig.from_pretrained(path, **source)
    config.get_text_config().num_hidden_layers = 1
    with torch.device(device):
        encoder = models.from_config(config, dtype=getattr(torch, dtype))  # its vision encoder is complete
    encoder = encoder.to(device).eval()

    def synchronise() -> None:
        """Wait for the device, whose work goes on after a call returns."""
        if device != "cpu":
            torch.accelerator.synchronize(torch.device(device))

    def inputs(side: int) -> Any:
        return builder.build((Message("user", (Image(noise.image(side), "profile"), "the")),))

    def preprocessing_s(side: int) -> float:
        image = noise.image(side)
        began = time.perf_counter()
        processor.image_processor(images=[image], return_tensors="pt")
        return time.perf_counter() - began

    def vision_s(side: int) -> float:
        tensors = inputs(side).others
        moved = {
            name: tensor.to(device, encoder.dtype if tensor.is_floating_point() else tensor.dtype)
            for name, tensor in tensors.items()
        }
        synchronise()
        began = time.perf_counter()
        with torch.inference_mode():
            encoder.get_image_features(**moved)
        synchronise()
        return time.perf_counter() - began

    kinds: dict[str, Callable[[int], float]] = {"preprocessing": preprocessing_s, "vision": vision_s}
    for kind, seconds_of in kinds.items():
        for side in sides:
            found = [seconds_of(side) for _ in range(WARM_UP + repeats)][WARM_UP:]
            yield row(kind, summary(found), image=side, image_tokens=inputs(side).image_tokens or 0)
