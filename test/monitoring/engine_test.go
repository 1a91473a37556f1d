// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/url"
	"sort"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/template"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"

	"posthorn.io/posthorn/dashboards"
)

// scope is the cluster of the tests.
var scope = dashboards.Scope{Namespace: "mq", Cluster: "orders", Job: "orders-nodes", Nodes: 3}

var (
	promParser = parser.NewParser(parser.Options{})
	engine     = promql.NewEngine(promql.EngineOpts{
		MaxSamples: 1_000_000, Timeout: time.Minute, EnableAtModifier: true, EnableNegativeOffset: true, Parser: promParser,
	})
)

// alertRule is a rule that passed the checks with which Prometheus loads it.
type alertRule struct{ rulefmt.Rule }

func readRules(t *testing.T) map[string]alertRule {
	t.Helper()
	spec, err := dashboards.Rules(scope)
	if err != nil {
		t.Fatal(err)
	}
	// JSON is YAML too.
	data, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	groups, errs := rulefmt.Parse(data, false, model.UTF8Validation, promParser, slog.New(slog.DiscardHandler))
	for _, err := range errs {
		t.Error(err)
	}
	if t.Failed() {
		t.FailNow()
	}
	rules := map[string]alertRule{}
	for _, group := range groups.Groups {
		for _, rule := range group.Rules {
			if _, twice := rules[rule.Alert]; twice {
				t.Errorf("two alerts %s", rule.Alert)
			}
			rules[rule.Alert] = alertRule{rule}
		}
	}
	return rules
}

// firingAlert is an alert as Alertmanager receives it.
type firingAlert struct{ labels, annotations map[string]string }

// firing evaluates the rule at each interval from 0 on and returns the alerts that fire at the end: those that the
// expression returned at every evaluation for the time of the rule's "for".
func (r alertRule) firing(t *testing.T, db storage.Queryable, interval, end time.Duration) []firingAlert {
	t.Helper()
	since := map[string]time.Duration{}
	var out []firingAlert
	for at := time.Duration(0); at <= end; at += interval {
		active := map[string]time.Duration{}
		out = nil
		for _, sample := range instant(t, db, r.Expr, at) {
			key := sample.Metric.String()
			start, was := since[key]
			if !was {
				start = at
			}
			active[key] = start
			if at-start >= time.Duration(r.For) {
				out = append(out, r.alert(t, sample))
			}
		}
		since = active
	}
	sort.Slice(out, func(i, j int) bool { return words(out[i].labels) < words(out[j].labels) })
	return out
}

// alert expands labels and annotations.
func (r alertRule) alert(t *testing.T, sample promql.Sample) firingAlert {
	t.Helper()
	own := sample.Metric.DropReserved(func(name string) bool { return name == model.MetricNameLabel }).Map()
	data := template.AlertTemplateData(own, nil, "", sample)
	expand := func(text string) string {
		const head = "{{$labels := .Labels}}{{$value := .Value}}"
		got, err := template.NewTemplateExpander(context.Background(), head+text, r.Alert, data, model.Time(0), nil, &url.URL{}, []string{"missingkey=error"}).Expand()
		if err != nil {
			t.Errorf("%s: %v", r.Alert, err)
		}
		return got
	}
	out := firingAlert{labels: own, annotations: map[string]string{}}
	for name, text := range r.Labels {
		out.labels[name] = expand(text)
	}
	for name, text := range r.Annotations {
		out.annotations[name] = expand(text)
	}
	return out
}

func instant(t *testing.T, db storage.Queryable, expr string, at time.Duration) promql.Vector {
	t.Helper()
	query, err := engine.NewInstantQuery(context.Background(), db, nil, expr, time.UnixMilli(at.Milliseconds()))
	if err != nil {
		t.Fatalf("%s: %v", expr, err)
	}
	defer query.Close()
	result := query.Exec(context.Background())
	vector, err := result.Vector()
	if err != nil {
		t.Fatalf("%s: %v", expr, err)
	}
	return append(promql.Vector{}, vector...)
}

// memory is a storage of the series of one test.
type memory []storage.Series

func load(t *testing.T, input []series, interval time.Duration) storage.Queryable {
	t.Helper()
	var db memory
	for _, each := range input {
		lset, values, err := promParser.ParseSeriesDesc(each.Series + " " + each.Values)
		if err != nil {
			t.Fatalf("%s: %v", each.Series, err)
		}
		var samples []chunks.Sample
		for i, value := range values {
			if !value.Omitted {
				samples = append(samples, point{at: int64(i) * interval.Milliseconds(), value: value.Value})
			}
		}
		db = append(db, storage.NewListSeries(lset, samples))
	}
	sort.Slice(db, func(i, j int) bool { return labels.Compare(db[i].Labels(), db[j].Labels()) < 0 })
	return &storage.MockQueryable{MockQuerier: &storage.MockQuerier{SelectMockFunction: db.find}}
}

func (m memory) find(_ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	found := &seriesSet{}
	for _, each := range m {
		fits := true
		for _, matcher := range matchers {
			fits = fits && matcher.Matches(each.Labels().Get(matcher.Name))
		}
		if fits {
			found.list = append(found.list, each)
		}
	}
	return found
}

// seriesSet iterates over series.
type seriesSet struct {
	list []storage.Series
	at   int
}

func (s *seriesSet) Next() bool                        { s.at++; return s.at <= len(s.list) }
func (s *seriesSet) At() storage.Series                { return s.list[s.at-1] }
func (s *seriesSet) Err() error                        { return nil }
func (s *seriesSet) Warnings() annotations.Annotations { return nil }

// point is a numeric sample.
type point struct {
	at    int64
	value float64
}

func (p point) T() int64                      { return p.at }
func (p point) ST() int64                     { return 0 }
func (p point) F() float64                    { return p.value }
func (p point) H() *histogram.Histogram       { return nil }
func (p point) FH() *histogram.FloatHistogram { return nil }
func (p point) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (p point) Copy() chunks.Sample           { return p }
