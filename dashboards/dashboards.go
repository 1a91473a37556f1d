// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

// Package dashboards has the Grafana dashboards and the Prometheus alerts of a cluster. The files are templates:
// words between at-signs are replaced by the values of one cluster, so that several clusters under one Prometheus do
// not mix their metrics.
package dashboards

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"
)

//go:embed *.json alerts.yaml
var files embed.FS

const alertsFile = "alerts.yaml"

// Scope is the cluster of the dashboards and alerts.
type Scope struct {
	Namespace, Cluster string
	// Job is Prometheus' job label of the cluster's nodes.
	Job string
	// Nodes is the wanted number of nodes.
	Nodes int32
}

func (s Scope) replacer(more ...string) *strings.Replacer {
	return strings.NewReplacer(append([]string{
		"@NAMESPACE@", s.Namespace, "@CLUSTER@", s.Cluster, "@JOB@", s.Job, "@NODES@", strconv.Itoa(int(s.Nodes)),
	}, more...)...)
}

// Rules returns the spec of a PrometheusRule.
func Rules(scope Scope) (map[string]any, error) {
	data, err := files.ReadFile(alertsFile)
	if err != nil {
		return nil, fmt.Errorf("reading the alerts: %w", err)
	}
	text, err := yaml.YAMLToJSON([]byte(scope.replacer().Replace(string(data))))
	if err != nil {
		return nil, fmt.Errorf("reading the alerts: %w", err)
	}
	var spec map[string]any
	if err := json.Unmarshal(text, &spec); err != nil {
		return nil, fmt.Errorf("reading the alerts: %w", err)
	}
	return spec, nil
}

// Boards returns the dashboards by file name.
func Boards(scope Scope) (map[string]string, error) {
	list, err := files.ReadDir(".")
	if err != nil {
		return nil, fmt.Errorf("listing the dashboards: %w", err)
	}
	out := map[string]string{}
	for _, file := range list {
		if file.Name() == alertsFile {
			continue
		}
		data, err := files.ReadFile(file.Name())
		if err != nil {
			return nil, fmt.Errorf("reading the dashboard %s: %w", file.Name(), err)
		}
		out[scope.Cluster+"-"+file.Name()] = scope.replacer("@UID@", uid(scope, file.Name())).Replace(string(data))
	}
	return out, nil
}

// uid returns a dashboard's identity in Grafana, which takes 40 characters. The same dashboard of two clusters must
// have two identities.
func uid(scope Scope, file string) string {
	sum := sha256.Sum256([]byte(scope.Namespace + "/" + scope.Cluster + "/" + file))
	return "posthorn-" + hex.EncodeToString(sum[:12])
}
