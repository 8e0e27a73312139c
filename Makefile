# georelay: `make help` lists what there is. Every target sets up what it needs by itself.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= $(shell bash tools/quickest_python.sh python3 /usr/bin/python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
FRAMES ?= 200000
SEED ?= 1
RUNS ?= 20
ROUNDS ?= 3
FAULT_ROUNDS ?= 1
KILLS ?= 5
WORLD ?= region
JOBS ?= 1
KIND ?= region-loss
INPUT ?=
FROM ?=
# What Python compiles is kept below this checkout and its .venv: a suite that compiles itself anew costs minutes.
export PYTHONDONTWRITEBYTECODE :=

# Whole files are handed out to four processes: many tests wait for processes of their own more than they compute.
PYTEST_BESIDE = $(BIN)/python -m pytest -q -n 4 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 -o console_output_style=classic

.PHONY: help setup demo test test-all check bench peers sim routes crowd chaos coverage mutation fuzz campaign campaign-groups upgrade interop interop-java interop-kafkajs wan drill browser console openapi client accounts sla-cluster sla-kill sla-package wheels release tf units image golden clean alerts kubernetes lab

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 18

$(STAMP): pyproject.toml constraints.txt hatch_build.py sdk/build_hook.py proto/broker.proto proto/georelay/v1/admin.proto proto/georelay/v1/streams.proto proto/georelay/v1/carried.proto proto/georelay/v1/routes.proto tools/setup.sh
	@bash tools/setup.sh "$(PYTHON)" "$(VENV)"
	@touch $(STAMP)

setup: $(STAMP) ## make .venv and install what is missing (Java 17+, kcat), or say the one line to run
	@bash tools/needs.sh

demo: setup ## run the main job: three regions of three brokers, one broker killed, report printed (INPUT=file)
	@$(BIN)/python -m loadtest.demo $(if $(INPUT),--input "$(INPUT)")

test: setup check ## what must pass before a change goes in: style, types, import rules, every rule tested once (4 to 6 minutes)
	@$(PYTEST_BESIDE) -m "not slow"

test-all: setup check ## all of it: every example, every end-to-end test, foreign clients (nightly, before a release)
	@$(PYTEST_BESIDE) --hypothesis-profile all

check: $(STAMP) ## ruff, mypy --strict, import rules
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: setup ## measure on this machine (loopback): throughput, latency, CPU, memory (COMPARE=commit: log and codec beside it)
	@$(BIN)/python -m loadtest.bench$(if $(COMPARE),.storage --compare $(COMPARE))

peers: setup ## NATS, RabbitMQ, Kafka and georelay side by side, into docs/benchmarks.md (20 min; ROUNDS=3 FAULT_ROUNDS=1 ONLY=word; REGIONS=1: three far regions, root)
	@$(BIN)/python -m loadtest.peers all --rounds $(ROUNDS) --fault-rounds $(FAULT_ROUNDS) $(if $(REGIONS),--regions) $(if $(ONLY),--only $(ONLY))

fuzz: setup ## mutate FRAMES=200000 inputs: wire codec, text protocol, every listener before a sign-in, gossip, links (SEED=1)
	@$(BIN)/python -m tests.fuzz.fuzz_wire --inputs $(FRAMES) --seed $(SEED)
	@$(BIN)/python -m tests.fuzz.fuzz_text --inputs $(FRAMES) --seed $(SEED)
	@$(BIN)/python -m tests.fuzz.fuzz_listeners --inputs $(FRAMES) --seed $(SEED)
	@$(BIN)/python -m tests.fuzz.fuzz_gossip --inputs $(FRAMES) --seed $(SEED)
	@$(BIN)/python -m tests.fuzz.fuzz_links --inputs $(FRAMES) --seed $(SEED)

interop: setup ## foreign Kafka clients, gRPC and REST against a 3x3 mesh, 10,000 records each
	@GEORELAY_INTEROP_RECORDS=10000 GEORELAY_INTEROP_BROKERS=3 GEORELAY_INTEROP_QUIET_S=60 $(BIN)/python -m pytest -q tests/interop

campaign: setup ## kill -9 of leaders and of all regions and link cuts under 1000 records/s (6 min; RUNS=1 of each)
	@for run in $$(seq $(if $(filter command line environment,$(origin RUNS)),$(RUNS),1)); do \
		for name in leader-kill region-restart link-cut; do $(BIN)/georelay load run $$name || exit; done; done

