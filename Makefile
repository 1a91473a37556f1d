# `make help` lists the targets. Everything installs what it needs: missing Debian packages with apt-get, and built programs in
# the cache $POSTHORN_CACHE (default ~/.cache/posthorn). While a local cluster is up it uses /var/lib/posthorn-lab.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

export CACHE ?= $(or $(POSTHORN_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/posthorn)
export CARGO_TARGET_DIR ?= $(CURDIR)/broker/target
CARGO := cargo
BROKER := --manifest-path broker/Cargo.toml
NODES ?= 3
GO_FLAGS := -trimpath -ldflags "-s -w"

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 22

##@ The two that a newcomer needs
.PHONY: demo demo-down test
demo: ## from nothing to a replicated broker on a local Kubernetes that survives a node cut off under load
	@hack/demo

demo-down: ## remove the demo and the local cluster
	@hack/demo-down

test: ## everything: unit, simulation, conformance, envtest, local cluster
	@hack/test all

##@ Parts of the test
.PHONY: test-unit test-sim test-conformance test-faults test-envtest test-e2e
test-unit: ## broker and operator unit tests
	@hack/test unit

test-sim: ## simulated clusters, a bounded set of seeds
	@hack/test sim

test-conformance: ## other people's clients and their suites; one of them: test/conformance/run NAME
	@hack/test conformance

test-faults: ## real brokers in network namespaces: partitions, kills, full and lost disks under load
	@hack/test faults

test-envtest: ## the operator against a real API server
	@hack/test envtest

test-e2e: ## pods on the local cluster
	@hack/test e2e

.PHONY: sim sim-selfcheck
sim: ## one simulated run: make sim SEED=7; many: make sim SEEDS=1000
	@$(CARGO) build -q --release $(BROKER) -p sim
	@$(CARGO_TARGET_DIR)/release/sim $(if $(SEEDS),--seeds $(SEEDS),--seed $(or $(SEED),1))

.PHONY: bench bench-peers bench-storage faults
bench: ## what messages cost: CPU, rate, latency, bytes; PEERS=all or names for others beside us, ROUNDS=n, WORKLOAD=name (test/bench/run -help)
	@test/bench/run $(if $(ROUNDS),-rounds $(ROUNDS)) $(if $(PEERS),-peers $(PEERS)) -json $(CARGO_TARGET_DIR)/messages.json \
	  -against docs/explanation/messages.json $(WORKLOAD)

bench-peers: ## other people's brokers for bench PEERS=..., into the cache: RabbitMQ, mosquitto, NATS, HiveMQ CE, Artemis
	@test/bench/peers/install $(PEERS)

bench-storage: ## what storage costs, in some ten minutes: group commit, restart, depth, disk, idle groups; SCENARIO=name for one
	@$(CARGO) build -q --release --locked $(BROKER) -p posthorn -p benches
	@$(if $(SCENARIO),,$(CARGO_TARGET_DIR)/release/group-commit $(CARGO_TARGET_DIR)/group-commit.data $(CARGO_TARGET_DIR)/group-commit.json)
	@POSTHORN=$(CARGO_TARGET_DIR)/release/posthorn test/bench/storage/run -json $(CARGO_TARGET_DIR)/storage.json \
	  -svg $(CARGO_TARGET_DIR)/storage.svg $(SCENARIO)

.PHONY: hot-path
hot-path: ## instructions per message on the hot path, against what they were
	@hack/hot-path

.PHONY: fuzz
fuzz: ## libFuzzer on what comes from outside: make fuzz TARGET=session-amqp091 SECONDS=60
	@hack/fuzz "$(TARGET)" "$(or $(SECONDS),60)"

faults: ## faults drawn by SEED=n, one or two at a time, for SECONDS=600
	@PROFILE=release test/faults/run -seed $(or $(SEED),1) -duration $(or $(SECONDS),600)s mixed

# The build with bugs gets a name of its own: each bug runs in a process that this program starts.
sim-selfcheck: ## plants bugs one at a time; each must be caught within SEEDS=2000 seeds
	@$(CARGO) build -q --release $(BROKER) -p sim --features planted
	@cp $(CARGO_TARGET_DIR)/release/sim $(CARGO_TARGET_DIR)/release/sim-planted
	@$(CARGO_TARGET_DIR)/release/sim-planted --selfcheck --seeds $(or $(SEEDS),2000)

##@ Build
.PHONY: build broker operator demo-client image
build: broker operator demo-client ## bin/posthorn, bin/posthorn-operator, bin/demo-client

broker:
	@mkdir -p bin
	@echo "building the broker (release)"
	@$(CARGO) build $(if $(VERBOSE),,-q) --release --locked $(BROKER) -p posthorn
	@cp $(CARGO_TARGET_DIR)/release/posthorn bin/posthorn

.PHONY: next
next: ## the broker of the version after this one, in bin/next, for tests of upgrades
	@mkdir -p bin/next
	@$(CARGO) build -q --release --locked $(BROKER) -p posthorn --features next
	@cp $(CARGO_TARGET_DIR)/release/posthorn bin/next/posthorn
	@$(CARGO) build -q --release --locked $(BROKER) -p posthorn

operator:
	@mkdir -p bin
	@echo "building the operator"
	@CGO_ENABLED=0 go build $(GO_FLAGS) -o bin/posthorn-operator ./cmd

demo-client:
	@mkdir -p bin
	@cd test/demoapp && CGO_ENABLED=0 go build $(GO_FLAGS) -o ../../bin/demo-client .

image: build ## OCI images of all three in bin/images, no daemon needed
	@hack/image/build bin bin/images

.PHONY: push
push: ## the images of make image into REGISTRY=registry.example/team, with TAG=dev; credentials as docker login keeps them
	@: $(or $(REGISTRY),$(error set REGISTRY, for example make push REGISTRY=registry.example/team))
	@cd hack/image && go run . push "$(REGISTRY)" "$(or $(TAG),dev)" $(foreach i,posthorn posthorn-operator demo-client,$(CURDIR)/bin/images/$(i).tar)

##@ Cluster
.PHONY: cluster-up cluster-down install deploy
cluster-up: ## a local Kubernetes with NODES=3 real nodes
	@hack/cluster-up NODES=$(NODES)

cluster-down: ## remove it
	@hack/cluster-down

install: ## the CRDs into the current cluster
	@hack/kubectl apply -k config/crd

deploy: ## the operator and all it needs into the current cluster; images from REGISTRY=registry.example/team with TAG=dev
	@hack/kubectl kustomize config/default | hack/with-registry "$(REGISTRY)" "$(TAG)" | hack/kubectl apply -f -

##@ Code
.PHONY: generate lint fmt audit
generate: ## deep copies, CRDs, RBAC from the Go types; the chart's copies of config
	go tool controller-gen object:headerFile=hack/boilerplate.go.txt paths=./api/...
	go tool controller-gen crd rbac:roleName=posthorn-operator paths=./api/... paths=./controllers/... output:crd:dir=config/crd/bases output:rbac:dir=config/rbac
	@go run ./hack/podtemplate config/crd/bases/posthorn.io_brokerclusters.yaml
	@hack/chart

lint: ## rustfmt, clippy, cargo doc, gofmt, vet, golangci-lint, prose, shell syntax; generated files are up to date
	@hack/lint

fmt: ## format everything
	@cd broker && $(CARGO) fmt
	@gofmt -w $$(git ls-files '*.go')

audit: ## licences, bans and known vulnerabilities of the dependencies
	@hack/audit
