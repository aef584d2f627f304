"""`lmms-eval-mai`, or `python -m lmms_eval_mai`: what this package has, for people and scripts.

lmms-eval-mai pairs      the named pairs, for `--model_args pair=...`
lmms-eval-mai task-dir   the folder of the task YAMLs, for `--include-path`
"""

import argparse
from collections.abc import Callable

from lmms_eval_mai import presets
from lmms_eval_mai.plugin import task_dir


def main() -> None:
    commands: dict[str, tuple[Callable[[], object], str]] = {
        "pairs": (_pairs, "print the named pairs"),
        "task-dir": (lambda: print(task_dir()), "print the folder of the task YAMLs"),
    }
    parser = argparse.ArgumentParser(prog="lmms-eval-mai")
    subparsers = parser.add_subparsers(dest="command", required=True)
    for name, (_, what) in commands.items():
        subparsers.add_parser(name, help=what, description=what)
    commands[parser.parse_args().command][0]()


def _pairs() -> None:
    width = max(map(len, presets.names()))
    for name in presets.names():
        preset = presets.load(name)
        default = " (default)" if name == presets.DEFAULT else ""
        print(f"{name:<{width}}  {preset['small']} + {preset['large']}{default}")


if __name__ == "__main__":
    main()
