// Package nodes runs a cluster of broker processes, each on a host of a network of its own, and injects process
// faults.
package nodes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"posthorn.io/posthorn/test/faults/network"
)

// User and Password are accepted by the nodes from any address.
const (
	User     = "faults"
	Password = "a password of the test's own"
)

// Ports on which nodes serve clients.
const (
	AMQPPort = 5672
	HTTPPort = 15672
	// StreamPort is of the stream protocol.
	StreamPort = 5552
)

const (
	nodePort = 25672

	// stopping bounds how long a node may take to exit after SIGTERM.
	stopping = 60 * time.Second
	// polling is the interval between two checks of a condition.
	polling = 50 * time.Millisecond
)

// Options describe a cluster.
type Options struct {
	Binary    string // the broker
	Dir       string // for data, logs and certificates
	Count     int
	Network   *network.Network // node i is on its host i+1
	Settings  []string         // key=value, of every node
	SmallDisk map[int]int      // nodes whose disk has only so many MiB
	Memory    int64            // bytes of memory of each node; 0: no limit
}

// Cluster has all nodes, numbered from 0.
type Cluster struct {
	Nodes []*Node
	// Lost are queues whose only copy is lost and that wait for their deletion.
	Lost []string
}

// Node is one broker: a directory, and most of the time a process that uses it.
type Node struct {
	Number   int
	Name     string
	Data     string
	options  Options
	settings []string
	log      string
	cgroup   *Cgroup // nil: no limit

	mu      sync.Mutex
	process *process
	faults  []string // unexpected exits
	mayEnd  bool     // an end of its own is expected
	frozen  bool
}

type process struct {
	command *exec.Cmd
	over    chan struct{} // closed when it has exited
	asked   bool          // we ended it
}

// Start starts all nodes of a new cluster.
func Start(o Options) (*Cluster, error) {
	auth, err := certificates(o.Dir)
	if err != nil {
		return nil, err
	}
	var peers []string
	for i := range o.Count {
		peers = append(peers, fmt.Sprintf("%s:%d", network.Address(i+1), nodePort))
	}
	c := &Cluster{}
	for i := range o.Count {
		n := newNode(o, i)
		n.settings = append(n.settings, "cluster.peers="+strings.Join(peers, ","))
		n.settings = append(n.settings, auth...)
		n.settings = append(n.settings, o.Settings...)
		if size := o.SmallDisk[i]; size > 0 {
			err = n.mountDisk(size)
		}
		if err == nil && o.Memory > 0 {
			n.cgroup, err = NewCgroup(fmt.Sprintf("posthorn-faults-%s-%d", n.Name, time.Now().UnixNano()), o.Memory)
		}
		if err == nil {
			err = n.Start()
		}
		if err != nil {
			c.Close()
			return nil, err
		}
		c.Nodes = append(c.Nodes, n)
	}
	return c, nil
}

func newNode(o Options, number int) *Node {
	address := network.Address(number + 1)
	n := &Node{Number: number, Name: fmt.Sprintf("n%d", number+1), options: o}
	n.Data, n.log = filepath.Join(o.Dir, n.Name), filepath.Join(o.Dir, n.Name+".log")
	n.settings = []string{
		"cluster.node=" + n.Name,
		fmt.Sprintf("cluster.listener=%s:%d", address, nodePort),
		"cluster.advertised_host=" + address.String(),
		fmt.Sprintf("listeners.tcp.default=%s:%d", address, AMQPPort),
		fmt.Sprintf("management.tcp.port=%s:%d", address, HTTPPort),
		fmt.Sprintf("stream.listeners.tcp.default=%s:%d", address, StreamPort),
		"prometheus.tcp.port=none",
		"probes.tcp.port=none",
		"default_user=" + User,
		"default_pass=" + Password,
	}
	return n
}

// AMQP returns the address of a node for clients.
func (n *Node) AMQP() string { return fmt.Sprintf("%s:%d", network.Address(n.Number+1), AMQPPort) }

// Stream returns the address of a node for clients of the stream protocol.
func (n *Node) Stream() string {
	return fmt.Sprintf("%s:%d", network.Address(n.Number+1), StreamPort)
}

// mountDisk gives the node a disk of its own, which disappears with our mount namespace.
func (n *Node) mountDisk(mib int) error {
	if err := os.MkdirAll(n.Data, 0o700); err != nil {
		return err
	}
	return syscall.Mount("faults", n.Data, "tmpfs", 0, fmt.Sprintf("size=%dm", mib))
}

// Start starts the node's process.
func (n *Node) Start() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.process != nil {
		return fmt.Errorf("%s runs already", n.Name)
	}
	log, err := os.OpenFile(n.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	arguments := []string{"serve", "--data-dir", n.Data}
	for _, s := range n.settings {
		arguments = append(arguments, "--set", s)
	}
	binary := n.options.Binary
	if n.cgroup != nil {
		binary, arguments = n.cgroup.wrap(binary, arguments)
	}
	c := exec.Command(binary, arguments...)
	c.Stdout, c.Stderr, c.Env = log, log, []string{"RUST_BACKTRACE=1"}
	if err := n.options.Network.Host(n.Number + 1).Start(c); err != nil {
		return err
	}
	p := &process{command: c, over: make(chan struct{})}
	n.process = p
	go n.await(p)
	return nil
}

