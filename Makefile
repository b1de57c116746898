# Each target sets up .venv by itself. PYTHON=python3.12 make ... chooses the Python; anything from 3.11 on will do.
# make test PYSPARK=4.1 VENV=.venv-4.1: with another PySpark than the newest, in a folder of its own.

PYTHON ?=
PYSPARK ?=
VENV := .venv
BIN := $(VENV)/bin
# Installed is what these files say: touch one of them and the next target installs again, kernels included.
SOURCES := pyproject.toml setup.py $(shell find spark_kafka_native -name '*.[ch]')
STAMP := $(VENV)/.installed
PYTEST_ARGS ?=

.PHONY: demo test check bench soak broker clean java
.DEFAULT_GOAL := help

help:
	@echo "make demo    a million records through Spark into a real Kafka and back, checked"
	@echo "make test    everything that continuous integration runs"
	@echo "make check   format, lint, types, layers"
	@echo "make bench   the benchmarks, next to their peers"
	@echo "make soak    the tests that take minutes"
	@echo "make broker  a Kafka broker in the foreground, for trying things out"
	@echo "make clean   remove what the other targets made"

demo: $(STAMP) java
	@$(BIN)/python -m spark_kafka_native demo

broker: $(STAMP) java
	@$(BIN)/python -m spark_kafka_native broker

test: check java
	$(BIN)/python -m pytest -m "not soak" $(PYTEST_ARGS)

soak: $(STAMP) java
	$(BIN)/python -m pytest -m soak $(PYTEST_ARGS)

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# One table per script; a script that is missing something says so and the next one runs.
bench: $(STAMP) java
	@for script in benchmarks/*.py; do \
		case "$$script" in */__init__.py|*/_*.py) continue;; esac; \
		echo "== $$script"; $(BIN)/python "$$script" || exit 1; \
	done

java:
	@bash .ci/require_java.sh

$(STAMP): $(SOURCES)
	@bash .ci/make_venv.sh $(VENV) "$(PYTHON)" "$(PYSPARK)"
	@touch $(STAMP)

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find spark_kafka_native -name '*.so' -delete
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
