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

.PHONY: demo test check image bench soak mutants jitter sanitize matrix wheels docs docs-browser workflows broker clean java
.DEFAULT_GOAL := help

help:
	@echo "make demo    a million records through Spark into a real Kafka and back, checked"
	@echo "make test    everything that continuous integration runs"
	@echo "make check   format, lint, types, layers"
	@echo "make bench   the benchmarks, next to their peers"
	@echo "make soak    the tests that take minutes, and those that take hours"
	@echo "make mutants changes to the code that no test notices; MUTANTS_ARGS=--help"
	@echo "make jitter  the unit tests, with threads held up at random: races show"
	@echo "make sanitize  the compiled kernels with gcc's sanitizers (some minutes)"
	@echo "make matrix  the lowest versions of everything, and each PySpark, Python and Kafka (an hour); writes docs/compatibility.md"
	@echo "make wheels  the sdist and the wheels of all platforms in dist/, checked and tried"
	@echo "make docs    the documentation as a site, in build/site/html"
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

# By hand, after a change in what threads share. PYTHONPATH: plugins are imported before pytest's own setting counts.
jitter: $(STAMP)
	PYTHONPATH=tests $(BIN)/python -m pytest -p support.hooks.jitter -m "not soak and not broker and not spark" -n $(WORKERS) --dist loadfile tests/unit $(PYTEST_ARGS)

# By hand, after a change in a kernel. Needs gcc.
sanitize: $(STAMP)
	@bash .ci/sanitize.sh $(BIN)/python build/sanitized

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Not part of test: it downloads some gigabytes of PySpark and more.
matrix: java
	@bash .ci/matrix.sh .venv-matrix
	@python3 .ci/matrix.py .venv-matrix/cells

# Not part of test: a release's, and ten minutes for each Python.
wheels: java
	@bash .ci/wheels.sh .venv-wheels

# Strict: a dead link or a docstring that can't be read is an error.
docs: .venv-docs/.installed
	.venv-docs/bin/python docs/site/stage.py build/site/source
	.venv-docs/bin/python -m sphinx -b html -W --keep-going -q -c docs/site build/site/source build/site/html
	@echo "Open build/site/html/index.html"

CHROMIUM ?= $(shell command -v chromium || command -v google-chrome)
docs-browser: docs
	@test -n "$(CHROMIUM)" || { echo "Needs Chromium (Debian, Ubuntu: apt-get install chromium), or CHROMIUM=/path"; exit 1; }
	.venv-docs/bin/python docs/site/check.py build/site/html "$(CHROMIUM)"

.venv-docs/.installed: pyproject.toml .ci/mermaid.sh
	python3 -m venv .venv-docs
	.venv-docs/bin/pip --disable-pip-version-check --quiet install --editable ".[docs,spark,testing]"
	@bash .ci/mermaid.sh .venv-docs/static || echo "Without npm: diagrams are drawn by scripts of a CDN."
	@touch $@

# By hand, after a change in .github/workflows. Needs Go.
workflows:
	go run github.com/rhysd/actionlint/cmd/actionlint@v1.7.12

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
	$(BIN)/python -c "from spark_kafka_native.testing.embedded_registry import registry_application; registry_application()"
	$(BIN)/python .ci/spark_archive.py

java:
	@bash .ci/require_java.sh

$(STAMP): $(SOURCES)
	@bash .ci/make_venv.sh $(VENV) "$(PYTHON)" "$(PYSPARK)"
	@touch $(STAMP)

clean:
	rm -rf $(VENV) .venv-matrix .venv-wheels .venv-docs build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find spark_kafka_native -name '*.so' -delete
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
