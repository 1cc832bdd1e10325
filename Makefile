# make demo   see it work: rollout workers and trainers hand batches over (about a minute)
# make bench  time the hand-off (about two minutes)
# make test   all tests
# make test-network   mooncake:// between hosts that are network namespaces: as root, with iproute2; six minutes
# make lint   formatting, lint and types
# make sanitize   the native tests under AddressSanitizer and UndefinedBehaviorSanitizer
# Each sets up what it needs in .venv by itself. Needs python3 (3.11 or later, with venv), gcc and make.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SOURCES := $(wildcard native/*.[ch]) setup.py pyproject.toml
TORCH := torch==2.13.0
# More extras for tests and benchmark, with a comma before each: EXTRAS=,mooncake,ray
EXTRAS ?=

.PHONY: demo bench test test-network lint sanitize clean

demo: $(VENV)/.demo
	$(BIN)/rollferry demo --out demo.png $(ARGS)

bench: $(VENV)/.bench$(EXTRAS)
	$(BIN)/rollferry bench $(ARGS)

test: $(VENV)/.test$(EXTRAS)
	$(BIN)/python -m pytest $(ARGS)

test-network:
	$(MAKE) test EXTRAS=,mooncake ARGS="tests/network $(ARGS)"

lint: $(VENV)/.test$(EXTRAS)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/ruff check --isolated --select E9,F tests
	$(BIN)/mypy

sanitize: $(VENV)/.test$(EXTRAS)
	VENV=$(VENV) .ci/sanitize

$(VENV)/.created:
	$(PYTHON) -c 'import sys; sys.exit("rollferry needs Python 3.11 or later" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	touch $@

$(VENV)/.demo: $(VENV)/.created $(SOURCES)
	$(BIN)/python -m pip install --quiet --editable '.[demo]'
	touch $@

$(VENV)/.bench$(EXTRAS): $(VENV)/.created $(SOURCES)
	$(BIN)/python -m pip install --quiet --editable '.[bench$(EXTRAS)]'
	touch $@

$(VENV)/.test$(EXTRAS): $(VENV)/.created $(SOURCES)
	$(BIN)/python -m pip install --quiet $(TORCH)
	$(BIN)/python -m pip install --quiet --editable '.[demo,torch,images,test,lint$(EXTRAS)]'
	touch $@

clean:
	rm -rf $(VENV) build dist src/*.egg-info src/rollferry/*.so
