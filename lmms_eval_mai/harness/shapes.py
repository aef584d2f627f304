"""The `shapes` benchmark: pictures of a 3 x 3 grid of coloured shapes and questions with exact answers.

What lmms-eval's own modules are for the six real benchmarks, this one is for the demonstration: how a document becomes
a picture and a question. The 1,000 test documents lie beside the task's YAML files; tools/make_shapes.py drew them.
"""

from collections.abc import Mapping
from typing import Any

LETTERS = "ABCD"


def shapes_doc_to_visual(doc: Mapping[str, Any]) -> list[Any]:
    """The document's one picture, 96 x 96 px."""
    return [doc["image"].convert("RGB")]


def shapes_doc_to_text(doc: Mapping[str, Any], lmms_eval_specific_kwargs: Mapping[str, Any]) -> str:
    """The question, its options where it has some, and the instruction, a line each."""
    options = [f"{letter}. {doc[letter]}" for letter in LETTERS if doc[letter]]
    return "\n".join([doc["question"], *options]) + lmms_eval_specific_kwargs["post_prompt"]
