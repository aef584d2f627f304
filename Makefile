# make check     - install into .venv; linters, types, documentation and all fast tests, in about a minute
# make test      - install into .venv; the same and the slow tests, with coverage, in 5 to 16 minutes
# make test-long - install into .venv; the tests that take longest, and properties with more examples
# make demo      - install into .venv and compare the methods on 200 documents of shapes, on real vLLM (demo-full: 3,000)
# All of them reuse .venv. Its installation takes half a minute to a minute with a fast registry. With
# PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu it downloads torch's CPU build, which is smaller.

.PHONY: env lint docs check test test-long demo demo-full clean
WORK := .checkpoints
PY := .venv/bin/python
SCRIPT := lmms_eval_mai/analysis/tables/page.js
PYTEST := -m pytest -n 2 --dist loadfile --no-loadscope-reorder
COG := .venv/bin/cog -P -U -I tools/docs
GENERATED := README.md $(wildcard docs/*.md)
export HF_HUB_OFFLINE = 1
unexport PYTHONDONTWRITEBYTECODE  # pytest keeps the rewritten assertions of all tests: 3 s less in each worker

env:
	@bash tools/setup_env.sh

lint: env
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	@# On a busy machine, mypy's workers may not start in time; then it exits with 2.
	.venv/bin/mypy || { [ $$? = 2 ] && .venv/bin/mypy --num-workers 0; }
	@.venv/bin/lint-imports > .venv/lint-imports.log || { cat .venv/lint-imports.log; exit 1; }
	@# deno's linter does not know `document`.
	@(echo "const { document } = globalThis;"; cat $(SCRIPT)) | \
		.venv/bin/deno lint --quiet --rules-include=eqeqeq,no-undef -
	$(COG) --check --diff --verbosity=1 --check-fail-msg="Run: make docs" $(GENERATED)

# Write the parts of the documentation that are generated from the code.
docs: env
	$(COG) -r --verbosity=1 $(GENERATED)

check: lint
	$(PY) $(PYTEST) -m "not slow" $(ARGS)

# Fails if the tests cover less than 97% of the lines and branches of lmms_eval_mai/method and lmms_eval_mai/run.
test: lint
	rm -f .coverage .coverage.*
	$(PY) -m coverage run $(PYTEST) -m "not long" $(ARGS)
	@$(PY) -W ignore -m coverage combine --quiet
	$(PY) -m coverage report --skip-covered --fail-under=97

test-long: env
	LMMS_EVAL_MAI_TEST_EXAMPLES=200 $(PY) $(PYTEST) -m "long or hypothesis" $(ARGS)

# The first 200 of the 3,000 documents; demo-full runs them all. The engines of the pair start once for all methods.
demo: LIMIT := --limit 200
demo-full: LIMIT :=
demo demo-full: RUNS := compare --pair demo --tasks shapes_s --output_path out/demo $(LIMIT)
demo demo-full: env
	@rm -rf out/demo
	@$(PY) -m lmms_eval_mai $(RUNS)
	@echo "A cascade of your own beside them: .venv/bin/lmms-eval-mai $(RUNS) --methods examples/large_first.yaml"

clean:
	rm -rf $(WORK) out build dist *.egg-info .coverage .coverage.*
