# `make` alone prints what there is. Settings: ARGS (for `hostler up` and pytest), SEED and MINUTES (chaos), PYTHON,
# HOSTLER_CACHE.

HOSTLER_CACHE ?= .cache/guest
PYTHON ?=
ARGS ?=
SEED ?=
MINUTES ?= 5
export HOSTLER_CACHE PYTHON

BIN := .venv/bin
KEPT := HOSTLER_CACHE,HOSTLER_HOME,DATABASE_URL
AS_ROOT := $(if $(filter 0,$(shell id -u)),,sudo --preserve-env=$(KEPT) --)

# Most tests wait for others' processes: three at once keep two processors busy.
AT_ONCE := -n 3 --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help up down test test-slow check faults bench chaos setup bootstrap venv guest root
MAKEFLAGS += --no-print-directory --no-builtin-rules

help: ## say what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

up: root setup ## bring up the fleet and the VM "demo" (as root, or with sudo)
	@$(AS_ROOT) $(BIN)/hostler up $(ARGS)

down: root venv ## stop Hostler's processes; guests keep running (ARGS=--vms stops those too)
	@$(AS_ROOT) $(BIN)/hostler down $(ARGS)

test: setup ## run the tests but for the slow ones
	@infra/bootstrap.sh --with busybox
	@$(BIN)/pytest $(AT_ONCE) $(ARGS)

test-slow: setup ## run the slow tests: real guests, end to end, chaos (chromium and gcc, which they use, are installed)
	@infra/bootstrap.sh --with chromium --with gcc --with libc6-dev
	@$(BIN)/pytest -m slow $(AT_ONCE) $(ARGS)

check: venv ## format, lint, types, import contracts, dead dependencies
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/deptry .

faults: setup ## strike every activity by every fault, and kill hosts of real guests at every step (some 30 minutes)
	@FAULTS=all $(BIN)/pytest -m "" tests/faults/test_activities.py tests/faults/test_campaigns.py tests/faults/test_syncs.py tests/faults/test_real_kills.py $(ARGS)

bench: setup ## time a create against a bare start of the same guest
	@$(BIN)/python -m tests.bench $(ARGS)

chaos: root setup ## random users and faults against a whole fleet (SEED=… MINUTES=…); prints the seed that repeats it
	@infra/bootstrap.sh --with gcc --with libc6-dev
	@$(AS_ROOT) $(BIN)/python -m tests.chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(ARGS)

setup: bootstrap venv guest

bootstrap:
	@infra/bootstrap.sh

venv: bootstrap
	@infra/venv.sh

guest: venv
	@$(BIN)/python infra/guest/build.py --cache "$(HOSTLER_CACHE)"

root:
	@[ "$$(id -u)" = 0 ] || command -v sudo >/dev/null || { \
		infra/bootstrap.sh --check || true; \
		echo "make: the host worker needs root (taps, cgroups, firewall): run this as root, or install sudo" >&2; \
		exit 1; }
