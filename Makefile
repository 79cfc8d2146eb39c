# make run | pipeline | quick | test | sim | unreached | chaos | check | fix | bench | instructions | wheel | clean      needs: Python 3.11 or newer, and make
#
# Everything is installed into .venv, once; after that nothing here needs the network (the first
# test run fetches Apache Kafka's jars with Maven where Java and Maven are installed).

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv run pipeline quick test test-needs test-compiled test-containers sim unreached chaos same check fix bench instructions wheel clean

# Where it is set, each process of the tests compiles all of them anew.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
RUN_READY := $(VENV)/.ready-run
DEV_READY := $(VENV)/.ready-dev
SPARK_READY := $(VENV)/.ready-spark
PIPELINE := .cache/pipeline
EDITABLE := --config-settings editable_mode=compat

# The first candidate that is new enough; `make PYTHON=/path/to/python3 ...` chooses another.
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for python in python3.11 python3 python3.12 python3.13 python3.14; do \
	"$$python" -c "$(NEW_ENOUGH)" >/dev/null 2>&1 && { echo "$$python"; break; }; done)

SEEDS ?= 1..20000
PARALLEL := --dist loadfile --no-loadscope-reorder --numprocesses

help:
	@echo "make run     three nodes on this machine, with a live table (quorumd demo)"
	@echo "make pipeline    tables, audit and report of the demo's log, with Spark"
	@echo "make quick   check, and the short tests that start nothing: two minutes"
	@echo "make test    check, and every test"
	@echo "make test-compiled  the tests, with a compiled quorumd; needs a C compiler (TESTS=...: those alone)"
	@echo "make test-containers    image and compose files, run and mistreated; needs Docker, or root and dockerd"
	@echo "make sim     simulate a quorum with faults, 20,000 times over (SEEDS=A..B: those instead)"
	@echo "make unreached   branches of the rules that simulated runs, or runs and tests, never take (SEEDS=A..B)"
	@echo "make chaos   real processes and clients under faults for HOURS=1; cut links and full disks need root"
	@echo "make same    prove that events, messages and files are those of a commit (BASE=commit)"
	@echo "make check   ruff, formatting and types; changes nothing"
	@echo "make fix     let ruff correct and format"
	@echo "make bench   measure throughput, failover, footprint, snapshots and starts"
	@echo "make instructions    count instructions per record: is a cell more than 5 % worse than the last kept?"
	@echo "make wheel   pure and compiled wheels into dist/; needs a C compiler: two minutes"
	@echo "make clean   remove what make has made"

venv: $(RUN_READY)

run: $(RUN_READY)
	@$(BIN)/quorumd demo

# The demo is started for it if it does not run. The tables stay: again, they are brought up to date.
pipeline: $(SPARK_READY)
	@set -e; started=; \
	if ! $(BIN)/quorumd demo --detach; then echo "it runs already"; else started=yes; fi; \
	trap 'test -z "$$started" || $(BIN)/quorumd demo --stop' EXIT; \
	export QUORUM_BOOTSTRAP_SERVERS="$$(sed -n 's|^listeners: CONTROLLER://||p' demo-data/node*.yaml | paste -sd,)"; \
	set -x; \
	$(BIN)/quorumd-pipeline doctor; \
	awk 'BEGIN { srand(); for (i = 0; i < 5000; i++) print "key" int(rand() * 200) "=" i }' \
		| $(BIN)/quorumctl append --key-separator = --batch-bytes 4096; \
	$(BIN)/quorumd-pipeline run --available-now --output $(PIPELINE)/tables; \
	$(BIN)/quorumd-pipeline state $(PIPELINE)/tables --as-of-offset 1000 | head -5; \
	$(BIN)/quorumd-pipeline audit demo-data/node1 demo-data/node2 demo-data/node3 \
		--findings $(PIPELINE)/audit || test $$? = 3; \
	$(BIN)/quorumd-pipeline report $(PIPELINE)/tables --findings $(PIPELINE)/audit \
		--output $(PIPELINE)/report.html

# More at a time than cores: many wait for a process, a quorum, a disk or a clock.
quick: check
	@$(BIN)/python -m pytest $(PARALLEL) 4 -m "not live and not java and not spark and not sim and not long and not browser and not compiled"

# What is downloaded and prepared meanwhile takes the other core as long as the checks take one.
test: $(DEV_READY)
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=line check test-needs
	@$(BIN)/python -m pytest --cache-clear $(PARALLEL) 5 || $(BIN)/python -m tests.support.second_run $$?

