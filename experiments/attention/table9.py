"""Table 9: sparse transfer by layer, beside full transfer and beside two controls that the paper lacks.

The controls transfer as many tokens as sparse transfer with the same layer, chosen without attention: random tokens of
the thinking, and its last tokens. If a control is as good, attention is not the reason for the result.

    python -m experiments.attention.table9 --model MODEL --task pope_r --thinking RUN --output out/table9
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import binomtest
from tqdm import tqdm

from experiments.attention.documents import Documents, arguments, mean, random_positions, score_of
from experiments.attention.reading import Array, LargeModel
from lmms_eval_mai.method.sparse import Sparse, select

LAYERS = (4, 8, 10, 12, 14, 16, 22, 24)
"""The layers of the paper's table."""
PAPER: dict[tuple[str, int | None], tuple[float | None, float]] = {
    ("simple", None): (None, 87.1),
    ("full", None): (266.1, 89.2),
    ("sparse", 4): (145.9, 89.3),
    ("sparse", 8): (153.6, 89.0),
    ("sparse", 10): (85.9, 88.7),
    ("sparse", 12): (90.5, 89.2),
    ("sparse", 14): (89.0, 88.9),
    ("sparse", 16): (121.1, 89.5),
    ("sparse", 22): (112.1, 89.6),
    ("sparse", 24): (209.5, 89.6),
}
"""The paper's average number of tokens and its F1 in percent: POPE, 8B + 2B-R."""
CONTROLS = ("random", "last")

Key = tuple[str, int | None]
"""A method and its layer."""


def references(
    tokens: Sequence[str], weights: Array, layers: Sequence[int], delta: float, seed: object
) -> dict[Key, tuple[str, int]]:
    """Return the texts that are transferred, with the number of their tokens. `weights`: (layers of the model, heads,
    tokens)."""
    found: dict[Key, tuple[str, int]] = {("full", None): ("".join(tokens), len(tokens))}
    for layer in layers:
        selection = select(tokens, weights[layer - 1].mean(0).tolist(), Sparse(delta, layer))  # Eq. 12
        count = selection.kept_tokens
        drawn = random_positions(len(tokens), count, seed)
        found["sparse", layer] = selection.text, count
        found["random", layer] = "".join(tokens[position] for position in drawn), count
        found["last", layer] = "".join(tokens[len(tokens) - count :]), count
    return found


def answer_all(given: Any, model: LargeModel, documents: Documents) -> pd.DataFrame:
    """Answer all documents by all methods. Returns one row for each document, method and layer."""
    rows = []
    known = documents.thinkings(given.thinking, "small")
    for number in tqdm(sorted(known)[: given.limit], desc="documents"):
        reading = model.read(documents.transfer(number, known[number]), known[number], documents.after_thinking(number))
        texts = references(reading.tokens, reading.weights, given.layers, given.delta, (given.seed, number))
        distinct = list(dict.fromkeys(text for text, _ in texts.values()))
        chats = [documents.simple(number), *(documents.transfer(number, text) for text in distinct)]
        simple, *others = model.answer(chats, given.max_new_tokens, given.batch_size)
        answers = dict(zip(distinct, others, strict=True))
        found = {("simple", None): (*simple, 0)} | {key: (*answers[text], n) for key, (text, n) in texts.items()}
        for (method, layer), (text, prompt_tokens, count) in found.items():
            results = documents.results(number, text)
            rows.append(
                {
                    "doc_id": number,
                    "method": method,
                    "layer": layer,
                    "text": text,
                    "score": score_of(results),
                    "kept_tokens": count,
                    "prompt_tokens": prompt_tokens,
                    "results": results,
                }
            )
    return pd.DataFrame(rows).astype({"layer": "Int64"})


