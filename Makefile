# `make help` lists the targets. Each target installs its requirements: missing Debian packages with apt-get, and built programs in
# the cache $POSTHORN_CACHE (default ~/.cache/posthorn). A running local cluster uses /var/lib/posthorn-lab.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

export CACHE ?= $(or $(POSTHORN_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/posthorn)
export CARGO_TARGET_DIR ?= $(CURDIR)/broker/target
CARGO := cargo
BROKER := --manifest-path broker/Cargo.toml
NODES ?= 3
# The flags of hack/cluster/build and hack/test, so that what they share is compiled once.
GO_FLAGS := -gcflags=all=-dwarf=false -ldflags "-s -w"

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 22

##@ First steps
.PHONY: demo demo-down demo-streams test
demo: ## build and start a replicated broker on a local Kubernetes, and cut off a node under load
	@hack/demo

demo-down: ## remove the demo and the local cluster
	@hack/demo-down

demo-streams: ## kill the leader of a super stream under load, on three nodes in network namespaces
	@hack/demo-streams

test: ## run all tests: unit, simulation, conformance, envtest, local cluster
	@hack/test all

##@ Parts of the test
.PHONY: test-unit test-sim test-conformance test-parity test-browser test-faults test-envtest test-e2e
test-unit: ## run the unit tests of broker and operator
	@hack/test unit

test-sim: ## run simulated clusters under a fixed set of seeds
	@hack/test sim

test-conformance: ## run clients and test suites of other projects; test/conformance/run NAME runs one
	@hack/test conformance

test-browser: ## test the web UI in Chromium; UPDATE=1 replaces the stored pictures
	@hack/test browser

test-parity: ## compare with other brokers, some 30 minutes, and write docs/reference/parity.md; SUITE=name for one
	@test/conformance/parity $(SUITE)

test-faults: ## test real brokers in network namespaces: partitions, kills, full and lost disks under load
	@hack/test faults

test-envtest: ## test the operator against a real API server
	@hack/test envtest

test-e2e: ## test pods on the local cluster
	@hack/test e2e

.PHONY: sim sim-selfcheck
sim: ## run one seed of the simulator (make sim SEED=7) or many (make sim SEEDS=1000)
	@$(CARGO) build -q --profile sim $(BROKER) -p sim
	@$(CARGO_TARGET_DIR)/sim/sim $(if $(SEEDS),--seeds $(SEEDS),--seed $(or $(SEED),1))

.PHONY: bench bench-peers bench-storage faults
bench: ## measure messages: CPU, rate, latency, bytes; PEERS=all or names for other brokers, ROUNDS=n, WORKLOAD=name (test/bench/run -help)
	@test/bench/run $(if $(ROUNDS),-rounds $(ROUNDS)) $(if $(PEERS),-peers $(PEERS)) -json $(CARGO_TARGET_DIR)/messages.json \
	  -against docs/explanation/messages.json $(WORKLOAD)

bench-peers: ## install other brokers for bench PEERS=... into the cache: RabbitMQ, mosquitto, NATS, HiveMQ CE, Artemis
	@test/bench/peers/install $(PEERS)

bench-storage: ## measure storage, about 15 minutes: group commit, restart, depth, disk, idle groups, streams; SCENARIO=name for one
	@$(CARGO) build -q --release --locked $(BROKER) -p posthorn -p benches
	@$(if $(SCENARIO),,$(CARGO_TARGET_DIR)/release/group-commit $(CARGO_TARGET_DIR)/group-commit.data $(CARGO_TARGET_DIR)/group-commit.json)
	@POSTHORN=$(CARGO_TARGET_DIR)/release/posthorn test/bench/storage/run -json $(CARGO_TARGET_DIR)/storage.json \
	  -svg $(CARGO_TARGET_DIR)/storage.svg $(SCENARIO)

.PHONY: hot-path
hot-path: ## compare the instructions per message on the hot path with the baseline
	@hack/hot-path

.PHONY: fuzz
fuzz: ## run libFuzzer on external input: make fuzz TARGET=session-amqp091 SECONDS=60
	@hack/fuzz "$(TARGET)" "$(or $(SECONDS),60)"

faults: ## cause random faults by SEED=n, one or two at a time, for SECONDS=600
	@PROFILE=release test/faults/run -seed $(or $(SEED),1) -duration $(or $(SECONDS),600)s mixed

# The build with planted bugs has its own name, because it starts a process for each bug. It has no assertions, because
# the oracle must catch each bug.
sim-selfcheck: ## plant one bug at a time; the simulator must catch each within SEEDS=2000 seeds
	@$(CARGO) build -q --release $(BROKER) -p sim --features planted
	@cp $(CARGO_TARGET_DIR)/release/sim $(CARGO_TARGET_DIR)/release/sim-planted
	@$(CARGO_TARGET_DIR)/release/sim-planted --selfcheck --seeds $(or $(SEEDS),2000)

##@ Build
.PHONY: build broker operator kubectl-plugin demo-client image
build: broker operator kubectl-plugin demo-client ## build bin/posthorn, bin/posthorn-operator, bin/kubectl-posthorn, bin/demo-client

# The profile of the broker. The tests use dev, which the unit tests build anyway.
PROFILE ?= release
BUILT = $(CARGO_TARGET_DIR)/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))

