"""`python -m lmms_eval_mai`: the same as the command `lmms-eval-mai`."""

from lmms_eval_mai.cli import main

if __name__ == "__main__":
    main()
