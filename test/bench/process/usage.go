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

// Usage is the resource usage of a process and all its descendants so far.
type Usage struct {
	CPU time.Duration
	// Bytes written to disk.
	Written uint64
	// Most resident bytes since the start or the last ResetPeak; the sum over several processes.
	Peak uint64
	// Resident bytes now.
	Resident uint64
	// Of these, the bytes that are not backed by a file, such as the program's pages.
	Anonymous uint64
}

// USER_HZ: the unit of processor time in /proc, the same on every Linux.
const ticksPerSecond = 100

// Usage reads /proc; see proc(5).
func (b *Broker) Usage() (Usage, error) {
	var sum Usage
	for at, pid := range b.Processes() {
		one, err := usage(pid)
		if err != nil {
			if at == 0 {
				return Usage{}, err
			}
			continue // it has just exited
		}
		sum.CPU += one.CPU
		sum.Written += one.Written
		sum.Peak += one.Peak
		sum.Resident += one.Resident
		sum.Anonymous += one.Anonymous
	}
	return sum, nil
}

// Settled returns the usage once memory does not change any more.
func (b *Broker) Settled() (Usage, error) {
	var last Usage
	for still := 0; still < 3; {
		time.Sleep(200 * time.Millisecond)
		now, err := b.Usage()
		if err != nil {
			return now, err
		}
		if now.Resident == last.Resident {
			still++
		} else {
			still = 0
		}
		last = now
	}
	return last, nil
}

func usage(pid string) (Usage, error) {
	proc := filepath.Join("/proc", pid)
	fields, err := stat(proc)
	if err != nil {
		return Usage{}, err
	}
	// Fields 14 to 17 of proc(5): its own time, and that of exited children.
	var ticks uint64
	for _, field := range fields[11:15] {
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
	u.Anonymous = counter(filepath.Join(proc, "status"), "RssAnon:") << 10
	return u, nil
}

// The fields of proc(5) from the third on; the second, the name, may contain any character.
func stat(proc string) ([]string, error) {
	text, err := os.ReadFile(filepath.Join(proc, "stat"))
	if err != nil {
		return nil, err
	}
	return strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:])), nil
}

// Processes returns the ids of the broker's process and all its descendants, parents before their children.
func (b *Broker) Processes() []string {
	children := map[string][]string{}
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, proc := range all {
		if fields, err := stat(proc); err == nil {
			children[fields[1]] = append(children[fields[1]], filepath.Base(proc))
		}
	}
	found := []string{strconv.Itoa(b.cmd.Process.Pid)}
	for at := 0; at < len(found); at++ {
		found = append(found, children[found[at]]...)
	}
	return found
}

// ResetPeak resets Peak; see proc(5) on clear_refs.
func (b *Broker) ResetPeak() {
	for _, pid := range b.Processes() {
		_ = os.WriteFile(filepath.Join("/proc", pid, "clear_refs"), []byte("5"), 0)
	}
}

// Pause stops the broker's processes, so that they do not disturb other measurements.
func (b *Broker) Pause() { b.signal(syscall.SIGSTOP) }

// Resume continues them.
func (b *Broker) Resume() { b.signal(syscall.SIGCONT) }

func (b *Broker) signal(s syscall.Signal) {
	for _, pid := range b.Processes() {
		if n, err := strconv.Atoi(pid); err == nil {
			_ = syscall.Kill(n, s)
		}
	}
}

// A number after its name in a file of /proc; 0 where the kernel does not report it.
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

// DiskBytes returns the space of the broker's files, without holes.
func (b *Broker) DiskBytes() uint64 {
	var sum uint64
	_ = filepath.WalkDir(b.Data(), func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil //nolint:nilerr // The broker deleted it meanwhile.
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
