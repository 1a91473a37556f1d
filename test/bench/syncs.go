package main

import (
	"bytes"
	"context"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"posthorn.io/posthorn/test/bench/process"
)

// A syncCount is a perf process that counts the broker's calls that sync files. It makes every system call of every
// process slower, so it runs in trials only.
type syncCount struct {
	cmd  *exec.Cmd
	out  *bytes.Buffer
	stop context.CancelFunc
}

// lastCounts is the time for perf to write its counts; a perf that was stopped before it began never does.
const lastCounts = 5 * time.Second

// countSyncs starts perf; nil where it is not installed.
func countSyncs(b *process.Broker) *syncCount {
	c := &syncCount{out: &bytes.Buffer{}}
	const calls = "syscalls:sys_enter_fsync,syscalls:sys_enter_fdatasync,syscalls:sys_enter_msync"
	var ctx context.Context
	ctx, c.stop = context.WithCancel(context.Background())
	c.cmd = exec.CommandContext(ctx, "perf", "stat", "-x", ",", "-e", calls, "-p", strings.Join(b.Processes(), ","))
	c.cmd.Stderr = c.out
	c.cmd.Cancel = func() error { return c.cmd.Process.Signal(syscall.SIGINT) }
	c.cmd.WaitDelay = lastCounts
	if c.cmd.Start() != nil {
		c.stop()
		return nil
	}
	return c
}

// end returns the number of syncs per thousand messages; nil where it is unknown.
func (c *syncCount) end(messages int) *float64 {
	if c == nil {
		return nil
	}
	c.stop()
	_ = c.cmd.Wait()
	calls, ok := counted(c.out.String())
	if !ok || messages == 0 {
		return nil
	}
	each := calls * 1000 / float64(messages)
	return &each
}

// counted sums the lines of perf stat -x: value, unit, event and more.
func counted(out string) (float64, bool) {
	sum, lines := 0.0, 0
	for line := range strings.Lines(out) {
		fields := strings.Split(line, ",")
		if len(fields) < 3 || !strings.HasPrefix(fields[2], "syscalls:") {
			continue
		}
		n, err := strconv.ParseFloat(fields[0], 64)
		if err != nil {
			return 0, false // "<not supported>"
		}
		sum += n
		lines++
	}
	return sum, lines > 0
}
