# make test  - install into .venv and run the whole suite
# make demo  - install into .venv and evaluate the tiny pair on drawn pictures, on real vLLM
# Both reuse .venv. On a machine whose registry lacks torch's CPU build, set
# PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu or let the default build be installed.

.PHONY: env lint test demo clean
WORK := .checkpoints
PY := .venv/bin/python
export HF_HUB_OFFLINE = 1

env:
	bash tools/setup_env.sh

lint: env
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

test: lint
	$(PY) -m pytest $(ARGS)

demo: env
	$(PY) tools/make_tiny_pair.py $(WORK)/tiny
	$(PY) tools/make_sample_data.py $(WORK)/data
	cd $(WORK)/data && HF_HOME=$(CURDIR)/$(WORK)/hf $(CURDIR)/.venv/bin/lmms-eval --model mai_cascade \
		--model_args small=$(CURDIR)/$(WORK)/tiny/small,large=$(CURDIR)/$(WORK)/tiny/large,max_new_tokens=64 \
		--tasks mai_s --output_path $(CURDIR)/out/demo --log_samples

clean:
	rm -rf $(WORK) out build dist *.egg-info
