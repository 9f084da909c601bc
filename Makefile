# Everything runs from .venv, which `make setup` makes with python3 alone: no root, no Docker, no Go.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules --no-print-directory
# Tests start Python by the hundred: where nothing may be kept, each start would compile everything anew.
export PYTHONDONTWRITEBYTECODE :=
BIN := .venv/bin
# Scenarios mostly wait for processes and deadlines, so more processes than cores run them side by side. One more begins
# with the unit tests, which need a core. tests/support/handingout.py says which process gets what.
TEST_JOBS ?= 5
# Unit tests seldom wait, and each process collects all of them (5 CPU seconds).
FAST_TEST_JOBS ?= 3
PYTEST = $(BIN)/pytest --dist loadfile --no-loadscope-reorder
# The first run compiles all tests once, instead of once in each test process. What changes later is little.
COMPILED := tests/__pycache__/compiled
FUZZ_S ?= 60
FUZZ_JOBS ?= 2
FUZZ_FIRST ?= $(shell date +%s)
# --fleet: teams, balloons, joins and scaling beside the scheduler
FUZZ_MODE ?=
CODE = $(wildcard src fuzz tests bench examples)

.PHONY: help setup test prepared test-fast fuzz lint types style format check-generated generate wheel lock cni cni-shim controlplane coscheduling helm jobset prometheus versitygw demo demo-real clean

help: ## Print what there is to make
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Make .venv from the pinned, hashed requirements
	@tools/setup

test: setup ## Everything: lint, types, layers, generated files, all tests (on a real control plane where Go is there)
	@$(MAKE) -j2 --output-sync=line types style check-generated prepared
	$(PYTEST) -n $(TEST_JOBS) --durations 30

prepared: setup
	@if command -v go >/dev/null; then for name in cni cni-shim controlplane helm informers coredns; do tools/build-go $$name >/dev/null; done; \
	else echo "no 'go' on PATH: neither the control plane nor helm is built"; fi
	@test -e $(COMPILED) || { $(BIN)/pytest --collect-only -q tests >/dev/null; mkdir -p $(dir $(COMPILED)); touch $(COMPILED); }

test-fast: setup ## Unit tests that are not slow, with few examples of each property: 112 CPU seconds
	$(PYTEST) -n $(FAST_TEST_JOBS) tests/unit -m "not slow" --most-examples 10 --durations 5

fuzz: setup ## Simulated clusters where things go wrong, a seed each, for FUZZ_S seconds; prints what fails and how to see it again
	PYTHONHASHSEED=0 $(BIN)/python -m fuzz --seconds $(FUZZ_S) --first $(FUZZ_FIRST) --jobs $(FUZZ_JOBS) $(FUZZ_MODE)

lint: types style ## Style, types and the direction of imports

types: setup
	$(BIN)/mypy src/muster tests/support fuzz $(wildcard bench)

style: setup
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/lint-imports --no-cache

format: setup ## Mend what ruff can mend
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

generate: setup ## Write the CRDs, schemas and pages that come from the code
	$(BIN)/python -m muster.cli.reference.generate

check-generated: setup ## Fail where a generated file is not what the code says
	$(BIN)/python -m muster.cli.reference.generate --check

wheel: setup ## Build the wheel into dist/: the CLI, the embedded cluster, the SDK, the example and the chart
	$(BIN)/python -m hatchling build --target wheel --directory dist

lock: ## Resolve pyproject.toml into requirements/*.txt (needs uv)
	tools/lock

controlplane: ## Build the real control plane (Go 1.26; minutes the first time) and print where it lies
	@tools/build-go controlplane

cni: ## Build cnitool and the CNI project's own plugins, for tests
	@tools/build-go cni

cni-shim: ## Build Muster's CNI plugin
	@tools/build-go cni-shim

coscheduling: ## Build kube-scheduler with the Coscheduling plugin, the peer in bench/
	@tools/build-go coscheduling

helm: ## Build helm, for rendering the chart
	@tools/build-go helm

coredns: ## Build CoreDNS, for tests of findings about DNS
	@tools/build-go coredns

jobset: ## Build the JobSet controller, the peer in bench/
	@tools/build-go jobset

prometheus: ## Build the newest Prometheus and promtool, for bench/guard and .ci/nightly
	@tools/build-go prometheus

versitygw: ## Build versitygw, the S3 server of bench/ and of `make demo-real`
	@tools/build-go versitygw

demo: setup ## The whole story on this machine, on the embedded cluster
	$(BIN)/muster demo

demo-real: setup controlplane helm versitygw ## The same on a real control plane
	$(BIN)/muster demo --real

clean: ## Remove .venv and tool caches of this checkout
	rm -rf .venv .setup.lock .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src fuzz tests bench examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
