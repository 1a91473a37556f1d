// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package broker_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/broker/brokertest"
)

func TestReloadRequests(t *testing.T) {
	server := brokertest.Start("guest", "guest")
	defer server.Close()
	server.SetNode("n1", true)
	client := broker.New(broker.Access{URL: server.NodeURL("n1"), Username: "guest", Password: "guest"}, broker.NewTransport())
	keys, err := client.SettingKeys(t.Context(), "n1")
	if err != nil || keys != nil {
		t.Errorf("a broker without a reload: %v %v", keys, err)
	}
	files := map[string]broker.Setting{"heartbeat": {Value: "30", Source: "f:1"}, "handshake_timeout": {Value: "9000", Source: "f:2"}}
	server.SetConfiguration([]broker.SettingKey{
		{Key: "advertised_nodes.*", Live: true}, {Key: "heartbeat", Default: "60", Live: true}, {Key: "handshake_timeout", Default: "10000"},
	}, func(string) map[string]broker.Setting {
		out := map[string]broker.Setting{}
		for key, setting := range files {
			out[key] = setting
		}
		return out
	})
	useReload(t, client, "n1", func(heartbeat, timeout string) {
		files["heartbeat"], files["handshake_timeout"] = broker.Setting{Value: heartbeat, Source: "f:1"}, broker.Setting{Value: timeout, Source: "f:2"}
	})
}

// TestReloadRequestsToABroker runs the same requests against a real broker, so that the fake one cannot differ from it
// unnoticed. $POSTHORN is the program.
func TestReloadRequestsToABroker(t *testing.T) {
	program := os.Getenv("POSTHORN")
	if program == "" {
		t.Skip("set POSTHORN to a broker")
	}
	file := filepath.Join(t.TempDir(), "posthorn.conf")
	write := func(heartbeat, timeout string) {
		if err := os.WriteFile(file, []byte("heartbeat = "+heartbeat+"\nhandshake_timeout = "+timeout+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("30", "9000")
	url := startNode(t, program, "--config", file, "--set", "cluster.node=n1")
	useReload(t, broker.New(broker.Access{URL: url, Username: "guest", Password: "guest"}, broker.NewTransport()), "n1", write)
}

// useReload changes the settings of a node, whose heartbeat is 30 and whose handshake_timeout is 9000.
func useReload(t *testing.T, client broker.Client, node string, write func(heartbeat, timeout string)) {
	t.Helper()
	keys, err := client.SettingKeys(t.Context(), node)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []broker.SettingKey{
		{Key: "advertised_nodes.*", Live: true}, {Key: "heartbeat", Default: "60", Live: true}, {Key: "handshake_timeout", Default: "10000"},
	} {
		if !slices.Contains(keys, want) {
			t.Errorf("%+v is not among %d keys", want, len(keys))
		}
	}
	value := func(key string) broker.Setting {
		settings, err := client.Settings(t.Context(), node)
		if err != nil {
			t.Fatal(err)
		}
		at := slices.IndexFunc(settings, func(s broker.Setting) bool { return s.Key == key })
		if at < 0 {
			t.Fatalf("no setting %s", key)
		}
		return settings[at]
	}
	if got := value("heartbeat"); got.Value != "30" || !got.Live || !strings.HasSuffix(got.Source, ":1") {
		t.Errorf("%+v", got)
	}
	write("40", "9001")
	reload, err := client.ReloadSettings(t.Context(), node)
	if err != nil || !slices.Equal(reload.Changed, []string{"heartbeat"}) || !slices.Equal(reload.Restart, []string{"handshake_timeout"}) {
		t.Errorf("%+v %v", reload, err)
	}
	if got := value("heartbeat"); got.Value != "40" {
		t.Errorf("%+v", got)
	}
	if got := value("handshake_timeout"); got.Value != "9000" || got.Live {
		t.Errorf("%+v", got)
	}
}