# So that no test's time limit covers it. Last: the tests in the form in which each of the processes loads them.
test-needs: $(DEV_READY)
	@$(BIN)/python -m tests.support.kafka_jars
	@$(BIN)/python -m tests.support.kafka_classes
	@$(BIN)/python -m tests.pipeline.spark_kafka_jars
	@$(BIN)/python -m tests.pipeline.quick_start
	@$(BIN)/python -m tests.deploy.prometheus
	@$(BIN)/python -m tests.support.sslyze
	@$(BIN)/python -m pytest --collect-only -qq >/dev/null || true # the run itself says what is wrong

# In a copy of this folder: beside the sources, machine code would hide what is edited.
COMPILED := .cache/compiled/tree
TESTS ?= tests
test-compiled: $(DEV_READY)
	@$(BIN)/python -m tests.support.compiled $(COMPILED)
	@cd $(COMPILED) && PYTHONPATH=$(CURDIR)/$(COMPILED) $(CURDIR)/$(BIN)/python -m pytest $(PARALLEL) 3 $(TESTS)

test-containers: $(DEV_READY)
	@$(BIN)/python -m tests.containers.drill

sim: $(RUN_READY)
	@$(BIN)/python -m simulation --seeds $(SEEDS)

# First what no run takes, then what neither a run nor a test takes.
unreached: $(DEV_READY)
	@mkdir -p .cache
	@$(BIN)/coverage erase
	@REACHED_BY=runs $(BIN)/coverage run -m simulation --coverage --seeds $(SEEDS)
	@REACHED_BY=tests $(BIN)/coverage run -m pytest -q tests/raft
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report --contexts=runs
	@$(BIN)/coverage report

HOURS ?= 1
chaos: $(DEV_READY)
	@$(BIN)/python -m chaos --hours $(HOURS)

# After a change that must not change anything: events, messages and files are those of BASE.
BASE ?= HEAD
same: $(DEV_READY)
	@$(BIN)/python -m simulation.same --base $(BASE)

check: $(DEV_READY)
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

fix: $(DEV_READY)
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

bench: $(RUN_READY)
	@$(BIN)/python -m bench.run_throughput
	@$(BIN)/python -m bench.run_failover
	@$(BIN)/python -m bench.run_footprint
	@$(BIN)/python -m bench.run_snapshot_pause
	@$(BIN)/python -m bench.run_start

# Not timed: four minutes, with perf or valgrind, on a busy machine too. COMMIT= counts that one.
instructions: $(RUN_READY)
	@$(BIN)/python -m bench.run_instructions $(if $(COMMIT),--commit $(COMMIT))

# From an sdist, so that nothing is left in this folder. The compiler is the mypy of the tests.
WHEEL := -m pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist
wheel: $(DEV_READY)
	@rm -rf dist && mkdir dist
	@$(BIN)/python -c "from setuptools.build_meta import build_sdist; build_sdist('dist')" >/dev/null
	@$(BIN)/python $(WHEEL) dist/*.tar.gz
	@QUORUMD_COMPILE=1 $(BIN)/python $(WHEEL) dist/*.tar.gz
	@ls -l dist

clean:
	rm -rf $(VENV) .cache/bench .cache/compiled dist $(PIPELINE) .mypy_cache .pytest_cache .ruff_cache .hypothesis build *.egg-info
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

# No build isolation: with setuptools in place, a changed pyproject.toml that asks for nothing new
# is installed without the network. "compat" puts this folder on the path, where Spark finds its module.
$(RUN_READY): pyproject.toml | $(BIN)/python
	@echo "installing quorumd into $(VENV)"
	@$(BIN)/python -m pip install -q --disable-pip-version-check 'setuptools>=77.0.3'
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-build-isolation $(EDITABLE) -e .
	@touch $@

$(SPARK_READY): $(RUN_READY)
	@echo "installing Spark into $(VENV): half a gigabyte, once"
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-build-isolation $(EDITABLE) -e '.[spark]'
	@touch $@

$(DEV_READY): $(RUN_READY)
	@echo "installing what the tests need into $(VENV)"
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-build-isolation $(EDITABLE) -e '.[dev]'
	@touch $@

$(BIN)/python:
	@if [ -z "$(PYTHON)" ]; then \
		echo "Python 3.11 or newer is needed and was not found: install it, or name it with" >&2; \
		echo "    make PYTHON=/path/to/python3.11" >&2; exit 1; fi
	@if ! "$(PYTHON)" -c "$(NEW_ENOUGH)"; then \
		echo "$(PYTHON) cannot be used: Python 3.11 or newer is needed (make PYTHON=...)" >&2; exit 1; fi
	@if ! "$(PYTHON)" -m venv $(VENV); then rm -rf $(VENV); \
		echo "no virtual environment could be made: see above (Debian, Ubuntu: apt install python3-venv)" >&2; \
		exit 1; fi
