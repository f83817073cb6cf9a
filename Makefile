# Everything bootstraps itself from Python 3.11+ and a C compiler. `make help` lists what there is.
.NOTPARALLEL:
.DEFAULT_GOAL := help

VENV   := .venv
BIN    := $(VENV)/bin
PY     := $(BIN)/python
EXTRAS := cli,arrow,metaq,zookeeper,metrics,test,lint

CYTHON := $(sort $(shell find rmqcore -name '*.pyx' -o -name '*.pxd'))
HEADERS := $(sort $(shell find rmqcore -name '*.h'))
NATIVE := $(CYTHON) $(HEADERS) setup.py
STUBS  := $(subst /,.,$(basename $(sort $(shell find rmqcore -name '_*.pyi'))))
HERE   := $(CURDIR)
# tests wait for the disk and for other processes half of their time
SIDE_BY_SIDE := -n 3 --dist loadgroup

.PHONY: help setup build run test test-long lint types stubs asan tsan bench bench-smoke bench-peers bench-broker bench-ha bench-counts bench-spark test-spark-all test-debian wheel test-interop test-ha test-sharing test-sizes test-adapters clean

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

# ---- checks ---------------------------------------------------------------------------------------

test: build $(VENV)/spark lint types stubs ## lint, types, stubs, the tests and one round of each benchmark
	@$(BIN)/pytest tests bench --benchmark-disable $(SIDE_BY_SIDE)

test-long: build $(VENV)/spark ## the tests that take longest, marked long
	@$(BIN)/pytest tests -m long $(SIDE_BY_SIDE)

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

bench: build ## the benchmarks, with figures
	@$(BIN)/pytest bench

bench-smoke: build ## each benchmark once, without figures
	@$(BIN)/pytest bench --benchmark-disable -q

bench-peers: build ## rmqcore beside Apache RocketMQ's store and Python's queues; ARGS=--quick takes three minutes
	@scripts/bootstrap $(VENV) arrow,bench,peers
	@$(PY) bench/peers/run.py $(ARGS)
	@$(PY) bench/task_queues.py

bench-broker: build ## our broker beside Apache RocketMQ's under a Java client and a native load; needs Java and Maven; ARGS=--quick takes two minutes
	@$(PY) bench/broker/run.py $(ARGS)

bench-ha: build ## master and slave beside Apache RocketMQ's, and catch-up beside a copy; needs Java and Maven; ARGS=--quick takes four minutes
	@$(PY) bench/ha/run.py $(ARGS)

bench-counts: build ## instructions of five kernels against their baselines; needs valgrind
	@$(PY) bench/counts.py $(ARGS)

bench-spark: build $(VENV)/spark ## Spark's paths beside Parquet's and the engine's own, 2 GiB of log; ARGS="--size 256m"
	@$(PY) bench/spark.py $(ARGS)

# ---- lanes that test another build, from another directory ----------------------------------------

asan: $(VENV)/built ## unit, property and fuzz tests under the address and undefined-behaviour sanitizers
	@scripts/lane asan $(PY)

tsan: $(VENV)/built ## the tests of threads under the thread sanitizer
	@scripts/lane tsan $(PY)

wheel: $(VENV)/ready ## build sdist and wheel, install it in an empty environment, run the unit tests there
	@scripts/lane wheel $(PY)

test-doctor: build ## each damage that the doctor repairs, on every kind of store, and a kill at each step
	@$(BIN)/pytest tests/doctor -m "slow or not slow" --no-skip

test-ha: build ## master and slave under partitions, kills and power cuts, 20 seeds; with root between network namespaces, too
	@$(BIN)/pytest tests/ha -m "slow or not slow"

test-sharing: build ## several processes on one store, whose owner is killed a hundred times under load
	@$(BIN)/pytest tests/sharing -m "slow or not slow" --no-skip

test-sizes: build ## a broker with 10,000 topics, 1,000 connections, 1 GiB of traffic, ten kills; with root a hundred power cuts, too
	@$(BIN)/pytest tests/broker/test_sizes.py tests/broker/test_power_cuts.py -m slow

test-interop: build ## Apache RocketMQ on our stores, its clients with our broker; needs Java, Maven and Go
	@$(BIN)/pytest tests/interop -m interop --no-skip

test-adapters: build ## the adapters under the suites of Scrapy, CoilMQ and the others, which it fetches; ARGS=-kname
	@scripts/adapters_lane $(PY) $(ARGS)

test-spark-all: build $(VENV)/spark ## all tests of Spark, slow ones too, on 4.3 and 4.2, and those of batches on 4.0
	@scripts/spark_lane $(PY) 4.3 tests/spark
	@scripts/spark_lane $(PY) 4.2 tests/spark
	@scripts/spark_lane $(PY) 4.0 tests/spark/test_read.py tests/spark/test_jobs.py \
		tests/spark/test_write.py tests/spark/test_bad_input.py -k "not stream"

ON := sid amd64 python3.14
test-debian: ## the last commit on another Debian, processor and Python: ON="trixie arm64 python3"; needs root, debootstrap
	@scripts/debian_lane $(ON) $(or $(ARGS),tests)

clean: ## everything built; keeps .venv
	@rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks
	@rm -f $(VENV)/built
	@find rmqcore -name '*.so' -exec rm -f {} +
	@find rmqcore tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
