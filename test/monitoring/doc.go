// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

// Package monitoring tests the dashboards and alerts with Prometheus' own parser and engine. It is a
// module of its own, so that the operator does not get Prometheus' dependencies. Of Prometheus only the
// query engine is built, not its storage: promtool would bring in several cloud providers' libraries.
package monitoring
