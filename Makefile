# granule: one-word verbs. Everything they make lies under build/ and models/.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help

MODEL ?= models/smollm2-135m-instruct
PROMPT ?= The capital of France is
TOKENS ?= 32
ARGS ?=
export MODEL PROMPT TOKENS

.PHONY: help setup build model run test test-gpu nightly bench coverage lint format clean

help: ## list the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: ## install what building and testing need (apt), and make build/venv
	@scripts/setup.sh test

build: ## build the release binary, build/release/granule
	@scripts/setup.sh run
	@scripts/build.sh release granule

model: build ## fetch and import the default model into models/
	@scripts/model.sh

run: ## from a fresh clone to generated text (PROMPT="...", TOKENS=32, MODEL=folder)
	@scripts/run.sh

test: ## build with checks and run every test (ARGS="-L kv" goes to ctest)
	@scripts/test.sh $(ARGS)

test-gpu: ## the tests that need a GPU, on a machine that has one
	@scripts/test_gpu.sh

nightly: ## long fuzzing, mutations that tests must notice, outside oracles
	@scripts/setup.sh test
	@scripts/nightly.sh

bench: ## micro benchmarks, then whole runs
	@scripts/setup.sh test
	@scripts/bench.sh

coverage: ## line coverage of the project and of what changed, with floors
	@scripts/setup.sh test
	@scripts/coverage.sh

lint: ## formatting of all files, clang-tidy on what changed (ARGS=--all: on everything)
	@scripts/setup.sh test
	@scripts/lint.sh $(ARGS)

format: ## rewrite the sources as .clang-format says
	@git ls-files -co --exclude-standard '*.cc' '*.h' '*.cu' '*.cuh' | xargs -r clang-format -i

clean: ## remove build/ (the model stays)
	@rm -rf build
