# The front door: every target does its own set-up, and CI calls the same ones.

JOBS ?= 1000
NODES ?= 3
PARTITIONS ?= 4
INPUT ?=
SEED ?=
SEEDS ?= 2000
REPEAT ?= 20
# How often `make kills` kills a leader.
N ?= 500
BROKERS ?= 1
# Three brokers are measured beside three ZooKeepers, and compile three times as much before they are warm.
ZOOKEEPERS ?= $(BROKERS)
WARM_UP ?= $(if $(filter 3,$(BROKERS)),240,45)
ONLY ?=
BASE ?=
BENCH_JOBS ?= 20000
BENCH_ROUNDS ?= 3
# Most of a slow test's time is waiting: for sessions to expire, for servers to start.
TEST_PROCESSES ?= 4
# A simulation never waits, a unit test hardly: one process per core.
SIMULATION_PROCESSES ?= $(shell nproc 2>/dev/null || echo 2)
QUICK_PROCESSES ?= $(SIMULATION_PROCESSES)

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST := $(BIN)/pytest
# Everything that holds Python, as far as it exists.
CODE := $(wildcard schemas/relevo_schemas partitions/relevo_partitions engine/relevo_engine workers/relevo tests examples)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# Targets share the virtual environment, the brokers' ports and the machine's few cores.
.NOTPARALLEL:
.PHONY: help setup demo test test-quick test-simulation test-slow redis postgres lint dev drills kills bench bench-compare bench-lock simulate properties clean format lock

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  make demo JOBS=5000 NODES=3 PARTITIONS=4 INPUT=jobs.jsonl    the demo's knobs"
	@echo "  make simulate SEEDS=10000, make simulate SEED=42             more seeds; one of them again, with its trace"
	@echo "  make kills N=50                                              fewer kills"
	@echo "  make drills REPEAT=5 BROKERS=3                               fewer repeats, on three brokers, with three"
	@echo "                                                               ZooKeepers (ZOOKEEPERS=1: one) and 240 s of"
	@echo "                                                               warm-up (WARM_UP=45: less)"
	@echo "  make bench ONLY=throughput, make bench TINY=1                one part; only see that all of it works"

setup: ## Check this machine, build .venv, resolve Kafka and ZooKeeper (once)
	@deploy/local/check-prerequisites
	@$(MAKE) --no-print-directory $(STAMP)
	@$(BIN)/python -m relevo_engine.local.install
	@$(BIN)/python -m relevo_engine.local.classes

# Kept beside what it stands for, so that deleting .venv is enough to start over.
$(STAMP): requirements.lock pyproject.toml
	@deploy/local/check-prerequisites python
	@echo "Building $(VENV) from requirements.lock with $$(deploy/local/check-prerequisites --print-python)"
	@rm -f $@
	@"$$(deploy/local/check-prerequisites --print-python)" -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: setup ## Run jobs on a three-node cluster, kill the leader, prove that none is lost
	$(BIN)/python examples/demo/run.py $(if $(INPUT),--input "$(INPUT)") --jobs $(JOBS) --nodes $(NODES) --partitions $(PARTITIONS)

test: setup redis postgres test-quick test-simulation test-slow ## Everything: the quick part, then integration and drills on real brokers

test-quick: lint ## Lint, types, unit and contract tests; needs Python only
	$(PYTEST) -n $(QUICK_PROCESSES) tests/unit tests/contract

test-simulation: $(STAMP) ## The whole system from 2,000 seeds, in memory, and the planted bugs that it must find
	$(PYTEST) -n $(SIMULATION_PROCESSES) tests/simulation

test-slow: setup redis postgres ## Integration tests and drills, on real Kafka, ZooKeeper, Redis, PostgreSQL
	$(PYTEST) -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder tests/integration tests/drills

redis:
	@deploy/local/ensure-redis

postgres:
	@deploy/local/ensure-postgres

