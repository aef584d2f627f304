"""Train the demo pair from scratch: DIR/small and DIR/large, checkpoints with the genuine Qwen3-VL architecture.

    python -m experiments.demo_pair.train DIR                 # on a CPU or a GPU

The large model is trained after the small one, because it learns from the small model's thinking. Writes the learning
curve to DIR/<name>.jsonl, one line per evaluation. README.md describes the training.
"""

import argparse
import copy
import itertools
import json
import random
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torch import nn

from experiments.demo_pair.batches import Batch, Batches
from experiments.demo_pair.checkpoint import SIZES, make_model, make_processor, make_tokenizer
from experiments.demo_pair.losses import CELL_WEIGHT, OPTION_WEIGHT, PLACE_WEIGHT, Auxiliary, cell_loss, losses
from experiments.demo_pair.network import Network
from experiments.demo_pair.qwen3vl import save
from experiments.demo_pair.samples import Thought, draw_thought, reasoning_prompt


@dataclass(frozen=True)
class Recipe:
    """The training of one model."""

    steps: int
    seed: int
    vision_steps: int = 0
    """The first steps. They train only the vision tower, with the loss of the cells, on twice as many images."""
    images: int = 25
    """New images per step."""
    samples: int = 3
    """Samples per image, with all forms of prompts."""
    learning_rate: float = 3e-3
    warmup: int = 100
    decay: float = 0.4
    """Share of the steps at the end during which the learning rate falls to zero."""

    def rate(self, step: int) -> float:
        """Return the learning rate of a step: warm-up, then constant, then a linear decrease to zero. There is a second
        warm-up after the vision steps."""
        since = step - self.vision_steps if step >= self.vision_steps else step
        falling = (self.steps - step) / (self.steps * self.decay)
        return self.learning_rate * min((since + 1) / self.warmup, 1.0, falling)


RECIPES = {"small": Recipe(steps=4400, seed=1), "large": Recipe(steps=4600, seed=2, vision_steps=600)}
WEIGHTS = (1.0, CELL_WEIGHT, PLACE_WEIGHT, OPTION_WEIGHT)
HELD_OUT = 10_000
"""Added to the training seed, to draw the images of the learning curve, which are not in the training data."""
THOUGHTS, QUESTIONS = 6000, 3
"""Images with the small model's thinking for the training of the large model, and questions about each of them."""
AT_ONCE, LONGEST = 50, 160
"""Images whose questions are answered together, and the most tokens of a response."""


class Training:
    """One model with its optimizers and its random data."""

    def __init__(self, folder: Path, name: str, recipe: Recipe, thoughts: Sequence[Thought] = ()) -> None:
        self.folder, self.name, self.recipe = folder, name, recipe
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        tokenizer = make_tokenizer(seed=0)
        self.batches = Batches(tokenizer, name, thoughts)
        self.processor = make_processor(tokenizer, SIZES[name])
        torch.manual_seed(recipe.seed)
        self.model = make_model(SIZES[name], tokenizer)
        kept = 1, SIZES[name].places_layer
        self.network = Network(self.model, self.batches.positions(self.model), kept).to(self.device)
        self.auxiliary = Auxiliary(self.model, tokenizer, SIZES[name].hidden).to(self.device)
        self.optimizers = optimizers(self.model, self.auxiliary)
        self.rng = random.Random(recipe.seed)
        held_out = random.Random(HELD_OUT + recipe.seed)
        self.tests = [self.batches.draw(held_out, images=24, samples=8).to(self.device) for _ in range(3)]
        self.done = 0
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.jsonl").unlink(missing_ok=True)

    def run(self, log_every: int) -> None:
        """Train to the last step, and save the checkpoint."""
        began = time.perf_counter()
        while self.done < self.recipe.steps:
            parts = self.step()
            if self.done % log_every == 0 or self.done == self.recipe.steps:
                self._log(parts, time.perf_counter() - began)
        save(self.folder / self.name, copy.deepcopy(self.model).cpu(), self.processor)  # this model stays in fp32

    def step(self) -> list[float]:
        """Make one step. Returns the losses."""
        images, samples = self.recipe.images, self.recipe.samples
        with torch.autocast(self.device, torch.bfloat16):
            if self.done < self.recipe.vision_steps:
                patches, cells = self.batches.draw_cells(self.rng, 2 * images)
                vision_tokens, _ = self.network.encode(patches.to(self.device))
                none = vision_tokens.new_zeros(())
                parts = none, cell_loss(self.auxiliary, vision_tokens, cells.to(self.device)), none, none
            else:
                parts = losses(
                    self.network, self.auxiliary, self.batches.draw(self.rng, images, samples).to(self.device)
                )
        sum(weight * part for weight, part in zip(WEIGHTS, parts, strict=True)).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.recipe.rate(self.done)
            optimizer.step()
            optimizer.zero_grad()
        self.done += 1
        return [float(part.detach()) for part in parts]

    def _log(self, parts: list[float], seconds: float) -> None:
        with torch.autocast(self.device, torch.bfloat16):
            scores = evaluate(self.network, self.auxiliary, self.tests)
        names = ("loss", "cell_loss", "place_loss", "option_loss")
        figures = {kind: round(part, 4) for kind, part in zip(names, parts, strict=True)}
        with (self.folder / f"{self.name}.jsonl").open("a") as file:
            file.write(json.dumps({"step": self.done, "seconds": round(seconds, 1), **figures, **scores}) + "\n")
        print(f"{self.name}: step {self.done} of {self.recipe.steps}, {figures}, {scores}", flush=True)


