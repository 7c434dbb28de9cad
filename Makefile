# `make demo` and `make test` need nothing but Python 3.11, 3.12 or 3.13: both make .venv first.
# `make same BASE=<commit>` checks that the working tree computes the same numbers as that commit, bit by bit;
# CASES="lstm plan" selects cases, and `make same-list` lists them.

CANDIDATES = python3 python3.13 python3.12 python3.11
SUPPORTED = import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
STAMP = .venv/installed
WORKERS = 2
PYTHON_FOLDERS = mnemo tests tools examples
TYPES = PYRIGHT_PYTHON_IGNORE_WARNINGS=1 .venv/bin/pyright

# Every process that imports torch would compile its sources anew if bytecode were not kept.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all test-gpu docs same same-list venv lint style clean

demo: venv
	.venv/bin/mnemo demo $(if $(MINUTES),--minutes $(MINUTES))

test: style
	.venv/bin/pytest -n $(WORKERS) --dist worksteal -m "not thorough"

test-all: lint
	.venv/bin/pytest -n $(WORKERS) --dist worksteal

# Needs no .venv, because machines with a GPU often bring their own torch; their own pytest plugins are not loaded.
# `make test-gpu PYTHON=python3 COMMIT=... GPU_WORKERS=8`
test-gpu:
	PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 $(or $(PYTHON),.venv/bin/python) -m pytest -m "(gpu or native) and not thorough" \
	    --continue-on-collection-errors $(if $(GPU_WORKERS),-p xdist.plugin -n $(GPU_WORKERS)) --record docs/measurements/test-gpu.json $(if $(COMMIT),--commit $(COMMIT)) \
	    $$(grep -rlE --include='test_*.py' 'mark\.(gpu|native)|NATIVE' tests)

# The documentation as a site in build/docs; every warning is an error.
docs: venv
	.venv/bin/python -m tools.site

same: venv
	.venv/bin/python -m tools.same $(BASE) $(if $(CASES),--cases $(CASES))

same-list: venv
	.venv/bin/python -m tools.same --list

lint: style
	$(TYPES)

style: venv
	.venv/bin/ruff check $(PYTHON_FOLDERS)
	.venv/bin/ruff format --check $(PYTHON_FOLDERS)

venv: $(STAMP)

# Removing the stamp first makes an interrupted installation start again.
$(STAMP): pyproject.toml constraints.txt
	@rm -f $(STAMP)
	@for candidate in $(or $(PYTHON),$(CANDIDATES)); do \
	    if "$$candidate" -c '$(SUPPORTED)' 2>/dev/null; then exec "$$candidate" -m venv .venv; fi; \
	done; \
	echo "mnemo needs Python 3.11, 3.12 or 3.13; found none of them as: $(or $(PYTHON),$(CANDIDATES)). Try make PYTHON=/path/to/python3.13" >&2; \
	exit 1
	.venv/bin/python -m pip install --no-compile --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(STAMP)

clean:
	rm -rf .venv build dist
