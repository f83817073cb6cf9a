# Everything bootstraps itself from Python 3.11+ and a C compiler. `make help` lists what there is.
.NOTPARALLEL:
.DEFAULT_GOAL := help

VENV   := .venv
BIN    := $(VENV)/bin
PY     := $(BIN)/python
EXTRAS := cli,arrow,metaq,zookeeper,metrics,web,test,lint

CYTHON := $(sort $(shell find rmqcore -name '*.pyx' -o -name '*.pxd'))
HEADERS := $(sort $(shell find rmqcore -name '*.h'))
NATIVE := $(CYTHON) $(HEADERS) setup.py
STUBS  := $(subst /,.,$(basename $(sort $(shell find rmqcore -name '_*.pyi'))))
HERE   := $(CURDIR)
# without bytecode each of the gate's thousand processes would compile all that it imports
export PYTHONDONTWRITEBYTECODE :=
# each process would start threads for numpy's linear algebra, which nothing here uses
export OPENBLAS_NUM_THREADS := 1
# tests wait for the disk and for other processes half of their time
SIDE_BY_SIDE := -n 3

.PHONY: help setup build run test lint types stubs tests installed storm peers measure mutants everything steady repeat \
	late near owed \
	asan tsan debug wheel single-file site debian bench bench-smoke bench-peers bench-broker bench-grpc bench-ha bench-counts bench-spark clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' Makefile | expand -t 16

# ---- set-up and build -----------------------------------------------------------------------------

$(VENV)/ready: pyproject.toml scripts/bootstrap
	@scripts/bootstrap $(VENV) $(EXTRAS)
	@touch $@

$(VENV)/built: $(VENV)/ready $(NATIVE)
	@scripts/build $(PY) $@
	@touch $@

# what Spark needs: made when it can be, and tried again the next time when it cannot
$(VENV)/spark: $(VENV)/ready pyproject.toml scripts/java
	@scripts/bootstrap $(VENV) spark,delta,iceberg,plot >$(VENV)/spark.log 2>&1 \
		|| { echo "spark: the extras spark, delta, iceberg and plot cannot be installed, see $(VENV)/spark.log"; exit 0; }; \
	scripts/java $(VENV) && touch $@ || true

setup: $(VENV)/ready ## the virtual environment, .venv

build: $(VENV)/built ## the extension modules, in place

run: build $(VENV)/spark ## rmqcore demo: append a text corpus, read it back, verify, send and consume, then the pipeline on Spark
	@$(BIN)/rmqcore demo --report build/demo.html

# ---- the gate: red means a defect, whatever else the machine does ---------------------------------

test: ## the gate: lint, types, stubs, the lanes logic, engine and process, an installed wheel
	@scripts/steps "build=$(MAKE) -s build $(VENV)/spark" "tests=$(MAKE) -s tests" "+lint=$(MAKE) -s lint" \
		"+types=$(MAKE) -s types" "+stubs=$(MAKE) -s stubs" "+benchmarks=$(MAKE) -s bench-smoke" \
		"+installed=$(MAKE) -s installed"

tests: build $(VENV)/spark ## of the gate, the tests alone; one: .venv/bin/pytest PATH::NAME
	@PYTHONHASHSEED=0 scripts/in-memory $(BIN)/pytest tests bench/peers -m "logic or engine or process" --durations=10 $(SIDE_BY_SIDE)

installed: build ## of the gate, twenty tests on an installed wheel of what is built
	@scripts/in-memory scripts/lane installed $(PY)

lint: $(VENV)/ready ## ruff, cython-lint, the C headers on their own
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@PATH="$(HERE)/$(BIN):$$PATH" cython-lint $(CYTHON)
	@for header in $(HEADERS); do \
		$(CC) -std=c11 -Wall -Wextra -Wconversion -Werror -fsyntax-only -xc $$header || exit 1; done

types: $(VENV)/ready ## mypy --strict
	@$(BIN)/mypy

stubs: build ## the .pyi files against the compiled modules
	@$(PY) -m mypy.stubtest --concise --mypy-config-file pyproject.toml \
		--allowlist tests/meta/stubtest.txt $(STUBS)

# ---- what the gate leaves out: random by design, timed by design, other programs -------------------

MINUTES := 10
storm: build $(VENV)/spark ## tests under fresh seeds: MINUTES=60, or ARGS="--seeds 3", ARGS="--seed 7 tests/ha"
	@scripts/storm $(PY) --minutes $(MINUTES) $(ARGS)

peers: build $(VENV)/spark ## beside Java, Go, adapted suites, Spark's releases; ARGS=--smoke, or some of interop it adapters stores web spark
	@scripts/peers $(PY) $(ARGS)

measure: build ## processor time, memory, latency, each alone, beside their last ten; ARGS=--record keeps them
	@scripts/measure $(PY) $(ARGS)