lint: $(STAMP) ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(CODE)

format: $(STAMP) ## Format the code and fix what ruff can fix
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

dev: setup ## A local cluster in the foreground, with a live table
	$(BIN)/relevo dev

bench: setup redis postgres ## How fast, beside the limit and other queues; the report goes to build/bench.json (ONLY=part: that one)
	$(BIN)/python -m tests.benchmarks $(ONLY) --jobs $(BENCH_JOBS) --rounds $(BENCH_ROUNDS) $(if $(TINY),--tiny) $(if $(PROFILE),--profile)

bench-compare: setup ## This revision beside another, in turns: BASE=<git revision>
	@test -n "$(BASE)" || { echo "which revision? make bench-compare BASE=<git revision>"; exit 2; }
	$(BIN)/python -m tests.benchmarks.compare "$(BASE)" --jobs $(BENCH_JOBS) $(if $(TINY),--tiny)

drills: setup ## Failovers of every kind, measured under load; the report goes to build/drill-report.json
	$(BIN)/relevo drill all --repeat $(REPEAT) --brokers $(BROKERS) --zookeepers $(ZOOKEEPERS) --warm-up $(WARM_UP)

kills: setup ## Leaders killed N times (500) under load, anywhere in what they do; then every job is accounted for
	RELEVO_TEST_KILLS=$(N) $(PYTEST) -s tests/drills/test_many_kills.py

simulate: $(STAMP) ## Simulations from SEEDS seeds, with progress (SEED=n: that one, with its trace)
	$(BIN)/python -m tests.simulation.run $(if $(SEED),--seed $(SEED),--seeds $(SEEDS) --processes $(SIMULATION_PROCESSES))

properties: $(STAMP) ## The property tests at length: 2,000 examples each (SEED=n to pin them)
	HYPOTHESIS_PROFILE=thorough $(PYTEST) --timeout 3600 $(if $(SEED),--hypothesis-seed $(SEED)) tests/unit

clean: ## Remove what builds and test runs left; .venv and the brokers stay, running processes too
	if [ -d build ]; then find build -mindepth 1 -maxdepth 1 ! -name local -exec rm -rf {} +; fi
	rm -rf dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find schemas partitions engine workers tests $(wildcard examples) -name __pycache__ -type d -prune -exec rm -rf {} +

# The hashes cover every platform; no address of a registry gets into the file. UPGRADE=1 takes newer versions.
lock: ## Write requirements.lock anew from pyproject.toml
	@deploy/local/check-prerequisites python
	@rm -rf build/lock && mkdir -p build
	@"$$(deploy/local/check-prerequisites --print-python)" -m venv build/lock
	@build/lock/bin/python -m pip install --quiet --disable-pip-version-check uv
	@env -u PIP_FIND_LINKS -u UV_FIND_LINKS build/lock/bin/uv pip compile --quiet --no-config --generate-hashes \
		--universal --python-version 3.11 --all-extras --no-emit-package relevo \
		--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" \
		$(if $(UPGRADE),--upgrade) pyproject.toml --output-file requirements.lock
	@rm -rf build/lock

bench-lock: ## Write tests/benchmarks/requirements-peers.txt anew: what the other queues of `make bench` need
	@deploy/local/check-prerequisites python
	@rm -rf build/lock && mkdir -p build
	@"$$(deploy/local/check-prerequisites --print-python)" -m venv build/lock
	@build/lock/bin/python -m pip install --quiet --disable-pip-version-check uv
	@cd tests/benchmarks && env -u PIP_FIND_LINKS -u UV_FIND_LINKS ../../build/lock/bin/uv pip compile --quiet --no-config \
		--generate-hashes --universal --python-version 3.11 --no-emit-index-url --no-emit-find-links \
		--custom-compile-command "make bench-lock" $(if $(UPGRADE),--upgrade) \
		requirements-peers.in --output-file requirements-peers.txt
	@rm -rf build/lock
