// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

// Package brokercluster reconciles BrokerClusters: it creates the child objects of each cluster, observes its nodes,
// and changes one thing at a time.
//
// A reconciliation (reconciliation.go) has three parts, which depend on each other in one direction only:
//
//   - inputs (inputs.go): the object as it was read, the Secret that it refers to, the options of the operator and
//     the time. Nothing changes them during a reconciliation.
//   - observed (observed.go): the child objects as the API server returned them, and the brokers' answers.
//   - decided (decided.go): the decisions, the Events and the status that follow from the other two.
//
// The functions that decide are pure: they take inputs and observed, and return or fill decided. The files decide_*.go
// have a truth table each, which their tests repeat. Phases, which write to the API server or to a broker, are methods
// of reconciliation: they carry out a decision and record the answer in observed.
//
// One reconciliation, in order:
//
//  1. Reconciler.Reconcile (reconciler.go) reads the object and starts a reconciliation.
//  2. load (reconciliation.go) reads the StatefulSet, volumes and pods. From them follow the image and the version
//     (image.go, decide_version.go), the protocols (protocols.go), the numbers of nodes and pods (size.go,
//     decide_scale.go), and the ports and certificates by which nodes are reached (access.go).
//  3. applyChildren (reconciliation.go) brings every child object to the spec; children.go has what they share. A
//     paused cluster skips this step. In order: ServiceAccount (service_account.go), credentials (default_user.go,
//     access_secret_owners.go), certificates (internode.go, operator_certificate.go, serving.go, cert_manager.go,
//     own_certificate.go), ConfigMaps (config_map.go), Services (services.go), StatefulSet (stateful_set.go, with
//     the pod template of pod_template.go, serving_template.go and guard_template.go, after the check of
//     config_check.go), volumes (volumes.go), NetworkPolicy (network_policy.go) and the objects for Prometheus
//     (monitoring.go, scraping.go, optional.go).
//  4. recordTrust (trust.go) records how the operator verifies the nodes.
//  5. observe (observe.go) reads pods and volumes again and queries every node.
//  6. ensureDisruptionBudget (disruption_budget.go) allows evictions only while no queue needs a node.
//  7. operate (reconciliation.go) changes at most one node: it recovers a lost majority if the spec names the loss
//     (recovery.go, decide_recovery.go, lost_volumes.go), forgets or removes one (scale.go, moves.go,
//     decide_scale.go), or drains and replaces a pod (roll.go, decide_roll.go, decide_step.go). When all nodes are up
//     to date it rebalances leaders (scale.go), imports definitions (bootstrap.go), enables feature flags (flags.go)
//     and deletes unused settings (config_map.go).
//  8. decideStatus (status.go, with step.go, lifecycle_status.go, lost_queues.go, spread.go and
//     decide_summary.go) fills the status. Reconcile then records the Events and writes the status, once.
package brokercluster
