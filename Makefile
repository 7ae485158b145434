PYTHON ?= python3
PRESET ?= default
JOBS ?= 2
ARGS ?=

VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.lock-stamp
LOCK_VENV := .lock-venv
PIP_FLAGS := --quiet --disable-pip-version-check

# pyright comes bundled in its wheel: do not let it ask the network for a newer version.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.DEFAULT_GOAL := help
.PHONY: help check-python venv test test-slow lint numerics bench hunt train multiprocess reproduce report lock clean

help: ## print the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo "Variables: PYTHON=$(PYTHON) (>= 3.11), PRESET=quick|default|full, JOBS=$(JOBS) (test processes), ARGS= (flags passed on)"

check-python:
	@command -v "$(PYTHON)" >/dev/null || { echo "error: '$(PYTHON)' not found; set PYTHON, e.g. make PYTHON=python3.11" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: eagle_jax needs Python >= 3.11, but '$(PYTHON)' is $$("$(PYTHON)" --version 2>&1); set PYTHON, e.g. make PYTHON=python3.11" >&2; exit 1; }

venv: $(STAMP) ## create .venv from requirements.lock (only when the lock is newer)

# The checkout is put on the path by a .pth file: no build backend is needed, and `import eagle_jax` and
# `python -m experiments.x` work with .venv/bin/python from any directory.
$(STAMP): requirements.lock
	@$(MAKE) --no-print-directory check-python
	"$(PYTHON)" -m venv $(VENV)
	$(PY) -m pip install $(PIP_FLAGS) -r requirements.lock
	$(PY) -m pip check
	$(PY) -c 'import pathlib, sys, sysconfig; pathlib.Path(sysconfig.get_path("purelib"), "eagle_jax_checkout.pth").write_text(sys.argv[1] + "\n")' "$(CURDIR)"
	touch $@

test: lint ## lint, type-check and run the fast tests
	$(PY) -m pytest -n $(JOBS) --dist loadgroup $(ARGS)

test-slow: venv ## run the slow tests
	$(PY) -m pytest -m slow -n $(JOBS) --dist loadgroup $(ARGS)

lint: venv ## ruff check, ruff format --check, pyright
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m pyright

numerics: venv ## LAPACK's test ratios and NIST's regressions (experiments.numerics)
	$(PY) -m experiments.numerics $(ARGS)

bench: venv ## time the solver against the alternatives (experiments.bench.solve)
	$(PY) -m experiments.bench.solve $(ARGS)

hunt: venv ## random problems against an SVD, on one machine and on several: wrong answers that look right
	$(PY) -m experiments.hunt $(ARGS)
	$(PY) -m experiments.hunt_machines

train: venv ## train every network of the paper (experiments.train), continuing where it stopped
	$(PY) -m experiments.train --regime=all --ship $(ARGS)

multiprocess: venv ## distributed EAGLE in two processes of two devices on this machine
	$(PY) -m experiments.distributed --local=2 --devices_per_process=2 $(ARGS)

reproduce: venv ## every item of the paper (experiments.reproduce), PRESET=quick|default|full
	@case "$(PRESET)" in quick|default|full) ;; *) echo "error: PRESET must be quick, default or full, not '$(PRESET)'" >&2; exit 1;; esac
	$(PY) -m experiments.reproduce --preset=$(PRESET) $(ARGS)

report: venv ## figures, verdicts and results/report.html again, from stored results only
	$(PY) -m experiments.report $(ARGS)
	$(PY) -m experiments.claims $(ARGS)
	$(PY) -m experiments.page $(ARGS)

# Resolve with the oldest supported Python, so that one set of pins serves every supported version.
lock: check-python ## resolve pyproject.toml afresh and rewrite requirements.lock (run with Python 3.11)
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { \
	  echo "error: make the lock with the oldest supported version: make lock PYTHON=python3.11" >&2; exit 1; }
	rm -rf $(LOCK_VENV)
	"$(PYTHON)" -m venv $(LOCK_VENV)
	$(LOCK_VENV)/bin/python -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; print(*p["dependencies"], *sum((v for k, v in p["optional-dependencies"].items() if k != "torch"), []), sep="\n")' > $(LOCK_VENV)/requirements.in
	$(LOCK_VENV)/bin/python -m pip install $(PIP_FLAGS) -r $(LOCK_VENV)/requirements.in
	$(LOCK_VENV)/bin/python -m pip check
	{ grep '^#' requirements.lock; \
	  $(LOCK_VENV)/bin/python -m pip freeze --exclude pip --exclude setuptools --exclude wheel | LC_ALL=C sort -f; } > $(LOCK_VENV)/requirements.lock
	mv $(LOCK_VENV)/requirements.lock requirements.lock
	rm -rf $(LOCK_VENV)

clean: ## remove caches and build products (keeps .venv and results)
	rm -rf $(LOCK_VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +
