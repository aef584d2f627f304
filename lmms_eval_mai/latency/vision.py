"""Preprocessing and vision encoder alone (Tables 1 and 2), with the checkpoint's own processor in transformers.

The vision encoder has random weights, because the weights do not change its time. Of the language model, only one layer
is built.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import PIL.Image
import torch
from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor

from lmms_eval_mai.contract import Image, Message
from lmms_eval_mai.engines.transformers.inputs import InputBuilder, ModelInput
from lmms_eval_mai.latency.plan import Plan
from lmms_eval_mai.latency.repeats import seconds_of
from lmms_eval_mai.profiles.profile import ImagePoint, Seconds

WARM_UP = 3
"""Least number of runs that do not count. They are short here, and the first ones take many times longer."""


class VisionTower:
    """The processor and the vision encoder of one checkpoint."""

    def __init__(self, model: str, device: str, dtype: str, source: Mapping[str, Any]) -> None:
        """Raises transformers' errors."""
        path = os.path.expanduser(model)
        self._device = torch.device(device)
        processors: Any = AutoProcessor
        models: Any = AutoModelForImageTextToText
        self._processor = processors.from_pretrained(path, **source)
        self._builder = InputBuilder(self._processor)
        config = AutoConfig.from_pretrained(path, **source)
        config.get_text_config().num_hidden_layers = 1
        with self._device:
            built = models.from_config(config, dtype=getattr(torch, dtype))
        self._model = built.to(self._device).eval()
        """A model whose vision encoder is complete."""

    def measure(self, plan: Plan) -> tuple[tuple[ImagePoint, ...], tuple[ImagePoint, ...]]:
        """Return the points of Table 1 and of Table 2."""
        preprocessing, vision = [], []
        for side in plan.images:
            images = _images(side)
            tokens = self._input(next(images)).image_tokens or 0
            preprocessing.append(ImagePoint(side, tokens, self._preprocessing(images, plan)))
            vision.append(ImagePoint(side, tokens, self._vision(images, plan)))
        return tuple(preprocessing), tuple(vision)

    def _preprocessing(self, images: Iterator[PIL.Image.Image], plan: Plan) -> Seconds:
        def run(image: PIL.Image.Image) -> float:
            started_at = time.perf_counter()
            self._processor.image_processor(images=[image], return_tensors="pt")
            return time.perf_counter() - started_at

        return _repeat(run, images, plan)

    def _vision(self, images: Iterator[PIL.Image.Image], plan: Plan) -> Seconds:
        def run(image: PIL.Image.Image) -> float:
            others = self._input(image).others
            inputs = {name: self._moved(tensor) for name, tensor in others.items()}
            self._synchronise()
            started_at = time.perf_counter()
            with torch.inference_mode():
                self._model.get_image_features(**inputs)
            self._synchronise()
            return time.perf_counter() - started_at

        return _repeat(run, images, plan)

    def _input(self, image: PIL.Image.Image) -> ModelInput:
        return self._builder.build((Message("user", (Image(image, "profile"), "the")),))

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._device, self._model.dtype if tensor.is_floating_point() else tensor.dtype)

    def _synchronise(self) -> None:
        """Wait for the device, whose work goes on after a call returns."""
        if self._device.type != "cpu":
            torch.accelerator.synchronize(self._device)


def _repeat(run: Callable[[PIL.Image.Image], float], images: Iterator[PIL.Image.Image], plan: Plan) -> Seconds:
    warm_up = max(plan.warm_up, WARM_UP)
    found = [run(next(images)) for _ in range(warm_up + plan.repeats)]
    return seconds_of(found[warm_up:])


def _images(side: int) -> Iterator[PIL.Image.Image]:
    """Yield images of noise, each with some pixels of its own."""
    dice = np.random.default_rng(side)
    pixels = dice.integers(0, 256, (side, side, 3), dtype=np.uint8)
    while True:
        pixels[:8, :8] = dice.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        yield PIL.Image.fromarray(pixels.copy())
