//go:build tools

// Package prometheus pins Prometheus for hack/e2e prometheus: it is a main package, so the import below only keeps
// its modules in go.mod.
package prometheus

import _ "github.com/prometheus/prometheus/cmd/prometheus"