def think(small: Training, number: int) -> list[Thought]:
    """Return the trained small model's thinking about new images."""
    thoughts = []
    for begin in range(0, number, AT_ONCE):
        seeds = [f"thinking {index}" for index in range(begin, min(begin + AT_ONCE, number))]
        drawn = [(image, questions) for _, image, questions in (draw_thought(seed, QUESTIONS) for seed in seeds)]
        pairs = [(image, reasoning_prompt(question)) for image, questions in drawn for question in questions]
        texts = respond(small, *zip(*pairs, strict=True))
        thoughts += [Thought(seed, tuple(texts[i * QUESTIONS :][:QUESTIONS])) for i, seed in enumerate(seeds)]
        print(f"small: thinking about image {begin + len(seeds)} of {number}", flush=True)
    return thoughts


def respond(trained: Training, images: Sequence[Image.Image], texts: Sequence[str]) -> list[str]:
    """Return the greedy response to each text about its image."""
    chats = [[{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": text}]}] for text in texts]
    prompts = [trained.processor.apply_chat_template(chat, add_generation_prompt=True) for chat in chats]
    given = {"images": list(images), "padding": True, "padding_side": "left", "return_tensors": "pt"}
    inputs = trained.processor(text=prompts, **given).to(trained.device)
    outputs = trained.model.generate(**inputs, max_new_tokens=LONGEST)
    responses = outputs[:, inputs["input_ids"].shape[1] :]
    return list(trained.processor.batch_decode(responses, skip_special_tokens=True))


def train(folder: Path, log_every: int) -> None:
    """Train both models."""
    small = Training(folder, "small", RECIPES["small"])
    small.run(log_every)
    Training(folder, "large", RECIPES["large"], think(small, THOUGHTS)).run(log_every)


@torch.no_grad()
def evaluate(network: Network, auxiliary: Auxiliary, batches: list[Batch]) -> dict[str, float]:
    """Return the share of exact responses by prompt and category.

    A response is exact if each of its tokens is the most likely one, which means that greedy decoding gives this text.
    `cells`: the share of cells that are recognised from the vision tokens.
    """
    right: dict[str, list[bool]] = defaultdict(list)
    for batch in batches:
        vision_tokens, deepstack_tokens = network.encode(batch.patches)
        read = torch.stack([logits.argmax(-1) for logits in auxiliary.cell_logits(vision_tokens)], -1)
        right["cells"] += (read == batch.cells).flatten().tolist()
        for group, samples in zip(batch.groups, batch.samples, strict=True):
            deepstack_of_group = [level[group.image_index] for level in deepstack_tokens]
            states, *_ = network(
                group.tokens, vision_tokens[group.image_index], deepstack_of_group, group.letter_positions
            )
            guesses = network.model.lm_head(states).argmax(-1)
            exact = ((guesses == group.labels) | (group.labels == -100)).all(-1)
            for sample, is_exact in zip(samples, exact.tolist(), strict=True):
                right[sample.form].append(is_exact)
                kind = "choice" if sample.question.options else sample.question.category
                right[f"{sample.form} {kind}"].append(is_exact)
    return {name: round(sum(values) / len(values), 4) for name, values in sorted(right.items())}


def optimizers(model: nn.Module, auxiliary: nn.Module) -> list[torch.optim.Optimizer]:
    """Return Muon for the matrices of the layers and AdamW for all other weights. `train` sets the learning rate."""
    matrices = [
        w
        for name, w in model.named_parameters()
        if w.dim() == 2 and not any(part in name for part in ("embed", "head", "merger"))
    ]
    known = {id(weight) for weight in matrices}
    others = [w for w in itertools.chain(model.parameters(), auxiliary.parameters()) if id(w) not in known]
    return [
        torch.optim.Muon(matrices, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=0.0),
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--log_every", type=int, default=250)
    arguments = parser.parse_args()
    train(arguments.folder, arguments.log_every)
