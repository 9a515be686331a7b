PYTHON ?= python3
WORKERS ?= 2

export PIP_DISABLE_PIP_VERSION_CHECK = 1
export PYRIGHT_PYTHON_IGNORE_WARNINGS = 1
export MKL_CBWR ?= AUTO
unexport PYTHONDONTWRITEBYTECODE  # tests start many processes, each of which would compile gxpo anew

BIN := .venv/bin
INSTALL = $(BIN)/pip install -q -c constraints.txt

# Tests that compare floats computed in two ways (packed and flat, learner and engine, reference and base, records),
# without those that train whole runs.
TWO_WAYS := tests/models/decoder tests/algorithms/signals tests/learning/test_pack.py tests/forest/test_records.py tests/forest/record_format \
	$(addprefix tests/sampling/engines/,test_torch.py test_torch_caches.py) \
	$(addprefix tests/learning/,test_packing.py test_readout.py test_policies.py test_value_head.py test_inner_layers.py)
SEARCHED := tests/forest tests/learning/test_pack.py tests/algorithms/credit tests/algorithms/weighting
WHOLE_RUNS := killed or resumed or stop or export
# no other files: to import them all takes as long as some of the tests
MARKED_SLOW = $(sort $(shell grep -rlE --include='test_*.py' 'mark\.slow|SLOW|import .*cover' tests))
LESSER ?= not thorough
# torch's kernel for half precision refuses processors with AMX that are told to be lesser ones
REFUSED := in_bfloat16_sampler

.PHONY: help demo docs dist test slow test-all lint suite rest processors processor-default processor-avx2 lowest curves clean

help:
	@echo "make demo    train the small model on arithmetic and print what it learnt (minutes on a laptop, no GPU needed)"
	@echo "make test    lint, types, import contracts and the quick tests (minutes)"
	@echo "make slow    whole commands, recipes, kills and resumes, commands of the docs: the tests marked slow (minutes)"
	@echo "make processors  part of the tests as on lesser processors"
	@echo "make test-all   lint and all tests: quick, slow, more of each kind, searches, lesser processors (an hour)"
	@echo "make docs    the documentation as a site in build/site/html, with a page for each method and the Python API (minutes)"
	@echo "make dist    wheel and source distribution in dist/, checked by twine"
	@echo "make lowest  a part of the suite with the lowest versions that pyproject.toml allows"
	@echo "make curves  the runs behind the learning curves in README.md"
	@echo "make clean   remove .venv, caches and generated pages"
	@echo "Each makes .venv when it is missing. PYTHON=python3.12 chooses another interpreter (3.10 or later)."

demo: .venv/.train
	$(BIN)/gxpo demo
	@echo "gxpo is $(BIN)/gxpo; to have it on PATH: . $(BIN)/activate"

test: .venv/.dev
	@$(MAKE) --no-print-directory --jobs=2 lint suite

test-all: test
	@$(MAKE) --no-print-directory --jobs=3 slow rest processors

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright --pythonpath $(BIN)/python

suite slow: export OMP_NUM_THREADS = 1
suite slow: export HF_HUB_OFFLINE = 1
suite: .venv/.dev
	$(BIN)/pytest -q -n $(WORKERS) --dist worksteal -m "not slow and not thorough"

slow: .venv/.dev
	$(BIN)/pytest -q -n $(WORKERS) --dist worksteal -m "slow and not thorough" $(MARKED_SLOW)

# Every method and every kind of run, all pairs of credit and objective, and searches for new counterexamples.
rest: export OMP_NUM_THREADS = 1
rest: export HF_HUB_OFFLINE = 1
rest: export GXPO_ALL_PAIRS = 1
rest: .venv/.dev
	$(BIN)/pytest -q -n $(WORKERS) --dist worksteal -m thorough tests
	GXPO_HYPOTHESIS=search $(BIN)/pytest -q -n $(WORKERS) --dist worksteal -m "not thorough" $(SEARCHED)

# What torch and MKL run on processors with fewer instructions than this one has.
processors: processor-default processor-avx2
processor-default: export MKL_CBWR = COMPATIBLE
processor-avx2: export MKL_CBWR = AVX2
processor-default processor-avx2: processor-%: .venv/.dev
	ATEN_CPU_CAPABILITY=$* $(BIN)/pytest -q -m "$(LESSER)" $(TWO_WAYS) -k "not ($(WHOLE_RUNS) or $(REFUSED))"

docs: .venv/.docs
	$(BIN)/python scripts/pages/make_site.py

dist: .venv/.dev
	@$(INSTALL) -e '.[dist]'
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist .
	$(BIN)/twine check --strict dist/*

lowest:
	$(PYTHON) scripts/checks/check_lowest.py

curves: .venv/.train
	$(BIN)/python scripts/curves.py

clean:
	rm -rf .venv build dist docs/methods .pytest_cache .ruff_cache .hypothesis .import_linter_cache

# A stamp is made anew when what it was installed from has changed.
.venv/.train: pyproject.toml constraints.txt
	@test -x $(BIN)/pip || { echo "making .venv"; $(PYTHON) -m venv .venv; }
	@echo "installing gxpo[train,envs,compare] into .venv (once; about a minute, more where torch has to be downloaded)"
	@$(INSTALL) -e '.[train,envs,compare]'
	@touch $@

.venv/.dev: pyproject.toml constraints.txt
	@test -x $(BIN)/pip || { echo "making .venv"; $(PYTHON) -m venv .venv; }
	@echo "installing gxpo[train,dev,compare] into .venv (once; about a minute, more where torch has to be downloaded)"
	@$(INSTALL) -e '.[train,dev,compare]'
	@touch .venv/.train $@

.venv/.docs: .venv/.dev
	@echo "installing gxpo[docs] into .venv (once)"
	@$(INSTALL) -e '.[docs]'
	@touch $@
