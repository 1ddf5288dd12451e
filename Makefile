# make demo, make test: each sets up its own .venv first. PYTHON names the interpreter (3.11 or newer).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Where a CUDA compiler and a driver are, PyCUDA and cuBLAS are installed too.
CUDA := $(shell command -v nvcc >/dev/null 2>&1 && { ldconfig -p; ls /usr/lib/x86_64-linux-gnu /usr/local/nvidia/lib64; } 2>/dev/null | grep -q libcuda.so.1 && echo cuda,library,)

.PHONY: demo test lint clean

demo: $(VENV)/.installed
	$(BIN)/hetero demo

test: $(VENV)/.tested
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest -n 2 --dist loadfile

lint: $(VENV)/.tested
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: setup.cfg pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[$(CUDA)opencl]'
	touch $@

$(VENV)/.tested: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[$(CUDA)test]'
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info
