package process

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Usage is what a process has used up to now.
type Usage struct {
	CPU      time.Duration
	Written  uint64 // bytes to disk
	Peak     uint64 // resident bytes, the most at any time
	Resident uint64 // resident bytes now
}

// USER_HZ: what /proc counts processor time in, the same on every Linux.
const ticksPerSecond = 100

// Usage reads /proc; see proc(5).
func (b *Broker) Usage() (Usage, error) {
	proc := filepath.Join("/proc", strconv.Itoa(b.cmd.Process.Pid))
	stat, err := os.ReadFile(filepath.Join(proc, "stat"))
	if err != nil {
		return Usage{}, err
	}
	// Fields 14 and 15 of proc(5); the name in field 2 may hold anything.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	var ticks uint64
	for _, field := range fields[11:13] {
		n, err := strconv.ParseUint(field, 10, 64)
		if err != nil {
			return Usage{}, err
		}
		ticks += n
	}
	u := Usage{CPU: time.Duration(ticks) * time.Second / ticksPerSecond}
	u.Written = counter(filepath.Join(proc, "io"), "write_bytes:")
	u.Peak = counter(filepath.Join(proc, "status"), "VmHWM:") << 10
	u.Resident = counter(filepath.Join(proc, "status"), "VmRSS:") << 10
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

// DiskBytes is the space that the broker's files take, holes left out.
func (b *Broker) DiskBytes() uint64 {
	var sum uint64
	_ = filepath.WalkDir(b.Data(), func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil // deleted meanwhile
		}
		if info, err := d.Info(); err == nil {
			if stat, ok := info.Sys().(*syscall.Stat_t); ok {
				sum += uint64(stat.Blocks) * 512
			}
		}
		return nil
	})
	return sum
}
