// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

// Package monitoring tests the dashboards and alerts with Prometheus' own parser and engine. It is a module of its
// own, so that the operator does not depend on Prometheus. It builds only Prometheus' query engine, not its storage:
// promtool would add the libraries of several cloud providers.
package monitoring
