package peers

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func names(chosen []Peer) []string {
	var names []string
	for _, p := range chosen {
		names = append(names, p.Name)
	}
	return names
}

func TestPeersAreChosenByName(t *testing.T) {
	directory := t.TempDir()
	for _, name := range []string{"nats", "mosquitto"} {
		if err := write(directory, filepath.Join(name, "version"), "1.2\n"); err != nil {
			t.Fatal(err)
		}
	}
	chosen, err := Choose([]string{"all"}, directory)
	if err != nil || !slices.Equal(names(chosen), []string{"mosquitto", "nats"}) {
		t.Errorf("%v, %v: want those that are installed", names(chosen), err)
	}
	chosen, err = Choose([]string{"nats"}, directory)
	if err != nil || !slices.Equal(names(chosen), []string{"nats"}) {
		t.Errorf("%v, %v: want the one that is named", names(chosen), err)
	}
	for _, bad := range []string{"rabbitmq", "nobody"} {
		if _, err := Choose([]string{bad}, directory); err == nil {
			t.Errorf("%s is not installed or not known, and was chosen", bad)
		}
	}
}

func TestSettingsSetPortsAndDurability(t *testing.T) {
	ports := map[string]int{"amqp": 1001, "mqtt": 1002, "other": 1003, "another": 1004}
	for _, c := range []struct {
		peer, file string
		synced     bool
		want       string
	}{
		{"rabbitmq", "rabbitmq.conf", true, "mqtt.durable_queue_type = quorum\n"},
		{"rabbitmq", "rabbitmq.conf", false, "mqtt.listeners.tcp.default = 127.0.0.1:1002\n"},
		{"nats", "nats.conf", true, "sync_interval: always\n"},
		{"nats", "nats.conf", false, "listen: 127.0.0.1:1002\n"},
		{"mosquitto", "mosquitto.conf", true, "listener 1002 127.0.0.1\n"},
		{"hivemq", "conf/config.xml", false, "<port>1002</port>"},
	} {
		at := slices.IndexFunc(all, func(p Peer) bool { return p.Name == c.peer })
		dir := t.TempDir()
		if _, err := all[at].command("/nowhere", dir, ports, Demand{Synced: c.synced}); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(dir, c.file))
		if err != nil || !strings.Contains(string(text), c.want) {
			t.Errorf("%s, synced %v: %q is not in %s (%v)", c.peer, c.synced, c.want, text, err)
		}
	}
}
