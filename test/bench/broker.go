package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A broker under measurement: one process tree, on ports of its own.
type broker struct {
	name string
	cmd  *exec.Cmd
	// Closed when the process has ended.
	over chan struct{}
	dir  string
	amqp int
}

// How long a broker may take to start.
const patience = 2 * time.Minute

func startPosthorn(program string, arguments []string) (*broker, error) {
	dir, err := os.MkdirTemp("", "posthorn-bench.")
	if err != nil {
		return nil, err
	}
	ready := filepath.Join(dir, "ready")
	all := append([]string{
		"serve", "--data-dir", filepath.Join(dir, "data"), "--ready-file", ready,
		"--set", "listeners.tcp.default=127.0.0.1:0",
		"--set", "management.tcp.port=0", "--set", "prometheus.tcp.port=0",
	}, arguments...)
	b := &broker{name: "posthorn", dir: dir, cmd: exec.Command(program, all...)}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	b.cmd.Stdout, b.cmd.Stderr = log, log
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := b.cmd.Start(); err != nil {
		return nil, err
	}
	b.over = make(chan struct{})
	go func() { _ = b.cmd.Wait(); close(b.over) }()
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		text, err := os.ReadFile(ready)
		var told struct{ Ports map[string]int }
		if err == nil && json.Unmarshal(text, &told) == nil && told.Ports["amqp"] != 0 {
			b.amqp = told.Ports["amqp"]
			return b, nil
		}
		select {
		case <-b.over:
			return nil, fmt.Errorf("the broker has ended; its log is %s/log", dir)
		default:
		}
		if time.Now().After(end) {
			b.end()
			return nil, fmt.Errorf("the broker is not ready after %s; its log is %s/log", patience, dir)
		}
	}
}

// Ends it and removes what it stored.
func (b *broker) stop() {
	b.end()
	_ = os.RemoveAll(b.dir)
}

func (b *broker) end() {
	_ = b.cmd.Process.Signal(syscall.SIGTERM)
	<-b.over
}

// What a process has used up to now.
type usage struct {
	cpu     time.Duration
	written uint64 // bytes to disk
	peak    uint64 // resident bytes
}

// USER_HZ: what /proc counts processor time in, the same on every Linux.
const ticksPerSecond = 100

func (b *broker) usage() (usage, error) {
	proc := filepath.Join("/proc", strconv.Itoa(b.cmd.Process.Pid))
	stat, err := os.ReadFile(filepath.Join(proc, "stat"))
	if err != nil {
		return usage{}, err
	}
	// Fields 14 and 15 of proc(5); the name in field 2 may hold anything.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	var ticks uint64
	for _, field := range fields[11:13] {
		n, err := strconv.ParseUint(field, 10, 64)
		if err != nil {
			return usage{}, err
		}
		ticks += n
	}
	u := usage{cpu: time.Duration(ticks) * time.Second / ticksPerSecond}
	u.written = counter(filepath.Join(proc, "io"), "write_bytes:")
	u.peak = counter(filepath.Join(proc, "status"), "VmHWM:") << 10
	return u, nil
}

// A number behind its name in a file of /proc; 0 where the kernel does not tell it.
func counter(file, name string) uint64 {
	text, _ := os.ReadFile(file)
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			n, _ := strconv.ParseUint(strings.Fields(rest)[0], 10, 64)
			return n
		}
	}
	return 0
}
