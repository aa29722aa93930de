# Everything on a fresh machine: `make demo` and `make test` each create .venv, install, and run.
PYTHON ?= python3
BIN := .venv/bin
SOURCES := src tests benchmarks examples mkdocs_hooks.py

.PHONY: demo test test-all lint bench browser nats clean docs fuzz

# Modules are compiled when they are first imported: compiling all of them takes half of the installation.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt

.venv/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) torch==2.13.0
	$(PIP) -e '.[dev]'
	touch $@

demo: .venv/installed
	$(BIN)/python examples/demo.py

# The report is tested in a real browser, and the relay over NATS with a real server. What is missing is installed, where this is
# a Debian-like machine on which we may.
nats:
	@PATH="$$PATH:/usr/sbin" command -v nats-server >/dev/null 2>&1 || \
	  { command -v apt-get >/dev/null && test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -y -qq nats-server >/dev/null; } || \
	  echo "No NATS server found: install nats-server. The tests of tests/runtimes/test_nats.py will fail without it."

browser:
	@command -v chromium chromium-browser google-chrome chrome msedge >/dev/null 2>&1 || test -n "$$TACIT_BROWSER" || \
	  { command -v apt-get >/dev/null && test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } || \
	  echo "No browser found: install Chromium or Chrome, or set TACIT_BROWSER to one. The report's browser tests will fail without it."

# Compiled modules are kept, whatever the environment says: tests start interpreters, and each would compile all of them.
test test-all: export PYTHONDONTWRITEBYTECODE =

test: .venv/installed browser nats
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

test-all: .venv/installed browser nats
	$(BIN)/python -m pytest -n 2 --dist worksteal

lint: .venv/installed
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy

# A searchable site in build/site; open build/site/index.html.
docs: .venv/installed
	$(BIN)/python examples/gallery.py build/gallery
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

bench: .venv/installed
	bash benchmarks/peers/install.sh
	$(BIN)/python benchmarks/cohort.py

fuzz: .venv/installed
	$(PIP) atheris==3.0.0
	$(BIN)/python fuzz/decoder.py

clean:
	rm -rf .venv .venv-peers build dist src/*.egg-info