broker:
	@mkdir -p bin
	@echo "building the broker ($(PROFILE))"
	@$(CARGO) build $(if $(VERBOSE),,-q) --profile $(PROFILE) --locked $(BROKER) -p posthorn
	@cp $(BUILT)/posthorn bin/posthorn

.PHONY: next
next: ## build the broker of the next version in bin/next, for tests of upgrades
	@mkdir -p bin/next
	@$(CARGO) build -q --profile $(PROFILE) --locked $(BROKER) -p posthorn --example next
	@cp $(BUILT)/examples/next bin/next/posthorn

operator:
	@mkdir -p bin
	@echo "building the operator"
	@CGO_ENABLED=0 go build $(GO_FLAGS) -o bin/posthorn-operator ./cmd

kubectl-plugin: ## build the plugin of kubectl, bin/kubectl-posthorn
	@mkdir -p bin
	@CGO_ENABLED=0 go build $(GO_FLAGS) -o bin/kubectl-posthorn ./cmd/kubectl-posthorn

demo-client:
	@mkdir -p bin
	@cd test/demoapp && CGO_ENABLED=0 go build $(GO_FLAGS) -o ../../bin/demo-client .

image: build ## build OCI images of all three in bin/images, without a daemon
	@hack/image/build bin bin/images

.PHONY: release docs-site
release: ## build a release in dist: static programs, Debian packages, OCI images, chart, manifests, SBOMs, for REGISTRY=registry.example/team
	@REGISTRY="$(REGISTRY)" hack/release/run dist

docs-site: ## build the documentation site, with search, in target/site
	@hack/docs-site

.PHONY: push
push: ## push the images of make image to REGISTRY=registry.example/team, with TAG=dev and the credentials of docker login
	@: $(or $(REGISTRY),$(error set REGISTRY, for example make push REGISTRY=registry.example/team))
	@cd hack/image && go run . push "$(REGISTRY)" "$(or $(TAG),dev)" $(foreach i,posthorn posthorn-operator demo-client,$(CURDIR)/bin/images/$(i).tar)

##@ Cluster
.PHONY: cluster-up cluster-down install deploy
cluster-up: ## start a local Kubernetes with NODES=3 real nodes
	@hack/cluster-up NODES=$(NODES)

cluster-down: ## remove the local Kubernetes
	@hack/cluster-down

install: ## install the CRDs into the current cluster
	@hack/kubectl apply -k config/crd

deploy: ## install the operator for all namespaces into the current cluster, with images from REGISTRY=registry.example/team and TAG=dev
	@hack/kubectl kustomize config/cluster-wide | hack/with-registry "$(REGISTRY)" "$(TAG)" | hack/kubectl apply -f -

##@ Code
.PHONY: generate lint fmt audit
# It is built into Go's cache. Its module is its own, so that the operator has no dependencies of a generator.
CONTROLLER_GEN = "$$(cd hack/controller-gen && go tool -n controller-gen)"
generate: ## generate deep copies, CRDs and RBAC from the Go types, and the chart's copies of config
	$(CONTROLLER_GEN) object:headerFile=hack/boilerplate.go.txt paths=./api/...
	$(CONTROLLER_GEN) crd rbac:roleName=posthorn-operator paths=./api/... paths=./controllers/... output:crd:dir=config/crd/bases output:rbac:dir=config/rbac
	@go run ./hack/podtemplate config/crd/bases/posthorn.io_brokerclusters.yaml
	@hack/chart

lint: ## check formats, lints, prose, shell syntax and generated files
	@hack/lint

fmt: ## format all code
	@cd broker && $(CARGO) fmt
	@gofmt -w $$(git ls-files '*.go')

audit: ## check licences, bans and known vulnerabilities of the dependencies
	@hack/audit
