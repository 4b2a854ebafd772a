# Everything runs from a virtual environment that is made on first need from the lock files.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=
SCENARIO ?= short

RUNTIME := $(VENV)/.runtime-installed
DEV := $(VENV)/.dev-installed
CUDA := $(VENV)/.cuda-installed
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all:
# One closure for each use; the later two keep to the versions of the first.
LOCK := $(BIN)/uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --fork-strategy fewest --generate-hashes \
	--no-annotate --no-emit-index-url --custom-compile-command "make lock" --upgrade

.DEFAULT_GOAL := help
.PHONY: help serve test sim ptx gpu browser check format slo bench openapi setup setup-cuda lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

serve: $(RUNTIME) ## start the service on 127.0.0.1:8000 (VISION_HOST, VISION_PORT, ... change it)
	@exec $(BIN)/python -m app $(ARGS)

test: $(DEV) ## the service and the CPU operators against references and OpenCV (ARGS=... goes to pytest)
	$(BIN)/python -m pytest $(ARGS)

sim: $(DEV) ## every line of the CUDA operators, in Numba's simulator
	NUMBA_ENABLE_CUDASIM=1 NUMBA_DISABLE_JIT=1 $(BIN)/python -m pytest tests/sim $(ARGS)

ptx: $(DEV) $(CUDA) ## every CUDA kernel through the real compiler and linker, no device needed
	$(BIN)/python -m pytest -s tests/ptx $(ARGS)

gpu: $(DEV) $(CUDA) ## exactness, streams and speed on a device; fails without one
	REQUIRE_GPU=1 $(BIN)/python -m pytest tests/gpu $(ARGS)

browser: $(DEV) ## the pages in a headless Chromium with no internet; needs one on the PATH
	$(BIN)/python -m pytest tests/browser $(ARGS)

check: $(DEV) ## lint, formatting and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(DEV) ## format the code and mend what the linter can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

slo: $(DEV) ## judge a running service by its service levels (SCENARIO=short)
	$(BIN)/python -m locustfiles.run $(SCENARIO) $(ARGS)

bench: $(DEV) ## time every operator against OpenCV
	$(BIN)/python -m benchmarks $(ARGS)

openapi: $(RUNTIME) ## write docs/openapi.json
	$(BIN)/python -m app openapi > docs/openapi.json

setup: $(DEV) ## make the environment for serve, test, check, slo and bench

setup-cuda: $(DEV) $(CUDA) ## the same, with the CUDA compiler for ptx and gpu

lock: $(VENV)/.created ## resolve the dependencies anew and write the lock files
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'uv>=0.13,<0.14'
	$(LOCK) --group dev --output-file requirements-dev.lock
	$(LOCK) --constraints requirements-dev.lock --output-file requirements.lock
	$(LOCK) --constraints requirements-dev.lock --extra cuda --group compile --output-file requirements-cuda.lock

clean: ## remove the environment, caches and results
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage results
	find app cuda_ops tests locustfiles benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.created:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; name one with PYTHON=/path/to/python3"; exit 1; }
	@echo "Making $(VENV) with $$($(PYTHON) --version)" >&2
	@$(PYTHON) -m venv $(VENV) || { echo "Python's venv module is needed (on Debian and Ubuntu: apt install python3-venv)"; exit 1; }
	@touch $@

$(RUNTIME): requirements.lock $(VENV)/.created
	@echo "Installing the service's dependencies" >&2
	@$(INSTALL) -r requirements.lock
	@touch $@

# The service's dependencies are among these.
$(DEV): requirements-dev.lock requirements.lock $(VENV)/.created
	@echo "Installing the development dependencies" >&2
	@$(INSTALL) -r requirements-dev.lock
	@touch $(RUNTIME) $@

$(CUDA): requirements-cuda.lock $(VENV)/.created
	@echo "Installing the CUDA compiler (half a gigabyte)" >&2
	@$(INSTALL) -r requirements-cuda.lock
	@touch $@
