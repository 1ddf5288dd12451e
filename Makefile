# make demo, make test: each sets up its own .venv first. PYTHON names the interpreter (3.11 or newer).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Where a driver is, what calls it and cuBLAS are installed too; where compilers for CUDA and C++ are as
# well, PyCUDA is built: with nvcc's own folder first on PATH, without the cuRAND it has no use for here,
# and with the toolkit's stub of libcuda to link against where the driver's is not on the linker's path.
CUDA := $(shell { ldconfig -p; ls /usr/lib/x86_64-linux-gnu /usr/local/nvidia/lib64; } 2>/dev/null | grep -q libcuda.so.1 && echo cuda,library,)
PYCUDA := $(if $(CUDA),$(shell command -v nvcc >/dev/null 2>&1 && command -v g++ >/dev/null 2>&1 && echo pycuda))

.PHONY: demo test docs pictures figures upstream bench-contract house pycuda release lint clean

demo: $(VENV)/.installed
	$(BIN)/hetero demo

test: $(VENV)/.tested
	@date +%s > $(VENV)/test-began
	NUMBA_CACHE_DIR=$${NUMBA_CACHE_DIR:-$${XDG_CACHE_HOME:-$$HOME/.cache}} $(BIN)/hetero compile
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest -n 2 --dist loadfile -m 'not timing'
	$(BIN)/python -m pytest -m timing $$(grep -rl mark.timing tests --include='test_*.py')
	@echo $$(($$(date +%s) - $$(cat $(VENV)/test-began))) > $(VENV)/test-seconds

# The site, in build/site: open build/site/index.html. A warning is an error.
docs: $(VENV)/.tested
	$(BIN)/python -m sphinx -W --keep-going -q -c docs . build/site

# The pictures of README and site from tables and profiles, and what shown commands print, anew.
pictures: $(VENV)/.tested
	$(BIN)/python docs/pictures.py
	$(BIN)/python docs/generate.py

# On a host with a GPU: the tables of docs/benchmarks.md measured anew.
figures: $(VENV)/.tested
	$(BIN)/python docs/figures.py all

# NumPy's, SciPy's and scikit-learn's own tests while hetero.accel is installed: 3 to 10 minutes.
upstream: $(VENV)/.tested
	$(BIN)/python tests/contract/upstream/under_accel.py

# Calls and programs timed in turn with another checkout, whose Python OTHER names; see the script.
bench-contract: $(VENV)/.tested
	$(BIN)/python tests/contract/bench.py $(OTHER) $(BENCH)

# How large the house is, room by room: lines, words, files that a call enters, seconds of make test.
house: $(VENV)/.tested
	$(BIN)/python tests/house.py

# Builds PyCUDA on a machine with nvcc and no GPU, in two minutes: with it, make test runs
# tests/devices/test_failing_driver.py with PyCUDA too, on a driver that the tests bring.
pycuda: $(VENV)/.tested
	mkdir -p $(VENV)/home $(VENV)/stub
	cc -shared -fPIC -w -Wl,-soname,libcuda.so.1 -o $(VENV)/stub/libcuda.so tests/support/fake_libcuda.c
	echo 'CUDA_ENABLE_CURAND = False' > $(VENV)/home/.aksetup-defaults.py
	HOME="$$PWD/$(VENV)/home" LIBRARY_PATH="$$PWD/$(VENV)/stub" \
	  PATH="$$(nvcc -dryrun -E -x cu /dev/null 2>&1 | sed -n 's/^#\$$ TOP=//p')/bin:$$PATH" \
	  CFLAGS="-O0 -g0" $(PIP) 'pycuda>=2024.1'

# dist/: source archive and wheel, tried in fresh environments of each Python on PATH, in 5
# minutes. The commit needs the version's tag (vX.Y.Z) and a clean tree; make release RELEASE=check
# asks for neither.
release: $(VENV)/.tested
	$(BIN)/python tests/release.py $(RELEASE)

lint: $(VENV)/.tested
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
NVCC_BIN := $(shell nvcc=$$(command -v nvcc) && dirname "$$(readlink -f "$$nvcc")")

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "hetero needs Python 3.11 or newer; name one: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(VENV)/.installed: setup.cfg setup.py pyproject.toml | $(BIN)/python
ifneq ($(PYCUDA),)
	mkdir -p $(VENV)/home
	echo 'CUDA_ENABLE_CURAND = False' > $(VENV)/home/.aksetup-defaults.py
	HOME="$$PWD/$(VENV)/home" PATH="$(NVCC_BIN):$$PATH" \
	  LIBRARY_PATH="$(NVCC_BIN)/../lib64/stubs:$$LIBRARY_PATH" $(PIP) 'pycuda>=2024.1'
endif
	$(PIP) -e '.[$(CUDA)opencl,demo]'
	touch $@

$(VENV)/.tested: $(VENV)/.installed
	$(PIP) -e '.[$(CUDA)test,docs]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