mutants: build ## deliberate breaks of the code that keeps messages, and what finds each; ARGS="tail flush" for parts
	@scripts/mutants $(PY) $(ARGS)

everything: ## all lanes and builds, one table; hours
	@scripts/steps "gate=$(MAKE) test" "storm=$(MAKE) storm" "peers=$(MAKE) peers" "measure=$(MAKE) measure" \
		"mutants=$(MAKE) mutants" \
		"asan=$(MAKE) asan" "tsan=$(MAKE) tsan" "wheel=$(MAKE) wheel" "bench=$(MAKE) bench-smoke"

# ---- to look for luck, and for what a change owes -------------------------------------------------

N := 20
steady: ## the gate N=20 times on a fresh clone, beside four busy loops and a dd to the same disk
	@rm -rf build/steady && mkdir -p build/steady && git clone --quiet . build/steady/clone
	@$(MAKE) -s -C build/steady/clone build $(VENV)/spark >build/steady/build.log 2>&1
	@scripts/steady $(N) $(MAKE) -C build/steady/clone test

repeat: build ## one test so often beside that load: T=path::name N=50
	@scripts/steady $(N) $(BIN)/pytest $(T) -q -m ""

LATE := $(shell date +%s)
late: build $(VENV)/spark ## the gate's tests of threads, held up at random: LATE=7 again, ARGS=tests/ha
	@echo "late: number $(LATE)"
	@PYTHONHASHSEED=0 scripts/in-memory $(BIN)/pytest $(or $(ARGS),tests) -m "engine or process" --late $(LATE) -n 5

near: build ## the tests of rooms and of all that stand on them: ROOM="broker store", else of what has changed
	@$(BIN)/pytest $$($(PY) scripts/rooms near $(ROOM)) -q $(SIDE_BY_SIDE)

owed: ## which lanes the change owes, by its diff and the table of floors: BASE=commit
	@python3 scripts/rooms owed $(BASE)

# ---- figures --------------------------------------------------------------------------------------

bench: build ## the benchmarks, with figures
	@$(BIN)/pytest bench -m measure

bench-smoke: build ## each benchmark once, without figures
	@$(BIN)/pytest bench -m measure --benchmark-disable -q

bench-peers: build ## rmqcore beside Apache RocketMQ's store and Python's queues; ARGS=--quick takes three minutes
	@scripts/bootstrap $(VENV) arrow,bench,peers
	@$(PY) bench/peers/run.py $(ARGS)
	@$(PY) bench/task_queues.py

bench-broker: build ## our broker beside Apache RocketMQ's under a Java client and a native load; needs Java and Maven; ARGS=--quick takes two minutes
	@$(PY) bench/broker/run.py $(ARGS)

bench-grpc: build ## our gRPC beside Apache's proxy under the same load; needs Java and Maven; ARGS=--quick for less
	@$(PY) bench/grpc/run.py $(ARGS)

bench-ha: build ## master and slave beside Apache RocketMQ's, and catch-up beside a copy; needs Java and Maven; ARGS=--quick takes four minutes
	@$(PY) bench/ha/run.py $(ARGS)

bench-counts: build ## instructions of five kernels against their baselines; needs valgrind
	@$(PY) bench/counts.py $(ARGS)

bench-spark: build $(VENV)/spark ## Spark's paths beside Parquet's and the engine's own, 2 GiB of log; ARGS="--size 256m"
	@$(PY) bench/spark.py $(ARGS)
	@$(PY) bench/selection.py

# ---- lanes that test another build, from another directory ----------------------------------------

asan: $(VENV)/built ## the lane logic under the address and undefined-behaviour sanitizers
	@scripts/in-memory scripts/lane asan $(PY)

tsan: $(VENV)/built ## the tests of threads under the thread sanitizer
	@scripts/lane tsan $(PY)

debug: $(VENV)/built ## the tests with the native assertions, symbols and Python's own checks; ARGS="tests/unit -k put"
	@scripts/lane debug $(PY) $(ARGS)

wheel: $(VENV)/ready ## build sdist and wheel, install it in an empty environment, test it there
	@scripts/lane wheel $(PY)

single-file: build ## dist/rmqcore.pyz: the command with all it needs in one file, for Pythons as this one
	@scripts/single_file $(PY)

site: $(VENV)/ready ## the documents as a site below build/site, with search and the API; a warning is an error
	@scripts/bootstrap $(VENV) site
	@$(PY) scripts/site_pages.py build/site

ON := sid amd64 python3.14
debian: ## the last commit on another Debian, processor and Python: ON="trixie arm64 python3"; needs root, debootstrap
	@scripts/debian_lane $(ON) $(or $(ARGS),tests)

clean: ## everything built; keeps .venv
	@rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks
	@rm -f $(VENV)/built
	@find rmqcore -name '*.so' -exec rm -f {} +
	@find rmqcore tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
