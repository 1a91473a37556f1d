// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"sigs.k8s.io/yaml"
)

// suite is the part of promtool's format for rule tests that these tests need. Labels and annotations that a test
// does not name are not compared.
type suite struct {
	EvaluationInterval string `json:"evaluation_interval"`
	Tests              []struct {
		Name          string   `json:"name"`
		Interval      string   `json:"interval"`
		InputSeries   []series `json:"input_series"`
		AlertRuleTest []struct {
			EvalTime  string          `json:"eval_time"`
			Alertname string          `json:"alertname"`
			ExpAlerts []expectedAlert `json:"exp_alerts"`
		} `json:"alert_rule_test"`
	} `json:"tests"`
}

type series struct {
	Series string `json:"series"`
	Values string `json:"values"`
}

type expectedAlert struct {
	ExpLabels      map[string]string `json:"exp_labels"`
	ExpAnnotations map[string]string `json:"exp_annotations"`
}

func readSuite(t *testing.T) suite {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var s suite
	if err := yaml.UnmarshalStrict(data, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

func duration(t *testing.T, text string) time.Duration {
	t.Helper()
	d, err := model.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(d)
}

// only returns the entries whose keys another map has too.
func only(all, named map[string]string) map[string]string {
	out := map[string]string{}
	for name := range named {
		if value, there := all[name]; there {
			out[name] = value
		}
	}
	return out
}

// words formats labels or annotations in order.
func words(all map[string]string) string {
	var out []string
	for name, value := range all {
		out = append(out, fmt.Sprintf("%s=%q", name, value))
	}
	sort.Strings(out)
	return strings.Join(out, " ")
}

func TestAlertsFireAsDescribed(t *testing.T) {
	rules := readRules(t)
	s := readSuite(t)
	fired, silent := map[string]bool{}, map[string]bool{}
	for _, test := range s.Tests {
		t.Run(test.Name, func(t *testing.T) {
			db := load(t, test.InputSeries, duration(t, test.Interval))
			for _, want := range test.AlertRuleTest {
				rule, known := rules[want.Alertname]
				if !known {
					t.Fatalf("there is no alert %s", want.Alertname)
				}
				got := rule.firing(t, db, duration(t, s.EvaluationInterval), duration(t, want.EvalTime))
				if len(got) != len(want.ExpAlerts) {
					t.Errorf("%s at %s: %d alerts fire, want %d: %v", want.Alertname, want.EvalTime, len(got), len(want.ExpAlerts), got)
					continue
				}
				fired[want.Alertname] = fired[want.Alertname] || len(got) > 0
				silent[want.Alertname] = silent[want.Alertname] || len(got) == 0
				for i, expected := range want.ExpAlerts {
					if a, b := words(only(got[i].labels, expected.ExpLabels)), words(expected.ExpLabels); a != b {
						t.Errorf("%s at %s: labels %s, want %s", want.Alertname, want.EvalTime, a, b)
					}
					if a, b := words(only(got[i].annotations, expected.ExpAnnotations)), words(expected.ExpAnnotations); a != b {
						t.Errorf("%s at %s: annotations %s, want %s", want.Alertname, want.EvalTime, a, b)
					}
				}
			}
		})
	}
	for name, rule := range rules {
		if !fired[name] || !silent[name] {
			t.Errorf("%s: no test shows when it fires, and when not", name)
		}
		if rule.Labels["severity"] != "critical" && rule.Labels["severity"] != "warning" {
			t.Errorf("%s: severity %q", name, rule.Labels["severity"])
		}
		if rule.Annotations["summary"] == "" || rule.Annotations["description"] == "" {
			t.Errorf("%s: says nothing", name)
		}
	}
	if len(rules) < 5 {
		t.Errorf("%d rules", len(rules))
	}
}
