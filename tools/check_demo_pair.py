"""Check the models of tools/train_demo_pair.py on new documents: accuracy of each method, exits, rescue and harm.

    python tools/check_demo_pair.py DIR                  # 1,000 documents of the development set
    python tools/check_demo_pair.py DIR --only small     # while the large model is not trained

The development set has its own seed. It is not the test set, so the difficulty of the benchmark and the training may be
chosen by these figures. Decoding is greedy, in fp32, from the saved states of the training.
"""

import argparse
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from demo_figures import DIFFERENCES, gain, harm, wilson
from demo_pair.checkpoint import SIZES
from demo_pair.decoding import respond
from demo_pair.questions import ask
from demo_pair.shapes import Cells, Question, draw, full_text, random_cells
from demo_pair.thinking import solve
from PIL import Image
from train_demo_pair import RECIPES, Training

from lmms_eval_mai.harness.shapes import LETTERS
from lmms_eval_mai.paper import prompts
from lmms_eval_mai.paper.agreement import AgreementRules, extract_answer, verify, without_answer
from lmms_eval_mai.paper.benchmarks import BENCHMARKS

SEED = "shapes development"


@dataclass(frozen=True)
class Document:
    """One document of the development set."""

    cells: Cells
    question: Question
    image: Image.Image

    @property
    def kind(self) -> prompts.Kind:
        """Return the form of the answer."""
        return "letter" if self.question.options else "word"

    @property
    def category(self) -> str:
        """Return the category of the question in the table."""
        name = f"path {self.question.steps}" if self.question.steps else self.question.category
        return f"choice {self.question.category}" if self.question.options else name

    def is_right(self, text: str) -> bool:
        """Return whether the answer in a text is the right one."""
        return extract_answer(text) == solve(self.question, self.cells).answer


def draw_documents(number: int, seed: str = SEED) -> list[Document]:
    """Draw documents as tools/make_shapes.py does."""
    rng = random.Random(seed)
    documents = []
    for _ in range(number):
        cells = random_cells(rng)
        question = ask(rng, cells)
        documents.append(Document(cells, question, draw(cells, rng)))
    return documents


def answers(training: Training, documents: Sequence[Document], instructions: Sequence[str]) -> list[str]:
    """Return a model's responses to the documents with these instructions."""
    texts = [full_text(one.question) + end for one, end in zip(documents, instructions, strict=True)]
    return respond(training.network, training.batches, [one.image for one in documents], texts)


def exits(documents: Sequence[Document], texts: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the exit of each document in the cascade."""
    found = []
    for index, one in enumerate(documents):
        options = dict(zip(LETTERS, one.question.options or [""] * len(LETTERS), strict=True))
        doc = {"question": one.question.text, **options}
        large = texts["large S"][index]
        agrees = [
            verify(BENCHMARKS["shapes"], doc, texts[small][index], large, AgreementRules()).agree
            for small in ("small S", "small R")
        ]
        found.append("agree_short" if agrees[0] else "agree_think" if agrees[1] else "transfer")
    return found


def report(documents: Sequence[Document], texts: Mapping[str, Sequence[str]], left: Sequence[str]) -> None:
    """Print the accuracy of each method by category and, if `left` has the exits, the figures of the cascade."""
    right = {
        method: [one.is_right(text) for one, text in zip(documents, several, strict=True)]
        for method, several in texts.items()
    }
    categories = ["all", *sorted({one.category for one in documents})]
    print(f"{'':14s} {'number':>6s} " + " ".join(f"{method:>8s}" for method in right))
    for category in categories:
        chosen = [i for i, one in enumerate(documents) if category in ("all", one.category)]
        shares = (sum(values[i] for i in chosen) / len(chosen) for values in right.values())
        print(f"{category:14s} {len(chosen):6d} " + " ".join(f"{100 * share:8.1f}" for share in shares))
    for better, worse in DIFFERENCES:
        if {better, worse} <= right.keys():
            difference, low, high = gain(right[better], right[worse])
            print(f"{better} - {worse}: {difference:+.1f} ({low:+.1f} to {high:+.1f})")
    for exit, number in Counter(left).items():
        good = sum(ok for ok, where in zip(right["MAI"], left, strict=True) if where == exit)
        low, high = wilson(good, number)
        print(f"{exit}: {number / len(left):.1%}, right {good / number:.1%} ({low:.1%} to {high:.1%})")
    if left:
        print(harm([where == "transfer" for where in left], right["MAI"], right["large S"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--documents", type=int, default=1000)
    parser.add_argument("--only", choices=list(SIZES))
    arguments = parser.parse_args()
    documents = draw_documents(arguments.documents)
    torch.set_grad_enabled(False)
    names = [arguments.only] if arguments.only else list(SIZES)
    models = {name: Training(arguments.folder, name, RECIPES[name]) for name in names}
    texts: dict[str, list[str]] = {}
    for name, model in models.items():
        model.load_state()
        for form in ("S", "R"):
            instructions = [prompts.instruction(form, one.kind) for one in documents]
            texts[f"{name} {form}"] = answers(model, documents, instructions)
    left: list[str] = []
    if not arguments.only:
        pairs = zip(documents, texts["small R"], strict=True)
        given = [prompts.transfer("shapes", without_answer(text), one.kind) for one, text in pairs]
        texts["Full RT"] = answers(models["large"], documents, given)
        left = exits(documents, texts)
        transferred = zip(left, texts["Full RT"], texts["large S"], strict=True)
        texts["MAI"] = [full if exit == "transfer" else short for exit, full, short in transferred]
    report(documents, texts, left)


if __name__ == "__main__":
    main()
