package main

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// binding has the address of the broker and our credentials: the entries of a service-binding Secret.
type binding struct {
	host, port, username, password, vhost string
}

// readBinding reads the entries from files in dir, or from AMQP_HOST, AMQP_PORT, AMQP_USERNAME, AMQP_PASSWORD and
// AMQP_VHOST when dir is empty.
func readBinding(dir string, getenv func(string) string) (binding, error) {
	entry := func(name string) (string, error) { return getenv("AMQP_" + strings.ToUpper(name)), nil }
	if dir != "" {
		entry = func(name string) (string, error) {
			b, err := os.ReadFile(filepath.Join(dir, name))
			if errors.Is(err, os.ErrNotExist) {
				return "", nil
			}
			return strings.TrimRight(string(b), "\r\n"), err
		}
	}
	b := binding{port: "5672", vhost: "/"}
	for name, to := range map[string]*string{"host": &b.host, "port": &b.port, "username": &b.username, "password": &b.password, "vhost": &b.vhost} {
		v, err := entry(name)
		if err != nil {
			return b, fmt.Errorf("binding: %w", err)
		}
		if v != "" {
			*to = v
		}
	}
	if b.host == "" || b.username == "" || b.password == "" {
		return b, errors.New("binding: host, username and password are needed (--binding DIR, or AMQP_HOST, AMQP_USERNAME, AMQP_PASSWORD)")
	}
	return b, nil
}

// connectTimeout is long enough for a running node. handshakeTimeout includes the time that the broker takes to
// refuse a password.
const (
	connectTimeout   = time.Second
	handshakeTimeout = 5 * time.Second
)

// dial opens a connection. The short timeouts detect a dead node within seconds.
func (b binding) dial(name string) (*amqp.Connection, error) {
	u := url.URL{Scheme: "amqp", User: url.UserPassword(b.username, b.password), Host: b.host + ":" + b.port}
	return amqp.DialConfig(u.String(), amqp.Config{
		Vhost:     b.vhost,
		Heartbeat: 2 * time.Second,
		Dial: func(network, address string) (net.Conn, error) {
			connection, err := net.DialTimeout(network, address, connectTimeout)
			if err != nil {
				return nil, err
			}
			// No heartbeat detects a dead peer before the handshake is complete; the library removes this deadline
			// then.
			return connection, connection.SetDeadline(time.Now().Add(handshakeTimeout))
		},
		Properties: amqp.Table{"connection_name": name},
	})
}
