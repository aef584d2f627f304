"""A task of a user: a local parquet file with pictures, a YAML file with a prompt and functions of its own, no `_r`."""

from pathlib import Path
from typing import Any

from pyarrow import Table, parquet
from support.pair import Answers, Records, records

from lmms_eval_mai.plugin import task_dir

NAME = "own_shapes"
FUNCTIONS = """
def visual(doc):
    return [doc["image"].convert("RGB")]


def text(doc, lmms_eval_specific_kwargs):
    return doc["question"] + lmms_eval_specific_kwargs["post_prompt"]


def score(doc, results):
    return {"own_right": results[0].rpartition("[[")[2].strip("]").lower() == doc["answer"]}
"""
TASK = """
task: {name}
dataset_path: parquet
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: generate_until
doc_to_visual: !function functions.visual
doc_to_text: !function functions.text
doc_to_target: answer
process_results: !function functions.score
generation_kwargs: {{max_new_tokens: 16}}
metric_list: [{{metric: own_right, aggregation: mean, higher_is_better: true}}]
lmms_eval_specific_kwargs: {{default: {{pre_prompt: "", post_prompt: "{prompt}"}}}}
"""
PROMPT = r"\nWithout thinking, directly answer the question using a single word or phrase in the format: [[answer]]"


def write_task(folder: Path, rows: int) -> Path:
    """Write the task with the first questions of `shapes` that are no choices. Returns the folder."""
    folder.mkdir(parents=True)
    file = folder / f"{folder.parent.name}-{rows}.parquet"  # datasets keys its cache on names
    parquet.write_table(Table.from_pylist(documents(rows), schema=_shapes().schema), file)
    (folder / f"{NAME}.yaml").write_text(TASK.format(name=NAME, file=file, prompt=PROMPT))
    (folder / "functions.py").write_text(FUNCTIONS)
    return folder


def documents(rows: int) -> list[dict[str, Any]]:
    return [one for one in _shapes().slice(0, 2 * rows).to_pylist() if one["category"] != "choice"][:rows]


def _shapes() -> Any:
    return parquet.read_table(task_dir() / "shapes" / "test.parquet")


def answers(rows: int, seconds: float) -> Records:
    """Return the records of both models. One document after another leaves MAI at `agree_short`, `agree_think` and
    `transfer`. The large model is right with its thinking, else about two documents of three."""
    made = []
    for number, document in enumerate(documents(rows)):
        right, wrong, other = document["answer"], "nothing", "something"
        short = right if number % 4 else wrong
        small, thought = short if number % 3 == 0 else other, short if number % 3 < 2 else other
        transferred = right if number % 6 else wrong
        made.append(
            Answers(right, small, short, thought, transferred, right, probability=0.9 if short == right else 0.1)
        )
    return records(NAME, made, seconds=seconds)
