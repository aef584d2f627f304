"""Train the demo pair from scratch: DIR/small and DIR/large, checkpoints with the genuine Qwen3-VL architecture.

    python tools/train_demo_pair.py DIR                 # both, one after the other, on a CPU or a GPU
    python tools/train_demo_pair.py DIR --only small    # one of them

Writes the learning curve to DIR/<name>.jsonl, one line per evaluation. docs/demo-pair.md describes the training.
"""

import argparse
import itertools
import json
import random
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import torch
from demo_pair.batches import Batch, Batches
from demo_pair.checkpoint import SIZES, make_model, make_processor, make_tokenizer
from demo_pair.losses import CELL_WEIGHT, OPTION_WEIGHT, PLACE_WEIGHT, Auxiliary, losses
from demo_pair.network import Network
from make_tiny_pair import save
from torch import nn


@dataclass(frozen=True)
class Recipe:
    """The training of one model."""

    steps: int
    seed: int
    images: int = 16
    """New images per step."""
    samples: int = 5
    """Samples per image, with all forms of prompts."""
    learning_rate: float = 3e-3
    warmup: int = 100
    decay: float = 0.4
    """Share of the steps at the end during which the learning rate falls to zero."""

    def rate(self, step: int) -> float:
        """Return the learning rate of a step: warm-up, then constant, then a linear decrease to zero."""
        falling = (self.steps - step) / (self.steps * self.decay)
        return self.learning_rate * min((step + 1) / self.warmup, 1.0, falling)


RECIPES = {"small": Recipe(steps=3000, seed=1), "large": Recipe(steps=2300, seed=2)}
WEIGHTS = (1.0, CELL_WEIGHT, PLACE_WEIGHT, OPTION_WEIGHT)
HELD_OUT = 10_000
"""Added to the training seed, to draw the images of the learning curve, which are not in the training data."""


def train(folder: Path, name: str, recipe: Recipe, log_every: int, *, compiled: bool = True) -> None:
    """Train one model and save it as `folder`/`name`. Without `compiled` it starts at once, but a step takes twice as
    long."""
    folder.mkdir(parents=True, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = make_tokenizer(seed=0)
    batches = Batches(tokenizer, name)
    torch.manual_seed(recipe.seed)
    model = make_model(SIZES[name], tokenizer)
    network = Network(model, batches.positions(model), (1, SIZES[name].places_layer)).to(device)
    auxiliary = Auxiliary(model, tokenizer, SIZES[name].hidden).to(device)
    forward = torch.compile(network, dynamic=True) if compiled else network
    rng, held_out = random.Random(recipe.seed), random.Random(HELD_OUT + recipe.seed)
    tests = [batches.draw(held_out, images=24, samples=8).to(device) for _ in range(3)]
    all_optimizers = optimizers(model, auxiliary)
    began = time.perf_counter()
    with (folder / f"{name}.jsonl").open("w") as log:
        for step in range(recipe.steps):
            batch = batches.draw(rng, recipe.images, recipe.samples).to(device)
            with torch.autocast(device, torch.bfloat16):
                parts = losses(forward, auxiliary, batch)
            sum(weight * part for weight, part in zip(WEIGHTS, parts, strict=True)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer in all_optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = recipe.rate(step)
                optimizer.step()
                optimizer.zero_grad()
            if (step + 1) % log_every == 0 or step + 1 == recipe.steps:
                with torch.autocast(device, torch.bfloat16):
                    scores = evaluate(network, auxiliary, tests)
                names = ("loss", "cell_loss", "place_loss", "option_loss")
                figures = {kind: round(float(part.detach()), 4) for kind, part in zip(names, parts, strict=True)}
                line = {"step": step + 1, "seconds": round(time.perf_counter() - began, 1), **figures, **scores}
                print(json.dumps(line), file=log, flush=True)
                print(
                    f"{name}: step {step + 1} of {recipe.steps}, {figures}, S {scores['S']}, R {scores['R']}",
                    flush=True,
                )
    save(folder / name, model.cpu(), make_processor(tokenizer))


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
        w for name, w in model.named_parameters() if w.dim() == 2 and "embed" not in name and "head" not in name
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
    parser.add_argument("--only", choices=list(SIZES))
    parser.add_argument("--log-every", type=int, default=250)
    arguments = parser.parse_args()
    for name in [arguments.only] if arguments.only else list(SIZES):
        train(arguments.folder, name, RECIPES[name], arguments.log_every)
