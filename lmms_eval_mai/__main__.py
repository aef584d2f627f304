"""`python -m lmms_eval_mai task-dir`: print the folder of the task YAMLs, for `--include-path`."""

import argparse

from lmms_eval_mai.plugin import task_dir


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lmms_eval_mai")
    parser.add_argument("command", choices=["task-dir"], help="task-dir: print the folder of the task YAMLs")
    parser.parse_args()
    print(task_dir())


if __name__ == "__main__":
    main()
