//go:build tools

// Package operator pins the Prometheus operator for hack/e2e prometheus: its programs are main packages, so the
// imports below only keep their modules in go.mod. They do not build with the libraries that the newest Prometheus
// needs, which is therefore in another module.
package operator

import (
	_ "github.com/prometheus-operator/prometheus-operator/cmd/operator"
	_ "github.com/prometheus-operator/prometheus-operator/cmd/prometheus-config-reloader"
)
