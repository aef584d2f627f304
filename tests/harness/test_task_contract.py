"""Our tasks in lmms-eval's index: data, scorers and metrics equal those of the built-in tasks."""

import inspect
import random
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from support.tasks import BUILT_IN, NAMES, VARIANTS, Loaded, config, split_name

from lmms_eval_mai import plugin
from lmms_eval_mai.run.decoding import OWN_TASK

# --- the index ------------------------------------------------------------------------------------------


def test_lmms_eval_lists_thirty_tasks_of_six_benchmarks_with_a_tag_for_each_variant_and_five_of_shapes(
    task_manager: Any,
) -> None:
    index = task_manager.task_index
    folder = plugin.task_dir()
    files = {name: Path(entry["yaml_path"]) for name, entry in index.items() if entry["type"] == "task"}
    ours = [name for name, file in files.items() if file.is_relative_to(folder)]
    assert sorted(ours) == sorted([*NAMES, *(f"shapes_{variant}" for variant in VARIANTS)])
    tags = {name: sorted(index[name]["task"]) for name in task_manager.all_tags if name.startswith("mai_")}
    assert tags == {f"mai_{v}": sorted(f"{benchmark}_{v}" for benchmark in BUILT_IN) for v in VARIANTS}
    assert all("lmms_eval/tasks/" in str(files[name]) for name in BUILT_IN.values())


# --- the contract with the built-in tasks --------------------------------------------------------------------

OURS_ALONE = {
    *("task", "tag", "output_type", "doc_to_text", "doc_to_messages", "lmms_eval_specific_kwargs"),
    *("generation_kwargs", "model_specific_generation_kwargs", "filter_list", "reasoning_tags"),
    *("metadata", "dataset_kwargs", "process_results"),
}
"""Keys in which our tasks differ on purpose. All other keys that either task sets must be equal."""


def comparable(value: Any) -> Any:
    """Return a config value with (name, file) in place of functions, because lmms-eval loads a built-in task's `utils`
    module again for every reference."""
    if callable(value):
        return value.__name__, inspect.getsourcefile(value)
    if isinstance(value, dict):
        return {key: comparable(one) for key, one in value.items()}
    if isinstance(value, list):
        return [comparable(one) for one in value]
    return value


@pytest.mark.parametrize("name", NAMES)
def test_data_metrics_and_scorer_equal_those_of_the_installed_built_in_task(task_manager: Any, name: str) -> None:
    benchmark, _ = split_name(name)
    ours, theirs = config(task_manager, name), config(task_manager, BUILT_IN[benchmark])
    assert {key: comparable(value) for key, value in ours.items() if key not in OURS_ALONE} == {
        key: comparable(value) for key, value in theirs.items() if key not in OURS_ALONE
    }
    assert {"dataset_path", "test_split", "doc_to_visual", "doc_to_target", "metric_list"} <= set(ours) & set(theirs)


@pytest.mark.parametrize("name", [f"{benchmark}_{variant}" for benchmark in BUILT_IN for variant in ("s", "r_s2")])
def test_scores_of_every_document_are_those_of_the_metrics_of_the_installed_built_in_task(
    tasks: Loaded, name: str
) -> None:
    ours, theirs = tasks.chat[name], tasks.built_in[split_name(name)[0]]
    texts = ["yes", "No.", "A", "**C**", "The answer is (B).", "green", "12", "3.", "50%", "98765", ""]
    for doc, text in product(ours.test_docs(), texts):
        scores = []
        for task in (ours, theirs):
            random.seed(1)  # MMMU's scorer guesses if it cannot read an answer
            scores.append(dict(task.process_results(doc, [text])))
        assert scores[0] == {metric: value for metric, value in scores[1].items() if metric in theirs.aggregation()}


@pytest.mark.parametrize("name", NAMES)
def test_a_task_needs_no_hub_token_and_is_decoded_greedily_with_one_limit(
    task_manager: Any, tasks: Loaded, name: str
) -> None:
    assert config(task_manager, name)["dataset_kwargs"] == {}
    decoding = tasks.chat[name].config.generation_kwargs
    assert decoding["until"] == []  # lmms-eval's own default would stop all thinking at its first blank line
    assert (decoding["temperature"], decoding["do_sample"]) == (0.0, False)
    own = {name: value for name, value in decoding.items() if name not in ("until", "do_sample")}
    assert own == {**OWN_TASK} and own["max_new_tokens"] == 4096


@pytest.mark.parametrize("name", NAMES)
def test_metadata_names_the_benchmark_and_variant_of_the_prompt(tasks: Loaded, name: str) -> None:
    benchmark, variant = split_name(name)
    task = tasks.chat[name]
    for metadata in (task.instances[0].metadata["mai"], task.config.lmms_eval_specific_kwargs["default"]):
        assert metadata == {"benchmark": benchmark, "variant": variant}
    rounds = "generate_until_multi_round" if name.endswith("_s2") else "generate_until"
    assert task.OUTPUT_TYPE == task.instances[0].request_type == rounds
