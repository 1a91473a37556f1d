// Package peers runs other people's brokers, as peers/install has installed them, to be measured beside ours.
package peers

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"posthorn.io/posthorn/test/bench/mqtt"
	"posthorn.io/posthorn/test/bench/process"
	"posthorn.io/posthorn/test/bench/wire"
)

// A Demand is what a workload wants of a broker.
type Demand struct {
	// Messages of MQTT sessions that are kept are on disk before PUBACK, where the broker can do that.
	Synced bool
	// Messages of QoS 1 wait for a subscriber that is slow, however many there are.
	Patient bool
	// RabbitMQ's HTTP API, on the port "management", for guest.
	Management bool
}

// A Peer is a broker that can be started.
type Peer struct {
	Name string
	// Ports it can serve: amqp, mqtt.
	serves []string

	// A command on these ports in a new directory of its own.
	command func(in installed, dir string, ports map[string]int, demand Demand) (command, error)
}

var all = []Peer{
	{"rabbitmq", []string{"amqp", "mqtt"}, rabbitmq},
	{"mosquitto", []string{"mqtt"}, mosquitto},
	{"nats", []string{"mqtt"}, nats},
	{"hivemq", []string{"mqtt"}, hivemq},
	{"artemis", []string{"mqtt"}, artemis},
}

// Knows tells whether it serves a protocol.
func (p Peer) Knows(protocol string) bool { return slices.Contains(p.serves, protocol) }

// Knows tells it of the one with this name.
func Knows(name, protocol string) bool {
	return slices.ContainsFunc(all, func(p Peer) bool { return p.Name == name && p.Knows(protocol) })
}

// Names of those that are known.
func Names() []string {
	var names []string
	for _, p := range all {
		names = append(names, p.Name)
	}
	return names
}

// installed is the directory of peers/install.
type installed string

func (in installed) of(peer string) string { return filepath.Join(string(in), peer) }

// debian is where Debian's packages are unpacked.
func (in installed) debian() string { return in.of("debian") }

func (in installed) version(peer string) (string, error) {
	text, err := os.ReadFile(filepath.Join(in.of(peer), "version"))
	if err != nil {
		return "", fmt.Errorf("%s is not installed: make bench-peers", peer)
	}
	return strings.TrimSpace(string(text)), nil
}

// Choose finds peers by their names, "all" for every one that is installed in the directory.
func Choose(names []string, directory string) ([]Peer, error) {
	in := installed(directory)
	var chosen []Peer
	for _, p := range all {
		_, missing := in.version(p.Name)
		switch {
		case slices.Contains(names, p.Name):
			if missing != nil {
				return nil, missing
			}
			chosen = append(chosen, p)
		case slices.Contains(names, "all") && missing == nil:
			chosen = append(chosen, p)
		}
	}
	for _, name := range names {
		if name != "all" && !slices.Contains(Names(), name) {
			return nil, fmt.Errorf("no peer %q; there are %s", name, strings.Join(Names(), ", "))
		}
	}
	return chosen, nil
}

// Start starts it from the directory of peers/install, in a new directory, and returns when it serves clients on all its ports.
func (p Peer) Start(directory string, demand Demand) (*process.Broker, error) {
	in := installed(directory)
	version, err := in.version(p.Name)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "posthorn-bench-"+p.Name+".")
	if err != nil {
		return nil, err
	}
	ports, err := free(append(p.serves, "management", "other", "another"))
	if err != nil {
		return nil, err
	}
	c, err := p.command(in, dir, ports, demand)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.Name, err)
	}
	foreign := process.Foreign{
		Name: p.Name, Version: version, Dir: dir, Ports: ports, Command: c.cmd(),
		Serves: func() error {
			if demand.Management {
				if err := manages(ports["management"]); err != nil {
					return err
				}
			}
			return serves(p.serves, ports)
		},
	}
	return foreign.Start()
}

// free finds ports that nobody listens on.
func free(names []string) (map[string]int, error) {
	ports := map[string]int{}
	for _, name := range names {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer listener.Close()
		ports[name] = listener.Addr().(*net.TCPAddr).Port
	}
	return ports, nil
}

// manages asks its HTTP API something.
func manages(port int) error {
	address := fmt.Sprintf("http://guest:guest@127.0.0.1:%d/api/whoami", port)
	answer, err := http.Get(address)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", address, answer.Status)
	}
	return nil
}

// serves logs in by each protocol.
func serves(protocols []string, ports map[string]int) error {
	for _, protocol := range protocols {
		address := fmt.Sprintf("127.0.0.1:%d", ports[protocol])
		switch protocol {
		case "amqp":
			c, err := wire.Dial(address)
			if err != nil {
				return err
			}
			c.Close()
		case "mqtt":
			c, err := mqtt.Dial(address, "ready", true)
			if err != nil {
				return err
			}
			c.Close()
		}
	}
	return nil
}
