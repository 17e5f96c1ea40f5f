# make run   sets everything up and compares four algorithms on the embedded digits
# make test  sets everything up and runs all tests, linters and types
PYTHON ?= python3
BIN = .venv/bin
READY = .venv/.ready

.PHONY: run test bench clean

run: $(READY)
	$(BIN)/bifl compare algorithms=fedavg,full,biml,up_down

test: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest

bench: $(READY)
	$(BIN)/python benchmarks/memory.py

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("bifl needs Python 3.11 or newer, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(READY)

clean:
	rm -rf .venv
