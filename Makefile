# make run   sets everything up and compares five algorithms on the embedded digits
# make test  sets everything up and runs all tests, linters and types; pytest in JOBS processes (make test JOBS=4)
# make processors runs the tests that depend on rounding as on other processors: without AVX, and without AVX-512
# make ready only sets everything up
# make bench measures memory, speed beside Flower and a plain loop, and growth, in an environment of its own
PYTHON ?= python3
BIN = .venv/bin
JOBS ?= 2
# the longest file first (tests/conftest.py), the others in the order of their names: no process waits long for the other
PYTEST = $(BIN)/pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder
READY = .venv/.ready

.PHONY: ready run test types suite processors old avx2 bench clean

run: $(READY)
	$(BIN)/bifl compare

test: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(MAKE) --no-print-directory -j 2 types suite

# side by side: mypy has one process, and would leave the other cores idle for a minute
types: $(READY)
	$(BIN)/mypy

suite: $(READY)
	$(PYTEST)

# one process each, side by side: numba compiles for each kind of processor anew, and two processes of a kind would both do it
processors: $(READY)
	$(MAKE) --no-print-directory --output-sync=target -j $(JOBS) old avx2

old avx2: $(READY)
	$(BIN)/python -m tests.processors $@ $(BIN)/pytest -m floats

ready: $(READY)

bench: .venv-bench/.ready
	.venv-bench/bin/python benchmarks/memory.py
	.venv-bench/bin/python benchmarks/speed.py
	.venv-bench/bin/python benchmarks/scale.py

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("bifl needs Python 3.11 or newer, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	@echo 'installing into .venv: some minutes'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(BIN)/python -m bifl.engine.precompile
	@touch $(READY)

# pfl-research needs an older dp-accounting than we pin for privacy, which no benchmark uses
.venv-bench/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-bench
	sed '/^\(dp-accounting\|absl-py\)==/d' constraints.txt >.venv-bench/constraints.txt
	.venv-bench/bin/python -m pip install --quiet --disable-pip-version-check -c .venv-bench/constraints.txt -e '.[bench]'
	@touch $@

clean:
	rm -rf .venv .venv-bench