def table(
    answers: pd.DataFrame,
    metrics: Callable[[list[Any]], dict[str, float]],
    paper: Mapping[Key, tuple[float | None, float]],
) -> pd.DataFrame:
    """Return one row for each method and layer, with paired tests on the same documents (McNemar's exact test; the sign
    test for other scores than 0 and 1), corrected for the number of layers (Bonferroni).

    `metrics`: the task's own metrics over the results of some documents."""
    groups = answers.groupby(["method", "layer"], dropna=False, sort=False)
    scores = {_key(*name): group["score"].to_numpy() for name, group in groups}
    layers = sum(method == "sparse" for method, _ in scores)
    rows = []
    for name, group in groups:
        method, layer = _key(*name)
        score, half = mean(group["score"])
        row = {"method": method, "layer": layer, "documents": len(group), "score": score, "score_95": half}
        row |= metrics(list(group["results"]))
        row |= {"kept_tokens": group["kept_tokens"].mean(), "prompt_tokens": group["prompt_tokens"].mean()}
        row["paper_tokens"], row["paper_f1"] = paper.get((method, layer), (None, None))
        others: dict[str, Key] = {} if method in ("simple", "full") else {"full": ("full", None)}
        others |= {other: (other, layer) for other in CONTROLS if method == "sparse"}
        others |= {"simple": ("simple", None)} if method == "full" else {}
        for other, key in others.items():
            better, worse = (int((sign * (scores[method, layer] - scores[key]) > 0).sum()) for sign in (1, -1))
            p = binomtest(better, better + worse).pvalue if better + worse else 1.0
            row |= {f"{other}_better": better, f"{other}_worse": worse, f"{other}_p": min(1.0, p * layers)}
        rows.append(row)
    return pd.DataFrame(rows).astype({"layer": "Int64"})


def _key(method: str, layer: Any) -> Key:
    return method, None if pd.isna(layer) else int(layer)


def draw(found: pd.DataFrame, path: Path) -> None:
    """Draw score and kept tokens by layer."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    sparse = found[found["method"] == "sparse"]
    labels, places = sparse["layer"].astype(str), np.arange(len(sparse))
    for shift, method in enumerate(("sparse", *CONTROLS), -1):
        rows = found[found["method"] == method]
        left.errorbar(places + 0.2 * shift, rows["score"], yerr=rows["score_95"], fmt="o", capsize=2, label=method)
    for method, style in (("full", "--"), ("simple", ":")):
        left.axhline(found.set_index("method")["score"][method], color="0.3", linestyle=style, label=method)
    right.bar(places, sparse["kept_tokens"])
    right.axhline(found.set_index("method")["kept_tokens"]["full"], color="0.3", linestyle="--")
    for axes, title in ((left, "score"), (right, "kept tokens of the thinking")):
        axes.set(title=title, xlabel="layer", xticks=places, xticklabels=labels)
    left.legend(frameon=False, fontsize=8)
    for kind in ("svg", "png"):
        figure.savefig(path.with_suffix(f".{kind}"), dpi=150)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--thinking", required=True, type=Path, help="a run with the small model's thinking")
    parser.add_argument("--layers", type=lambda text: [int(part) for part in text.split(",")], default=list(LAYERS))
    parser.add_argument("--seed", type=int, default=0, help="the seed of the random tokens")
    parser.add_argument("--max_new_tokens", type=int, default=4096)
    parser.add_argument("--batch_size", type=int, default=8, help="the answers of one document that run together")
    given = parser.parse_args()
    model = LargeModel(given.model, given.device, given.dtype)
    if missing := [layer for layer in given.layers if not 1 <= layer <= model.layers]:
        parser.error(f"--layers {missing[0]}: {given.model} has the layers 1 to {model.layers}.")
    documents = Documents(given.task)
    answers = answer_all(given, model, documents)
    found = table(answers, documents.metrics, PAPER if given.task.startswith("pope_") else {})
    given.output.mkdir(parents=True, exist_ok=True)
    answers.drop(columns="results").to_csv(given.output / "answers.csv", index=False)
    found.to_csv(given.output / "table9.csv", index=False)
    draw(found, given.output / "table9")
    print(found.to_markdown(index=False, floatfmt=".3f", missingval=""))


if __name__ == "__main__":
    main()