campaign-groups: setup ## consumer groups of every foreign client; members and coordinator come and go
	@$(BIN)/georelay load run groups

interop-kafkajs: setup ## the same for kafkajs alone; says what is missing (KAFKAJS=folder with node_modules)
	@KAFKAJS=$(KAFKAJS) $(BIN)/georelay load run groups-kafkajs

interop-java: setup ## Kafka's own client, tools, Streams, Connect and MirrorMaker 2, which Maven brings (6 min; JARS=folder)
	@$(BIN)/python -m tests.interop.java $(JARS)

upgrade: setup ## replace brokers of an older version one by one under load, count what was kept (FROM=commit; 5 min)
	@$(if $(FROM),,echo "make upgrade: say which version it starts from: make upgrade FROM=COMMIT" >&2; exit 2;) \
		$(BIN)/georelay load run upgrade --commit $(FROM)

sim: $(STAMP) ## play simulated worlds, the same for the same seed (SEED=1 RUNS=20 WORLD=region|mesh|coordinator|homes|geo JOBS=1)
	@$(BIN)/python -m tests.sim --seed $(SEED) --runs $(RUNS) --world $(WORLD) --jobs $(JOBS)

routes: $(STAMP) ## where clients are sent, simulated on the shipping cores: a day of 600 clients, 14 scenarios (hours; HOURS=4 CLIENTS=60)
	@$(BIN)/python -m tests.routes --seed $(SEED) $(if $(HOURS),--hours $(HOURS)) $(if $(CLIENTS),--clients $(CLIENTS))

crowd: $(STAMP) ## what 100,000 clients take at a gateway; ten million lies of clients that change nobody else's answer (VALUES=10000000)
	@$(BIN)/python -m tests.routes.crowd --seed $(SEED) $(if $(VALUES),--values $(VALUES))

chaos: setup ## faults one after the other on real processes under load, histories judged (10 min; RUNS=1 SEED=1 NAMES="chaos disk-lies")
	@for run in $$(seq $(if $(filter command line environment,$(origin RUNS)),$(RUNS),1)); do \
		for name in $(or $(NAMES),chaos chaos-regions disk-lies); do \
		$(BIN)/georelay load run $$name --seed $$(($(SEED) + run - 1)) || exit; done; done

coverage: $(STAMP) ## line and branch coverage of every core file, at least 95 % each
	@nice $(BIN)/python tests/mutation/core_coverage.py

mutation: $(STAMP) ## change the Raft core, the receiver rule and recovery place by place; list what no test notices (long; SAMPLE=05)
	@for part in receiver raft recovery; do \
		nice $(BIN)/python tests/mutation/run_mutants.py $$part $(if $(SAMPLE),--sample $(SAMPLE)) || exit 1; done

drill: $(STAMP) ## lose a region on purpose in a WAN test bed, count what was kept, write it down (KIND=region-loss RUNS=3 LOOPBACK=1)
	@$(BIN)/georelay drill $(KIND) --runs $(if $(filter command line environment,$(origin RUNS)),$(RUNS),3) \
		$(if $(LOOPBACK),--loopback) --out .

wan: $(STAMP) ## tests of the WAN test bed; needs /dev/net/tun and namespaces (root, or user namespaces), says what is missing
	@GEORELAY_WAN=1 $(BIN)/python -m pytest -q -s tests/wan

browser: setup ## the report's page in headless Chromium; says what is missing
	@GEORELAY_BROWSER=1 $(BIN)/python -m pytest -q tests/browser

console: setup ## the console in Chromium before a mesh with real delays: every page, a cut, a move, a failover (4 min); says what is missing
	@command -v npm >/dev/null || { echo "make console: npm is not installed; it brings axe-core" >&2; exit 2; }
	@test -e build/console/node_modules/axe-core/axe.min.js || npm install --silent --no-save --prefix build/console axe-core@4
	@GEORELAY_CONSOLE=1 $(BIN)/python -m pytest -q -s tests/console

