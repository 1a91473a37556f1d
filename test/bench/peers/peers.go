// Package peers runs other brokers, as installed by peers/install, to measure them next to ours.
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
	"posthorn.io/posthorn/test/bench/stream"
	"posthorn.io/posthorn/test/bench/wire"
)

// A Demand is a workload's requirement of a broker.
type Demand struct {
	// Messages of persistent MQTT sessions are on disk before PUBACK, if the broker supports it.
	Synced bool
	// Messages of QoS 1 wait for a slow subscriber, in any number.
	Patient bool
	// RabbitMQ's HTTP API, on the port "management", for guest.
	Management bool
	// The stream protocol, on the port "stream".
	Streams bool
}

// A Peer is a broker that can be started.
type Peer struct {
	Name string
	// Protocols that it can serve, each on a port of this name: amqp, amqp10, mqtt, stream.
	serves []string

	// A command that serves these ports in a new directory.
	command func(in installed, dir string, ports map[string]int, demand Demand) (command, error)
}

var all = []Peer{
	{"rabbitmq", []string{"amqp", "amqp10", "mqtt", "stream"}, rabbitmq},
	{"mosquitto", []string{"mqtt"}, mosquitto},
	{"nats", []string{"mqtt"}, nats},
	{"hivemq", []string{"mqtt"}, hivemq},
	{"artemis", []string{"amqp10", "mqtt"}, artemis},
}

// Knows reports whether it supports a protocol.
func (p Peer) Knows(protocol string) bool { return slices.Contains(p.serves, protocol) }

// Knows reports whether the peer with this name supports a protocol.
func Knows(name, protocol string) bool {
	return slices.ContainsFunc(all, func(p Peer) bool { return p.Name == name && p.Knows(protocol) })
}

// Names returns the names of the known peers.
func Names() []string {
	var names []string
	for _, p := range all {
		names = append(names, p.Name)
	}
	return names
}

// installed returns the directory of peers/install.
type installed string

func (in installed) of(peer string) string { return filepath.Join(string(in), peer) }

// debian returns the directory of Debian's unpacked packages.
func (in installed) debian() string { return in.of("debian") }

func (in installed) version(peer string) (string, error) {
	text, err := os.ReadFile(filepath.Join(in.of(peer), "version"))
	if err != nil {
		return "", fmt.Errorf("%s is not installed: make bench-peers", peer)
	}
	return strings.TrimSpace(string(text)), nil
}

// Choose returns peers by their names; "all" stands for every installed one.
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

// Start starts a peer from the directory of peers/install in a new directory, and returns when it serves clients on
// all its ports.
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
			return serves(p.serves, ports, demand)
		},
	}
	return foreign.Start()
}

// free returns unused ports.
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

// manages sends a request to its HTTP API.
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

// serves logs in with each protocol.
func serves(protocols []string, ports map[string]int, demand Demand) error {
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
		case "stream":
			if !demand.Streams {
				continue
			}
			c, err := stream.Dial(address)
			if err != nil {
				return err
			}
			c.Close()
		}
	}
	return nil
}
