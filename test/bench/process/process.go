// Package process runs brokers under measurement and reads their resource usage.
package process

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Patience is how long a broker may take to start.
const Patience = 5 * time.Minute

// Broker is one broker under measurement: a directory, and a process on its own ports.
type Broker struct {
	Name    string
	Version string
	// Dir has the log and the file that reports readiness.
	Dir string
	// Ports by name: amqp, management, prometheus.
	Ports map[string]int

	program   string
	arguments []string
	cmd       *exec.Cmd
	// Closed when the process has exited.
	over chan struct{}
}

// Start starts a posthorn in a new directory and returns when it serves clients.
func Start(program string, arguments ...string) (*Broker, error) {
	b, err := New(program, arguments...)
	if err != nil {
		return nil, err
	}
	if err := b.Launch(); err != nil {
		return nil, err
	}
	return b, b.Wait()
}

// New creates a directory for a posthorn that does not run yet.
func New(program string, arguments ...string) (*Broker, error) {
	dir, err := os.MkdirTemp("", "posthorn-bench.")
	if err != nil {
		return nil, err
	}
	return &Broker{Name: "posthorn", Version: version(program), Dir: dir, program: program, arguments: arguments}, nil
}

func version(program string) string {
	out, _ := exec.Command(program, "--version").Output()
	return strings.TrimPrefix(strings.TrimSpace(string(out)), "posthorn ")
}

// A Foreign is another broker: its command in a directory of its own, which is removed with it.
type Foreign struct {
	Name, Version string
	Dir           string
	Ports         map[string]int
	Command       *exec.Cmd
	// Serves reports whether it serves clients.
	Serves func() error
}

// Start starts it and returns when it serves clients.
func (f Foreign) Start() (*Broker, error) {
	b := &Broker{Name: f.Name, Version: f.Version, Dir: f.Dir, Ports: f.Ports, cmd: f.Command}
	if err := b.spawn(); err != nil {
		return nil, err
	}
	for end := time.Now().Add(Patience); ; time.Sleep(50 * time.Millisecond) {
		err := f.Serves()
		if err == nil {
			return b, nil
		}
		select {
		case <-b.over:
			return nil, fmt.Errorf("%s has ended; its log is %s", b.Name, b.Log())
		default:
		}
		if time.Now().After(end) {
			b.Kill()
			return nil, fmt.Errorf("%s does not serve after %s (%w); its log is %s", b.Name, Patience, err, b.Log())
		}
	}
}

// Data returns the directory of the broker's durable data.
func (b *Broker) Data() string { return filepath.Join(b.Dir, "data") }

// Log returns the broker's standard output and error.
func (b *Broker) Log() string { return filepath.Join(b.Dir, "log") }

func (b *Broker) ready() string { return filepath.Join(b.Dir, "ready") }

// Launch starts the process, for the first time or again on its data and its previous ports.
func (b *Broker) Launch() error {
	_ = os.Remove(b.ready())
	all := []string{
		"serve", "--data-dir", b.Data(), "--ready-file", b.ready(),
		"--set", fmt.Sprintf("listeners.tcp.default=127.0.0.1:%d", b.Ports["amqp"]),
		"--set", fmt.Sprintf("management.tcp.port=127.0.0.1:%d", b.Ports["management"]),
		"--set", "prometheus.tcp.port=127.0.0.1:0",
		"--set", "probes.tcp.port=none",
		// Figures are per shard; a caller may set another number.
		"--set", "shards=1",
	}
	b.cmd = exec.Command(b.program, append(all, b.arguments...)...)
	return b.spawn()
}

// The process ends with this one.
func (b *Broker) spawn() error {
	log, err := os.OpenFile(b.Log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	b.cmd.Stdout, b.cmd.Stderr = log, log
	if b.cmd.SysProcAttr == nil {
		b.cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	b.cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	if err := b.cmd.Start(); err != nil {
		return err
	}
	over := make(chan struct{})
	b.over = over
	go func(cmd *exec.Cmd) { _ = cmd.Wait(); close(over) }(b.cmd)
	return nil
}

// Wait returns when the broker serves clients.
func (b *Broker) Wait() error {
	for end := time.Now().Add(Patience); ; time.Sleep(time.Millisecond) {
		text, err := os.ReadFile(b.ready())
		var told struct{ Ports map[string]int }
		if err == nil && json.Unmarshal(text, &told) == nil && told.Ports["amqp"] != 0 {
			b.Ports = told.Ports
			return nil
		}
		select {
		case <-b.over:
			return fmt.Errorf("the broker has ended; its log is %s", b.Log())
		default:
		}
		if time.Now().After(end) {
			b.End()
			return fmt.Errorf("the broker is not ready after %s; its log is %s", Patience, b.Log())
		}
	}
}

// Over is closed when the process has exited.
func (b *Broker) Over() <-chan struct{} { return b.over }

// Kill ends the process with SIGKILL and returns when it is gone.
func (b *Broker) Kill() {
	_ = b.cmd.Process.Kill()
	<-b.over
}

// End ends the process with SIGTERM and returns when it is gone.
func (b *Broker) End() {
	_ = b.cmd.Process.Signal(syscall.SIGTERM)
	<-b.over
}

// Remove ends the process and removes what it stored.
func (b *Broker) Remove() {
	if b.cmd != nil {
		b.Kill()
	}
	_ = os.RemoveAll(b.Dir)
}

// Address returns the address for AMQP clients.
func (b *Broker) Address() string { return fmt.Sprintf("127.0.0.1:%d", b.Ports["amqp"]) }

// URL returns the URL of a path in the HTTP API.
func (b *Broker) URL(path string) string {
	return fmt.Sprintf("http://127.0.0.1:%d%s", b.Ports["management"], path)
}

// MetricsURL returns the URL of the metrics.
func (b *Broker) MetricsURL() string {
	return fmt.Sprintf("http://127.0.0.1:%d/metrics", b.Ports["prometheus"])
}

// Serves returns when the broker reports that it serves clients: a node of a cluster listens earlier.
func (b *Broker) Serves() error {
	for end := time.Now().Add(Patience); ; time.Sleep(20 * time.Millisecond) {
		answer, err := http.Get(b.URL("/readyz"))
		if err == nil {
			answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				return nil
			}
		}
		if time.Now().After(end) {
			return fmt.Errorf("the broker does not serve after %s; its log is %s", Patience, b.Log())
		}
	}
}
