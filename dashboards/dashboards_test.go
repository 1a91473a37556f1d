// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package dashboards

import (
	"encoding/json"
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
