"""The `shapes` benchmark of the demo: images of a 3 x 3 grid of coloured shapes, and questions with exact answers. Its
3,000 test documents are in task_configs/shapes/test.parquet; experiments/demo_pair drew them."""

from collections.abc import Mapping
from typing import Any

LETTERS = "ABCD"


def shapes_doc_to_visual(doc: Mapping[str, Any]) -> list[Any]:
    """Return the only image of the document, 96 x 96 px."""
    return [doc["image"].convert("RGB")]


def shapes_doc_to_text(doc: Mapping[str, Any], lmms_eval_specific_kwargs: Mapping[str, Any]) -> str:
    """Return the question, its options if it has any, and the instruction, each on its own line."""
    options = [f"{letter}. {doc[letter]}" for letter in LETTERS if doc[letter]]
    return "\n".join([doc["question"], *options]) + str(lmms_eval_specific_kwargs["post_prompt"])
