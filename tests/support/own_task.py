"""A task of a user: a local parquet file with pictures, a YAML file with a prompt and functions of its own, no `_r`."""

from pathlib import Path

from pyarrow import parquet
from support.pair import Answers, Records, records

from lmms_eval_mai.plugin import task_dir

NAME = "own_shapes"
FILE = task_dir() / "shapes" / "test.parquet"
FUNCTIONS = """
def visual(doc):
    return [doc["image"].convert("RGB")]


def text(doc, lmms_eval_specific_kwargs):
    return doc["question"] + lmms_eval_specific_kwargs["post_prompt"]


def score(doc, results):
    return {"own_right": results[0].rpartition("[[")[2].strip("]").lower() == doc["answer"].lower()}
"""
TASK = f"""
task: {NAME}
dataset_path: parquet
dataset_kwargs: {{data_files: {{test: {FILE}}}}}
test_split: test
output_type: generate_until
doc_to_visual: !function functions.visual
doc_to_text: !function functions.text
doc_to_target: answer
process_results: !function functions.score
generation_kwargs: {{max_new_tokens: 16}}
metric_list: [{{metric: own_right, aggregation: mean, higher_is_better: true}}]
lmms_eval_specific_kwargs: {{default: {{pre_prompt: "", post_prompt: "\\nAnswer in the format: [[answer]]"}}}}
"""


def write_task(folder: Path) -> Path:
    """Write the task, whose questions are those of `shapes`. Returns the folder."""
    folder.mkdir(parents=True)
    (folder / f"{NAME}.yaml").write_text(TASK)
    (folder / "functions.py").write_text(FUNCTIONS)
    return folder


def answers(rows: int, seconds: float) -> Records:
    """Return the records of both models. One document after another leaves MAI at `agree_short`, `agree_think` and
    `transfer`. The large model is right with its thinking, else about two documents of three."""
    made, wrong, other = [], "nothing", "something"
    for number, right in enumerate(parquet.read_table(FILE)["answer"].to_pylist()[:rows]):
        short = right if number % 4 else wrong
        small, thought = short if number % 3 == 0 else other, short if number % 3 < 2 else other
        transferred, chance = right if number % 6 else wrong, 0.9 if short == right else 0.1
        made.append(Answers(right, small, short, thought, transferred, right, probability=chance))
    return records(NAME, made, seconds=seconds)