func (n *Node) await(p *process) {
	err := p.command.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	if !p.asked && !n.mayEnd {
		n.faults = append(n.faults, fmt.Sprintf("%s ended by itself: %v; its log ends: %s", n.Name, err, n.lastWords()))
	}
	if n.process == p {
		n.process, n.frozen = nil, false
	}
	close(p.over)
}

// lastWords returns the end of the log.
func (n *Node) lastWords() string {
	const some = 600
	text, err := os.ReadFile(n.log)
	if err != nil {
		return err.Error()
	}
	text = bytes.TrimSpace(text)
	return string(text[max(0, len(text)-some):])
}

// Logged returns the number of lines in the log with this text.
func (n *Node) Logged(text string) (int, error) {
	log, err := os.ReadFile(n.log)
	return bytes.Count(log, []byte(text)), err
}

// PID returns the id of the running process.
func (n *Node) PID() (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.process == nil {
		return 0, fmt.Errorf("%s does not run", n.Name)
	}
	return n.process.command.Process.Pid, nil
}

// signal sends a signal to the process; asked is set when the process may exit because of it.
func (n *Node) signal(s syscall.Signal, asked bool) (*process, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.process == nil {
		return nil, fmt.Errorf("%s does not run", n.Name)
	}
	n.process.asked = n.process.asked || asked
	return n.process, n.process.command.Process.Signal(s)
}

// Running reports whether the process runs.
func (n *Node) Running() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.process != nil
}

// Kill ends the process at once. It ignores a node that does not run.
func (n *Node) Kill() {
	if p, err := n.signal(syscall.SIGKILL, true); err == nil {
		<-p.over
	}
}

// Terminate asks the process to exit and waits for it. A frozen process would not receive the signal.
func (n *Node) Terminate() error {
	if n.isFrozen() {
		return fmt.Errorf("%s is frozen", n.Name)
	}
	p, err := n.signal(syscall.SIGTERM, true)
	if err != nil {
		return err
	}
	select {
	case <-p.over:
		if status := p.command.ProcessState; !status.Success() {
			return fmt.Errorf("%s after SIGTERM: %v", n.Name, status)
		}
		return nil
	case <-time.After(stopping):
		return fmt.Errorf("%s did not end within %v of SIGTERM", n.Name, stopping)
	}
}

// Freeze stops the process where it is.
func (n *Node) Freeze() error {
	_, err := n.signal(syscall.SIGSTOP, false)
	n.setFrozen(err == nil)
	return err
}

// Thaw resumes the process, if it runs and is frozen.
func (n *Node) Thaw() error {
	if !n.isFrozen() {
		return nil
	}
	n.setFrozen(false)
	_, err := n.signal(syscall.SIGCONT, false)
	return err
}

func (n *Node) isFrozen() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.frozen
}

func (n *Node) setFrozen(is bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.frozen = is
}

// MayEnd reports whether the process may exit by itself, as with a full disk.
func (n *Node) MayEnd(may bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mayEnd = may
}

// Wipe removes all data of a node without a process.
func (n *Node) Wipe() error {
	if n.Running() {
		return fmt.Errorf("%s runs", n.Name)
	}
	entries, err := os.ReadDir(n.Data)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(n.Data, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// ballast is the file that fills a disk.
func (n *Node) ballast() string { return filepath.Join(n.Data, "ballast") }

// FillDisk leaves no byte free on the node's small disk.
func (n *Node) FillDisk() error {
	f, err := os.OpenFile(n.ballast(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	for block := make([]byte, 64<<10); err == nil; {
		_, err = f.Write(block)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		return err
	}
	return nil
}

// FreeDisk removes the ballast, unless a wipe has.
func (n *Node) FreeDisk() error {
	if err := os.Remove(n.ballast()); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// Faults returns the processes' own failures.
func (c *Cluster) Faults() (all []string) {
	for _, n := range c.Nodes {
		n.mu.Lock()
		all = append(all, n.faults...)
		n.mu.Unlock()
	}
	return all
}

// Close ends all processes and frees their disks.
func (c *Cluster) Close() {
	for _, n := range c.Nodes {
		n.Kill()
		if n.cgroup != nil {
			_ = n.cgroup.Close()
		}
		if n.options.SmallDisk[n.Number] > 0 {
			_ = syscall.Unmount(n.Data, syscall.MNT_DETACH)
		}
	}
}

// Eventually waits until a condition holds; the error has the condition's last failure.
func Eventually(ctx context.Context, bound time.Duration, what string, holds func() error) error {
	limit := time.Now().Add(bound)
	tick := time.NewTicker(polling)
	defer tick.Stop()
	for {
		err := holds()
		if err == nil {
			return nil
		}
		if time.Now().After(limit) {
			return fmt.Errorf("%s: not within %v: %w", what, bound, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w (%w)", what, ctx.Err(), err)
		case <-tick.C:
		}
	}
}
