// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

// Package broker is the operator's typed client of the broker's management HTTP API.
//
// Paths and JSON are those of RabbitMQ's management plugin; the maintenance resource is Posthorn's own. Package
// brokertest has a server with the same behaviour, for tests.
package broker
