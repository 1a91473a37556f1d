// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

// Package dashboards has the Grafana dashboards and the Prometheus alerts of a cluster. The files are templates:
// words between at-signs are replaced by the values of one cluster, so that several clusters under one Prometheus do
// not mix their metrics.
package dashboards

import (
	"bytes"
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

const (
	alertsFile = "alerts.yaml"
	// byNameFile needs the metrics of single queues.
	byNameFile = "queue-by-name.json"
)

// Scope is the cluster of the dashboards and alerts.
type Scope struct {
	Namespace, Cluster string
	// Job is Prometheus' job label of the cluster's nodes.
	Job string
	// Nodes is the wanted number of nodes.
	Nodes int32
	// Queues: Prometheus has the metrics of single queues.
	Queues bool
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
		if file.Name() == alertsFile || file.Name() == byNameFile && !scope.Queues {
			continue
		}
		data, err := files.ReadFile(file.Name())
		if err != nil {
			return nil, fmt.Errorf("reading the dashboard %s: %w", file.Name(), err)
		}
		text := scope.replacer("@UID@", uid(scope, file.Name())).Replace(string(data))
		if file.Name() == byNameFile {
			if text, err = withVariables(text, queueVariables(fmt.Sprintf("namespace=%q,job=%q", scope.Namespace, scope.Job))); err != nil {
				return nil, fmt.Errorf("writing the dashboard %s: %w", file.Name(), err)
			}
		}
		out[scope.Cluster+"-"+file.Name()] = text
	}
	return out, nil
}

// variable is a variable of a Grafana dashboard, whose values come from a query.
type variable struct {
	Name       string            `json:"name"`
	Label      string            `json:"label"`
	Type       string            `json:"type"`
	Query      string            `json:"query"`
	Regex      string            `json:"regex,omitempty"`
	Datasource map[string]string `json:"datasource,omitempty"`
	Hide       int               `json:"hide"`
	Refresh    int               `json:"refresh,omitempty"`
	Sort       int               `json:"sort,omitempty"`
	IncludeAll bool              `json:"includeAll,omitempty"`
	AllValue   string            `json:"allValue,omitempty"`
	Multi      bool              `json:"multi,omitempty"`
}

// fromPrometheus returns a variable that a query to the chosen Prometheus fills whenever the time range changes.
func fromPrometheus(name, label, query string) variable {
	return variable{
		Name: name, Label: label, Type: "query", Query: query, Datasource: map[string]string{"type": "prometheus", "uid": "${datasource}"},
		Refresh: 2, Sort: 1, IncludeAll: true, AllValue: ".*", Multi: true,
	}
}

// chosen are the matchers of the variables. Outside Kubernetes, metrics have no namespace, and ".*" matches them.
const chosen = `namespace=~"$namespace",job=~"$cluster"`

// variables returns the variables of a portable dashboard, without the one for the data source.
func variables(file string) []variable {
	identity := "rabbitmq_identity_info{" + chosen + "}"
	node := fromPrometheus("node", "Node", "query_result("+identity+")")
	// Metrics have the address of a node, and its name is shown.
	node.Regex = `/instance="(?<value>[^"]+)".*rabbitmq_node="(?<text>[^"]+)"/`
	list := []variable{
		fromPrometheus("namespace", "Namespace", "label_values(rabbitmq_identity_info, namespace)"),
		fromPrometheus("cluster", "Cluster", `label_values(rabbitmq_identity_info{namespace=~"$namespace"}, job)`),
		node,
	}
	if file == byNameFile {
		list = append(list, queueVariables(chosen)...)
	}
	return list
}

// queueVariables returns the variables for the queues that matchers select.
func queueVariables(matchers string) []variable {
	metric := "rabbitmq_detailed_queue_messages{" + matchers
	return []variable{
		fromPrometheus("vhost", "Virtual host", "label_values("+metric+"}, vhost)"),
		fromPrometheus("queue", "Queue", "label_values("+metric+`,vhost=~"$vhost"}, queue)`),
	}
}

// withVariables returns a dashboard that has the variables after the one for the data source.
func withVariables(text string, list []variable) (string, error) {
	var board map[string]any
	if err := json.Unmarshal([]byte(text), &board); err != nil {
		return "", fmt.Errorf("reading a dashboard: %w", err)
	}
	datasource := variable{Name: "datasource", Label: "Data source", Type: "datasource", Query: "prometheus"}
	board["templating"] = map[string]any{"list": append([]variable{datasource}, list...)}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", " ")
	if err := encoder.Encode(board); err != nil {
		return "", fmt.Errorf("writing a dashboard: %w", err)
	}
	return out.String(), nil
}

// Portable returns one set of dashboards for all clusters, by file name, with variables for namespace, cluster, node and
// queue. Grafana imports them as they are.
func Portable() (map[string]string, error) {
	list, err := files.ReadDir(".")
	if err != nil {
		return nil, fmt.Errorf("listing the dashboards: %w", err)
	}
	replacer := strings.NewReplacer(
		`namespace=\"@NAMESPACE@\",job=\"@JOB@\"`, `namespace=~\"$namespace\",job=~\"$cluster\",instance=~\"$node\"`,
		" (@NAMESPACE@/@CLUSTER@)", "", "Wanted: @NODES@.", "")
	out := map[string]string{}
	for _, file := range list {
		if file.Name() == alertsFile {
			continue
		}
		data, err := files.ReadFile(file.Name())
		if err != nil {
			return nil, fmt.Errorf("reading the dashboard %s: %w", file.Name(), err)
		}
		id := "posthorn-" + strings.TrimSuffix(file.Name(), ".json")
		text, err := withVariables(strings.ReplaceAll(replacer.Replace(string(data)), "@UID@", id), variables(file.Name()))
		if err != nil {
			return nil, fmt.Errorf("writing the dashboard %s: %w", file.Name(), err)
		}
		out[file.Name()] = text
	}
	return out, nil
}

// uid returns a dashboard's identity in Grafana, which takes 40 characters. The same dashboard of two clusters must
// have two identities.
func uid(scope Scope, file string) string {
	sum := sha256.Sum256([]byte(scope.Namespace + "/" + scope.Cluster + "/" + file))
	return "posthorn-" + hex.EncodeToString(sum[:12])
}
