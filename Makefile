# Everything lives in .venv; `make help` lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PORT ?= 11434
GRPC_PORT ?= 11435
HOME_DIR ?= $(HOME)/.puna
# Several machines (README.md): this machine's address for those that join, or the address of the one that is joined.
ADDRESS ?=
JOIN ?=
# With JOIN the first time: the token that the first machine prints.
TOKEN ?=
PART ?= all
# What `make test` runs; empty: all of it.
TESTS ?=
PYTEST := $(BIN)/pytest
SOURCES := common cli discovery gateway runner scheduler tests bench tools hatch_build.py

.DEFAULT_GOAL := help
.PHONY: help setup up down protos fmt lint types imports test check unit integration e2e e2e-ops attack rotation every-token gpu bench bench-engine bench-real bench-placement bench-gateway bench-kv bench-overload placement-grid behaviours conformance clients faults soak fuzz audit deps-system clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  %-15s %s\n", $$1, $$2}'

# What has changed is decided by content (tools/setup): CMAKE_ARGS and CXXFLAGS, where they are given, and these files.
$(VENV)/.ready: requirements-dev.lock pyproject.toml hatch_build.py tools/protos.py $(wildcard protos/*.proto)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Puna needs Python 3.11 or newer")'
	@$(PYTHON) -m tools.setup --then "$(filter-out setup,$(MAKECMDGOALS))"
	@touch $@

setup: $(VENV)/.ready ## create .venv and build the engine (about 5 minutes the first time; add -DGGML_CUDA=on: docs/gpu.md)

up: setup ## serve the demo model on this machine (ADDRESS=its own: others may join; JOIN=theirs TOKEN=…: be their node); Ctrl-C stops
	_PUNA_MADE=1 $(BIN)/puna up $(if $(ADDRESS),--address $(ADDRESS)) $(if $(JOIN),--join $(JOIN)) \
	  $(if $(TOKEN),--token $(TOKEN)) --port $(PORT) --grpc-port $(GRPC_PORT) \
	  --home $(HOME_DIR)

down: setup ## stop what `make up` started
	$(BIN)/puna down --home $(HOME_DIR)

protos: setup ## generate the gRPC stubs from protos/*.proto
	$(BIN)/python -m tools.protos

fmt: setup ## format the code
	$(BIN)/ruff check --fix --quiet $(SOURCES) || true
	$(BIN)/ruff format $(SOURCES)

lint: setup ## check style
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)

types: setup ## check types
	$(BIN)/mypy

imports: setup ## check who may import whom
	$(BIN)/lint-imports

unit: setup ## tests of the pure parts, seconds
	$(PYTEST) tests/unit

integration: setup ## tests with real processes and the real engine
	$(PYTEST) tests/integration

e2e: setup ## tests of the whole cluster, containers included
	$(PYTEST) tests/e2e

# What the machine lacks is skipped, and said (make deps-system; REQUIRE_CONTAINERS=1 makes a missing engine a failure).
e2e-ops: setup ## what operators use: Prometheus, compose, Kubernetes, page, documents; leaves build/artifacts/
	$(PYTEST) -rs tests/integration/deploy tests/e2e/test_prometheus.py tests/e2e/test_containers.py tests/e2e/test_join.py \
	  $(wildcard tests/e2e/test_page*.py) $(wildcard tests/docs)

check: protos lint types imports unit integration ## everything that must be green before a commit

test: setup ## every test, the storm for a whole minute (TEST_STORM_S)
	TEST_STORM_S=$${TEST_STORM_S:-60} $(PYTEST) $(TESTS)

attack: setup ## attack a cluster of two machines and the project of compose, as docs/security.md lists it (as root; ATTACK="--before COMMIT --out FILE")
	$(BIN)/python -m tests.attack $(ATTACK)

rotation: setup ## certificates of a minute and two new authorities under 16 streams, as root (11 minutes; ROTATION="--seconds 120")
	$(BIN)/python -m tests.attack.rotation $(ROTATION)

every-token: setup ## kill, block, drain or lose what serves after every token of 25 kinds of answers (hours, goes on where it was)
	$(BIN)/python -m tests.faults.every_token $(EVERY_TOKEN)

gpu: setup ## every check of docs/gpu.md on this machine's first card (30 minutes; GPU="--models 1b --only-checks")
	tools/peers/build_llama_server.sh
	$(BIN)/python -m tests.gpu $(GPU)

# Modules of bench/ one after the other: the first, with BENCH_OPTIONS, and without BENCH_OPTIONS the others as well.
# All run, also when a bar is missed, which is the status in the end.
bench_parts = @status=0; for part in "$(1) $(BENCH_OPTIONS)" $(if $(BENCH_OPTIONS),,$(2)); do \
	echo "python -m bench.$$part"; $(BIN)/python -m bench.$$part || status=1; done; exit $$status

bench: setup ## measure against llama-server of the same build
	tools/peers/build_llama_server.sh
	$(BIN)/python -m bench.gateway_vs_llama_server

bench-engine: setup ## the runner alone against llama-server: bars S1 to S4, S7 (BENCH_OPTIONS="--rounds 5 --models 57m": S1 and S2)
	tools/peers/build_llama_server.sh
	$(call bench_parts,engine,starts "speculation 1b" split_speculation)

bench-real: setup ## trained weights from installed packages: bars S1, S2 and S5, else skipped with the reason
	tools/peers/build_llama_server.sh
	$(BIN)/python -m bench.engine --models gemma3-270m $(BENCH_OPTIONS)
	$(BIN)/python -m bench.speculation gemma3-270m

bench-gateway: setup ## what the gateway adds to a runner's own gRPC, and the tokens that one core relays (about 4 minutes)
	$(BIN)/python -m bench.gateway $(BENCH_OPTIONS)

bench-kv: setup ## saved conversations: bars K1 to K9 (as root; BENCH_OPTIONS="--model 57m --tokens 1024": without K5 and K6)
	$(call bench_parts,kv,rolling_restart bands)

bench-overload: setup ## a gateway with up to five times the requests that it has processor time for (2 minutes)
	$(BIN)/python -m bench.overload $(BENCH_OPTIONS)

bench-placement: setup ## how long placement takes over 1,000 nodes, and an idle control plane
	$(BIN)/python -m bench.placement

placement-grid: setup ## measured placement against real allocations and two formulas (5 minutes)
	$(BIN)/python -m tools.placement_grid

faults: setup ## reliability bars at full strength, resumable, as root for all (about 3 hours on 2 quiet cores; FAULTS="--bars redis_down --share 0.1")
	$(BIN)/python -m tests.faults.bars $(FAULTS)

soak: setup ## two hours under load with a fault a minute: memory and descriptors stay flat (SOAK="--seconds 600")
	$(BIN)/python -m tests.faults.soak $(SOAK)

fuzz: setup ## 50,000 HTTP and 20,000 gRPC cases against every route (FUZZ_CASES, FUZZ_RAW, FUZZ_GRPC, FUZZ_SEED)
	FUZZ_CASES=$(or $(FUZZ_CASES),10000) FUZZ_RAW=$(or $(FUZZ_RAW),40000) FUZZ_GRPC=$(or $(FUZZ_GRPC),1700) \
	  $(PYTEST) tests/fuzz -rP --timeout 0

conformance: setup ## official clients against real clusters; writes docs/compatibility.md (needs a network the first time, 10 minutes)
	$(BIN)/python -m tools.conformance $(CONFORMANCE_OPTIONS)

clients: setup ## real clients without a network (CLIENTS="llm codex"); writes its part of docs/compatibility.md (30 minutes)
	$(BIN)/python -m tools.clients $(CLIENTS)

# A report is written if, and only if, the advisories could be asked.
audit: ## known vulnerabilities of the locked packages (needs a network; skipped without)
	@mkdir -p build && rm -f build/audit.json && $(PYTHON) -m venv build/audit
	@build/audit/bin/pip install --quiet pip-audit==2.10.1 || { echo "skipped: pip-audit cannot be downloaded"; exit 0; }; \
	build/audit/bin/pip-audit --vulnerability-service osv --disable-pip --require-hashes --progress-spinner off \
	  --requirement requirements.lock --format json --output build/audit.json 2> build/audit.log; status=$$?; \
	[ -f build/audit.json ] || { tail -1 build/audit.log; echo "skipped: the advisories cannot be reached"; exit 0; }; \
	cat build/audit.log build/audit.json; exit $$status

behaviours: setup ## promised behaviours and their tests (PART=runner|placement|api)
	$(BIN)/python -m tools.behaviours $(PART)

deps-system: ## Debian packages that some tests need (as root)
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
	  docker.io docker-compose debootstrap iptables iproute2 prometheus docker-registry chromium
# Somebody else's package may have brought kubectl already.
	command -v kubectl >/dev/null || apt-get install -y -qq --no-install-recommends kubernetes-client

clean: ## remove everything that was generated
	rm -rf $(VENV) build dist wheels test-artifacts .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -f protos/*_pb2.py protos/*_pb2.pyi protos/*_pb2_grpc.py protos/*_pb2_grpc.pyi
