// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"

	"posthorn.io/posthorn/dashboards"
)

// listed returns the families in dashboards/exported.txt, with their source.
func listed(t *testing.T) map[string]string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "dashboards", "exported.txt"))
	if err != nil {
		t.Fatal(err)
	}
	families := map[string]string{}
	for _, line := range strings.Split(string(data), "\n") {
		if source, name, found := strings.Cut(line, " "); found && source != "#" {
			families[name] = source
		}
	}
	return families
}

// queries returns every query of dashboards and alerts, with its location.
func queries(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for name, rule := range readRules(t) {
		out["alert "+name] = rule.Expr
	}
	boards, err := dashboards.Boards(scope)
	if err != nil {
		t.Fatal(err)
	}
	portable, err := dashboards.Portable()
	if err != nil {
		t.Fatal(err)
	}
	for file, text := range portable {
		boards["portable/"+file] = text
	}
	for file, text := range boards {
		var board struct {
			Panels []struct {
				Title   string `json:"title"`
				Targets []struct {
					Expr, RefID string
				} `json:"targets"`
			} `json:"panels"`
		}
		if err := json.Unmarshal([]byte(text), &board); err != nil {
			t.Fatal(err)
		}
		for _, panel := range board.Panels {
			if len(panel.Targets) == 0 {
				t.Errorf("%s: panel %q shows nothing", file, panel.Title)
			}
			for _, target := range panel.Targets {
				out[file+": "+panel.Title+" "+target.RefID] = target.Expr
			}
		}
	}
	return out
}

// TestQueriesUseExportedMetrics finds misspelt and removed metrics, and queries that include other clusters.
func TestQueriesUseExportedMetrics(t *testing.T) {
	families, used := listed(t), map[string]bool{}
	for place, query := range queries(t) {
		// Grafana inserts a duration that fits the scrape interval.
		expr, err := promParser.ParseExpr(strings.ReplaceAll(query, "$__rate_interval", "5m"))
		if err != nil {
			t.Errorf("%s: %v", place, err)
			continue
		}
		parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
			selector, isSelector := node.(*parser.VectorSelector)
			if !isSelector {
				return nil
			}
			// A histogram has a series for each bucket.
			family := strings.TrimSuffix(selector.Name, "_bucket")
			used[family] = true
			source, known := families[family]
			if !known {
				t.Errorf("%s: nobody exports %q", place, family)
			}
			if missing := unscoped(selector.LabelMatchers, source); missing != "" {
				t.Errorf("%s: %s is not limited by %s", place, selector.Name, missing)
			}
			return nil
		})
	}
	if len(used) < 10 {
		t.Errorf("%d families are used", len(used))
	}
}

// unscoped names the label that a selector lacks to match one cluster only.
func unscoped(matchers []*labels.Matcher, source string) string {
	wanted := map[string]string{"namespace": scope.Namespace, "job": scope.Job}
	if source == "operator" {
		wanted = map[string]string{"brokercluster_namespace": scope.Namespace, "brokercluster": scope.Cluster}
	}
	variables := map[string]string{"namespace": "$namespace", "job": "$cluster"}
	for _, matcher := range matchers {
		one := matcher.Type == labels.MatchEqual && wanted[matcher.Name] == matcher.Value
		chosen := matcher.Type == labels.MatchRegexp && variables[matcher.Name] == matcher.Value
		if one || chosen {
			delete(wanted, matcher.Name)
		}
	}
	for name := range wanted {
		return name
	}
	return ""
}
