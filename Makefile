# Baton's tasks. `make help` lists them. Every target makes the virtual environment by itself where it needs one.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Processes that run tests at a time: two cores have time for three, as a quarter of a test run is waiting.
WORKERS ?= 3
# Tests start hundreds of processes and rewrite every assertion: they keep bytecode, whatever the shell says.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help up wheel test check matrix gpu clients kubernetes lint fmt protos public-api chart lock notice audit clean
.DEFAULT_GOAL := help

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml constraints.txt requirements/dev.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing Baton and its tools into $(VENV) (once) ..."
	@$(BIN)/python -m pip uninstall -qq --yes baton # what the package was called in older checkouts
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --require-hashes --no-deps --requirement requirements/dev.txt
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-build-isolation --constraint constraints.txt --editable '.[dev]'
	@touch $@

up: $(STAMP) ## Start all of Baton on this machine with the demo model (UP='--model DIR ...' for options)
	@$(BIN)/baton up $(UP)

wheel: $(STAMP) ## Build the wheel, dist/baton_serve-*.whl
	@$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

test: lint ## Run all gates and all tests (TEST=tests/kv for some of them)
	@$(BIN)/python -m pytest --numprocesses=$(WORKERS) --dist=loadfile --durations=15 $(TEST)

check: lint ## Run the fast gates: format, lint, types, layers, protos, sizes, defaults
	@$(BIN)/python -m pytest --quiet tests/house

matrix: $(STAMP) ## Start the roles of each extra in fresh environments, and try all that tests sample (TEST='-k gateway')
	@BATON_MATRIX=1 $(BIN)/python -m pytest --verbose tests/system/test_extras.py tests/system/load/test_first_hour.py \
		tests/system/load/test_weights_beside_requests.py \
		tests/system/clients/test_tools.py tests/system/bad_input/test_api_fuzz.py tests/gateway/generation/test_counts.py \
		tests/capacity/planning tests/system/models \
		tests/attacks tests/exactness tests/mutants tests/system/histories tests/system/kv tests/system/kv_faults \
		tests/system/test_exactness.py tests/system/test_worker_role.py tests/system/faults/test_hangs.py \
		tests/system/joining tests/system/load/test_two_models.py $(TEST)

gpu: $(STAMP) ## Run the engine on this machine's CUDA GPU: kernels, tokens, copies, processes, a soak (TEST='-k soak')
	@$(BIN)/python -m pytest --numprocesses=6 --dist=loadgroup tests/gpu $(TEST)

clients: $(STAMP) ## Run clients from their registries, unmodified, and write the table (TEST='-k langchain' for some)
	@BATON_CLIENTS=1 $(BIN)/python -m pytest --verbose tests/clients $(TEST)

kubernetes: $(STAMP) ## Run the chart on a live Kubernetes (TEST='-k rollback' for some of it; SAMPLE=1 for what CI runs)
	@BATON_KUBERNETES=$(if $(SAMPLE),sample,all) $(BIN)/python -m pytest --verbose tests/kubernetes $(TEST)

lint: $(STAMP)
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache --no-logo

fmt: $(STAMP) ## Format and repair what can be repaired by itself
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --quiet --fix .

protos: $(STAMP) ## Generate services/baton/v1 and services/baton/internal/v1 from protos/
	@rm -f services/baton/v1/*_pb2*.py* services/baton/internal/v1/*_pb2*.py*
	@$(BIN)/python -m grpc_tools.protoc -Iprotos --python_out=services --pyi_out=services protos/baton/v1/*.proto protos/baton/internal/v1/*.proto
	@$(BIN)/python -m grpc_tools.protoc -Iprotos --grpc_python_out=services protos/baton/v1/*_service.proto protos/baton/internal/v1/*_service.proto

public-api: $(STAMP) ## Add what is new in the public protos to what may not change any more, and write the table of dialects
	@PYTHONPATH=tests $(BIN)/python -m house.public_api
	@PYTHONPATH=tests $(BIN)/python -m house.dialects.table

chart: $(STAMP) ## Write the chart's schema, table of values and rendered examples
	@$(BIN)/python -m charts.document

lock: ## Write requirements/*.txt, the hashes of what constraints.txt pins
	@.ci/lock

notice: $(STAMP) ## Write NOTICE.md, the licences of what Baton needs, and the same as CycloneDX into dist
	@PYTHONPATH=tests $(BIN)/python -m house.supply_chain.notice

audit: ## Look for known vulnerabilities of what constraints.txt pins
	@.ci/audit

clean: ## Remove the virtual environment and caches
	@rm -rf $(VENV) .tools .mypy_cache .ruff_cache .pytest_cache .hypothesis
