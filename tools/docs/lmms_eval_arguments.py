"""All arguments of lmms-eval's command with `--model mai_cascade`, for docs/arguments.md.

The source of the installed lmms-eval is parsed and not imported. `print_table` fails if its parser has other arguments
than `GROUPS`, so an argument that lmms-eval adds is noticed.
"""

import ast
import importlib.util
from pathlib import Path

GROUPS = (
    (
        "config, model, tasks, model_args, gen_kwargs, include_path, limit, offset, repeats, output_path, log_samples, "
        "predict_only, timezone, show_config, use_cache, process_with_media, process-docs-parallel, verbosity",
        "work. `model_args` may be a mapping in the file of `--config`. A folder of results that cannot be written is "
        "refused before an engine starts. lmms-eval 0.7.3 turns a share such as `--limit 0.01` into a number of "
        "documents of one task, and uses this number for all tasks; versions after 0.7.3 take the share of each task "
        "(its pull request 1441). Of a name that `--gen_kwargs` has twice, lmms-eval keeps the last value. Samples "
        "that `--use_cache` answers have no trace",
    ),
    (
        "system_instruction",
        "works: it is the first message of every request, instead of the task's own system message. With a task that "
        "has a `description`, lmms-eval itself fails",
    ),
    (
        "reasoning_tags, baseline, seed",
        "work in part: the tags for tasks that are not ours, `--baseline` for POPE (use [`report`](reports.md)); "
        "`--seed` is that of lmms-eval's scorers, and `seed` of `--gen_kwargs` that of the models",
    ),
    (
        "wandb_args, swanlab_args, hf_hub_log_args, launcher_args",
        "work without this package: lmms-eval uploads its results, and starts a judge (with sglang) after the engines "
        "have stopped",
    ),
    (
        "apply_chat_template, max_tokens, cache_requests",
        "refused: the engines apply the chat template; use `--limit`; the cache of requests of lmms-eval 0.7.3 (except "
        "`delete`) loses the images. It is accepted from a version whose cache keeps them (its pull request 1514 "
        "proposes this)",
    ),
    (
        "batch_size, max_batch_size, device",
        "ignored: vLLM batches requests itself, and the engines have [arguments for their "
        "devices](#the-models-and-their-engines)",
    ),
    (
        "write_out, trust_remote_code, force_simple, agentic_trace_mode, log_samples_suffix",
        "no effect on the run. `--write_out` prints the texts of some documents, and not our prompts",
    ),
    (
        "num_fewshot, fewshot_as_multiturn, check_integrity, wandb_log_samples, swanlab_log_samples",
        "fail in lmms-eval: with the first three (a number above 0) it prints a traceback and exits with 0, with the "
        "last two it logs that the upload of samples failed",
    ),
    ("tui, power-analysis, effect-size, alpha, power, correlation, std-a, std-b", "run no model"),
)
"""The arguments of each row, and what they do."""


def names() -> set[str]:
    """Return the names of all arguments of `lmms-eval`. The first name with two hyphens names an argument."""
    package = importlib.util.find_spec("lmms_eval")
    assert package is not None and package.origin is not None
    tree = ast.parse((Path(package.origin).parent / "__main__.py").read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    added = [call.args for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"]
    options = [[arg.value for arg in args if isinstance(arg, ast.Constant)] for args in added]
    return {next(str(name)[2:] for name in of_one if str(name).startswith("--")) for of_one in options}


def print_table() -> None:
    """Print one row for each group. Raises `ValueError` if lmms-eval has other arguments."""
    rows = [(given.split(", "), meaning) for given, meaning in GROUPS]
    if differing := names() ^ {name for given, _ in rows for name in given}:
        raise ValueError(f"GROUPS and the installed lmms-eval do not have the same arguments: {sorted(differing)}")
    print("| argument of lmms-eval | with `--model mai_cascade` |\n|---|---|")
    for given, meaning in rows:
        print(f"| {', '.join(f'`--{name}`' for name in given)} | {meaning} |")
