# Each target sets up .venv by itself. PYTHON=python3.12 make ... chooses the Python; anything from 3.11 on will do.
# make test PYSPARK=4.1 VENV=.venv-4.1: with another PySpark than the newest, in a folder of its own.

PYTHON ?=
PYSPARK ?=
VENV := .venv
BIN := $(VENV)/bin
# Installed is what these files say: touch one of them and the next target installs again, kernels included.
SOURCES := pyproject.toml setup.py $(shell find spark_kafka_native -name '*.[ch]')
STAMP := $(VENV)/.installed
# Tests run in so many processes; those of one file in one of them, as they may share a broker and a Spark session.
WORKERS ?= 2
PYTEST_ARGS ?=
MUTANTS_ARGS ?=

.PHONY: demo test check image bench soak mutants matrix broker clean java
.DEFAULT_GOAL := help

help:
	@echo "make demo    a million records through Spark into a real Kafka and back, checked"
	@echo "make test    everything that continuous integration runs"
	@echo "make check   format, lint, types, layers"
	@echo "make bench   the benchmarks, next to their peers"
	@echo "make soak    the tests that take minutes, and those that take hours"
	@echo "make mutants changes to the code that no test notices; MUTANTS_ARGS=--help"
	@echo "make matrix  the lowest versions of everything, and each PySpark and Python (half an hour)"
	@echo "make broker  a Kafka broker in the foreground, for trying things out"
	@echo "make clean   remove what the other targets made"

demo: $(STAMP) java
	@$(BIN)/python -m spark_kafka_native demo

broker: $(STAMP) java
	@$(BIN)/python -m spark_kafka_native broker

# The types are checked on one core, while the other fetches and prepares what brokers and Spark start from.
test: $(STAMP)
	@$(MAKE) --no-print-directory -j2 check image
	$(BIN)/python -m pytest -m "not soak" -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations=10 $(PYTEST_ARGS)

soak: $(STAMP) java
	$(BIN)/python -m pytest -m soak -o session_timeout=43200 $(PYTEST_ARGS)

# By hand: hours for everything, minutes for MUTANTS_ARGS="--module kafka/records/batch.py --sample 50 --seed 1".
mutants: $(STAMP)
	$(BIN)/python tests/tools/mutants.py $(MUTANTS_ARGS)

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Not part of test: it downloads some gigabytes of PySpark and more.
matrix: java
	@bash .ci/matrix.sh .venv-matrix

# One table per script; a script that is missing something says so and the next one runs.
bench: $(STAMP) java
	@for script in benchmarks/*.py; do \
		case "$$script" in */__init__.py|*/_*.py) continue;; esac; \
		echo "== $$script"; $(BIN)/python "$$script" || exit 1; \
	done

# Fetched here, where a slow registry has all the time that it takes, and not within the time of a test.
image: $(STAMP) java
	$(BIN)/python -c "from spark_kafka_native.testing.broker_files import broker_image; broker_image()"
	$(BIN)/python -c "from spark_kafka_native.testing.embedded_kdc import kdc_jars; kdc_jars()"
	$(BIN)/python .ci/spark_archive.py

java:
	@bash .ci/require_java.sh

$(STAMP): $(SOURCES)
	@bash .ci/make_venv.sh $(VENV) "$(PYTHON)" "$(PYSPARK)"
	@touch $(STAMP)

clean:
	rm -rf $(VENV) .venv-matrix build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find spark_kafka_native -name '*.so' -delete
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
