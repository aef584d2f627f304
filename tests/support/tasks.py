"""Names, instructions and messages of our 30 tasks, for their tests."""

from typing import Any, NamedTuple

Doc = dict[str, Any]

BUILT_IN = {
    "pope": "pope",
    "mmmu_val": "mmmu_val",
    "mmbench_en_dev": "mmbench_en_dev_static",
    "chartqa": "chartqa",
    "infovqa_val": "infovqa_val",
    "realworldqa": "realworldqa",
}
"""Benchmark -> the built-in task whose scorer calls no API."""
VARIANTS = ("s", "e", "r", "e_s2", "r_s2")
NAMES = [f"{benchmark}_{variant}" for benchmark in BUILT_IN for variant in VARIANTS]

WORD, LETTER = (
    "answer the question using a single word or phrase",
    "answer with the option's letter from the given choices",
)
INSTRUCTIONS = {
    ("s", "word"): f"Without thinking, directly {WORD} in the format: [[answer]]",
    ("s", "letter"): f"Without thinking, directly {LETTER} in the format: [[answer]].",
    ("e", "word"): f"Provide a simple explanation, then {WORD} in the format: [[answer]]",
    ("e", "letter"): f"Provide a simple explanation, then {LETTER} directly in the format: [[answer]]",
    ("r", "word"): f"Please think step by step, provide a detailed explanation, then {WORD} in the format: [[answer]]",
    ("r", "letter"): (
        f"Please think step by step, provide a detailed explanation, then {LETTER} directly in the format: [[answer]]"
    ),
}
IN_THE_DATA = {
    "letter": "Please answer directly with only the letter of the correct option and nothing else.",
    "word": "Please answer directly with a single word or number.",
}
OFFICIAL = {
    "pope": "Answer the question using a single word or phrase.",
    "chartqa": "Answer the question with a single word.",
    "infovqa_val": "Answer the question using a single word or phrase.",
    "mmbench_en_dev": "Answer with the option's letter from the given choices directly.",
    "mmmu_val letter": "Answer with the option's letter from the given choices directly.",
    "mmmu_val word": "Answer the question using a single word or phrase.",
}
"""The instruction at the end of lmms-eval's own prompt. RealWorldQA's is part of its dataset."""
STAGE_2 = {
    kind: f"According to previous thinking: RESPONSE\n {OFFICIAL[f'mmmu_val {kind}']}" for kind in ("word", "letter")
}


class Loaded(NamedTuple):
    """Tasks as lmms-eval loads them, with the data of make_sample_data.py."""

    chat: dict[str, Any]
    built_in: dict[str, Any]


def texts(messages: list[dict[str, Any]]) -> list[str]:
    """Return the text blocks of the only message."""
    (message,) = messages
    assert message["role"] == "user"
    return [block["text"] for block in message["content"] if block["type"] == "text"]
