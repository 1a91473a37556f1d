// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package dashboards

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var scope = Scope{Namespace: "mq", Cluster: "orders", Job: "orders-nodes", Nodes: 3}

func TestRulesAreOfOneCluster(t *testing.T) {
	spec, err := Rules(scope)
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(data), "@") || !strings.Contains(string(data), `job=\"orders-nodes\"`) {
		t.Errorf("%s", data)
	}
	groups, _ := spec["groups"].([]any)
	if len(groups) != 1 {
		t.Errorf("%d groups", len(groups))
	}
}

func TestBoardsAreOfOneCluster(t *testing.T) {
	boards, err := Boards(scope)
	if err != nil {
		t.Fatal(err)
	}
	other := scope
	other.Cluster = "billing"
	others, err := Boards(other)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, set := range []map[string]string{boards, others} {
		for file, text := range set {
			var board struct {
				UID, Title string
				Panels     []struct {
					ID      int
					GridPos struct{ X, Y, W, H int }
				}
			}
			if err := json.Unmarshal([]byte(text), &board); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			if seen[board.UID] || seen[board.Title] || len(board.UID) > 40 || strings.Contains(text, "@") {
				t.Errorf("%s: uid %s, title %s", file, board.UID, board.Title)
			}
			seen[board.UID], seen[board.Title] = true, true
			ids := map[int]bool{}
			for _, panel := range board.Panels {
				if ids[panel.ID] || panel.GridPos.X+panel.GridPos.W > 24 || panel.GridPos.H == 0 {
					t.Errorf("%s: panel %+v", file, panel)
				}
				ids[panel.ID] = true
			}
		}
	}
	if len(boards) < 3 || len(boards) != len(others) {
		t.Errorf("%d and %d boards", len(boards), len(others))
	}
}

func TestQueuesByNameNeedTheirMetrics(t *testing.T) {
	const name = "orders-queue-by-name.json"
	without, err := Boards(scope)
	if err != nil {
		t.Fatal(err)
	}
	detailed := scope
	detailed.Queues = true
	with, err := Boards(detailed)
	if err != nil {
		t.Fatal(err)
	}
	if _, found := without[name]; found || len(with) != len(without)+1 {
		t.Errorf("%d boards without and %d with metrics of queues", len(without), len(with))
	}
	var board struct {
		UID        string
		Templating struct {
			List []struct{ Name, Query string }
		}
	}
	if err := json.Unmarshal([]byte(with[name]), &board); err != nil {
		t.Fatal(err)
	}
	queries := map[string]string{}
	for _, variable := range board.Templating.List {
		queries[variable.Name] = variable.Query
	}
	want := map[string]string{
		"datasource": "prometheus",
		"vhost":      `label_values(rabbitmq_detailed_queue_messages{namespace="mq",job="orders-nodes"}, vhost)`,
		"queue":      `label_values(rabbitmq_detailed_queue_messages{namespace="mq",job="orders-nodes",vhost=~"$vhost"}, queue)`,
	}
	if !maps.Equal(queries, want) || strings.Contains(with[name], "@") {
		t.Errorf("variables %v", queries)
	}
}

// TestPortableBoardsAreStored compares the stored files with the templates. UPDATE=1 writes them.
func TestPortableBoardsAreStored(t *testing.T) {
	boards, err := Portable()
	if err != nil {
		t.Fatal(err)
	}
	stored, err := filepath.Glob("portable/*.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range stored {
		if _, wanted := boards[filepath.Base(file)]; !wanted {
			t.Errorf("%s has no template: delete it", file)
		}
	}
	for file, text := range boards {
		path := filepath.Join("portable", file)
		if os.Getenv("UPDATE") != "" {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if string(data) != text {
			t.Errorf("%s is out of date: run UPDATE=1 go test ./dashboards", path)
		}
	}
}

// TestPortableBoardsDefineTheirVariables finds a variable that a query uses and Grafana cannot fill, and words of the
// templates that nothing replaced.
func TestPortableBoardsDefineTheirVariables(t *testing.T) {
	boards, err := Portable()
	if err != nil {
		t.Fatal(err)
	}
	uids := map[string]bool{}
	for file, text := range boards {
		var board struct {
			UID        string
			Templating struct{ List []variable }
			Panels     []struct {
				Targets []struct{ Expr string }
			}
		}
		if err := json.Unmarshal([]byte(text), &board); err != nil {
			t.Fatal(err)
		}
		if uids[board.UID] || strings.Contains(text, "@") {
			t.Errorf("%s: uid %s, or an unreplaced word", file, board.UID)
		}
		uids[board.UID] = true
		defined := map[string]bool{"__rate_interval": true}
		for _, each := range board.Templating.List {
			for _, used := range variablesIn(each.Query) {
				if !defined[used] {
					t.Errorf("%s: variable %s uses %s, which is not defined before it", file, each.Name, used)
				}
			}
			defined[each.Name] = true
		}
		for _, panel := range board.Panels {
			for _, target := range panel.Targets {
				for _, used := range variablesIn(target.Expr) {
					if !defined[used] {
						t.Errorf("%s: %s uses the undefined variable %s", file, target.Expr, used)
					}
				}
			}
		}
	}
}

func variablesIn(query string) []string {
	var names []string
	for _, match := range regexp.MustCompile(`\$(\w+)`).FindAllStringSubmatch(query, -1) {
		names = append(names, match[1])
	}
	return names
}
