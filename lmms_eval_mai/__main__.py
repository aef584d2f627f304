"""`python -m lmms_eval_mai` is the command `lmms-eval-mai`."""

from lmms_eval_mai.cli import main

if __name__ == "__main__":
    main()