openapi: setup ## AsyncAPI document against its schema, schemathesis against every request of the OpenAPI document (5 min; EXAMPLES=10 SEED=1); brings both from npm and PyPI
	@command -v npm >/dev/null || { echo "make openapi: npm is not installed; it brings AsyncAPI's schema" >&2; exit 2; }
	@test -e build/asyncapi/node_modules/@asyncapi/specs/schemas/3.0.0.json || npm install --silent --no-save --prefix build/asyncapi @asyncapi/specs@6
	@$(BIN)/python -m tests.openapi.asyncapi build/asyncapi/node_modules/@asyncapi/specs/schemas/3.0.0.json
	@test -x build/openapi/bin/schemathesis || { $(PYTHON) -m venv build/openapi && build/openapi/bin/pip install -q "schemathesis>=4.32,<5"; }
	@$(BIN)/python -m tests.openapi build/openapi/bin/schemathesis $(or $(EXAMPLES),10) $(SEED)

client: setup ## a client made of the OpenAPI document by a generator from PyPI publishes and reads (a minute)
	@test -x build/client/bin/openapi-python-client || { $(PYTHON) -m venv build/client && build/client/bin/pip install -q "openapi-python-client>=0.29,<1"; }
	@$(BIN)/python -m tests.openapi.generated build/client/bin build/client

accounts: setup ## 1000 records/s in the WAN test bed, a link cut, a kill -9: the report against the clients' books (8 min; SECONDS=300)
	@GEORELAY_ACCOUNTS=1 $(BIN)/python -m pytest -q tests/accounts
	@$(BIN)/georelay load run accounts --seconds $(if $(filter command line environment,$(origin SECONDS)),$(SECONDS),300)

sla-cluster: setup ## the report's jobs on two executors, on a cluster that loses a worker, by spark-submit (minutes)
	@GEORELAY_SLA_CLUSTER_RUNS=1 $(BIN)/python -m pytest -q -s tests/sla_cluster

sla-kill: setup ## kill -9 the live view of the traces KILLS=5 times, each time in the middle of its work, then count (minutes)
	@GEORELAY_SLA_KILLS=$(KILLS) $(BIN)/python -m pytest -q tests/sla/spark/test_sla_live.py

sla-package: $(STAMP) ## what spark-submit ships to a cluster without our code, into build/sla: zip and packed environment
	@bash tools/sla_package.sh $(BIN)/python build/sla

wheels: $(STAMP) ## build the wheels of server and client into dist/
	@$(BIN)/python -m hatchling build -t wheel -d dist
	@cd sdk && ../$(BIN)/python -m hatchling build -t wheel -d ../dist

release: $(STAMP) ## dist/georelay-<version>.tar.gz: wheels, all they need for an install without network, SBOM (SLA=1: the report's too)
	@$(BIN)/python -m deploy.release $(if $(SLA),--sla)

units: ## systemd's own judgement of the units: no warning, exposure 2.5 at most; says what is missing
	@deploy/systemd/check.sh

lab: $(STAMP) ## deploy/ansible on hosts with systemd made here, operations under load (REGIONS=3 STEPS=.. RATE=..; root); says what is missing
	@$(BIN)/python -m deploy.lab $(if $(REGIONS),--regions $(REGIONS)) $(if $(RATE),--rate $(RATE)) $(if $(STEPS),--steps "$(STEPS)") $(if $(RELEASE),--release $(RELEASE)) $(if $(NEXT),--next $(NEXT))

tf: $(STAMP) ## deploy/terraform against moto as AWS: made, read back, grown, shrunk, ended (10 min; MIRROR=folder of providers)
	@MIRROR="$(MIRROR)" bash tools/tf_needs.sh $(PYTHON)
	@GEORELAY_TF=1 TF_CLI_CONFIG_FILE=$(CURDIR)/build/tf/terraformrc build/tf/venv/bin/python -m pytest -q -s -x -c /dev/null --rootdir . --confcutdir tests/terraform tests/terraform

image: ## images of broker, gateway, Prometheus and sla from dist/ (BASE=image BUILDER=podman); says what is missing
	@deploy/docker/build.sh

alerts: setup ## Prometheus judges the alert rules, tests them, and drills some on a mesh that is wounded (4 min)
	@PYTHON=$(BIN)/python deploy/monitoring/check.sh

kubernetes: ## hold what kubectl would apply against the published schemas (VALIDATE=kubernetes-validate); says what is missing
	@VALIDATE=$(VALIDATE) deploy/kubernetes/check.sh

golden: $(STAMP) ## rewrite golden transcripts with what the code says now; review the diff
	@$(BIN)/python -m pytest -q tests --rewrite -k "transcript"

clean: ## remove the venv, caches and build output
	@rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache region/api/_pb sdk/georelay/_pb
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
