package nodes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// cgroups is the mount point of control groups.
const cgroups = "/sys/fs/cgroup"

// Cgroup is a control group with a memory limit, version 1 or 2.
type Cgroup struct{ dir string }

// NewCgroup creates a control group below our own whose processes may use a number of bytes of memory, without swap.
// It fails where neither version of control groups can limit memory.
func NewCgroup(name string, memory int64) (*Cgroup, error) {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	one, errOne := newVersionOne(string(own), name, memory)
	if errOne == nil {
		return one, nil
	}
	two, errTwo := newVersionTwo(string(own), name, memory)
	if errTwo == nil {
		return two, nil
	}
	return nil, fmt.Errorf("memory of a process cannot be limited here: neither cgroup v1 (%w) nor v2 (%w) can be used", errOne, errTwo)
}

// path returns our own group of a controller ("" is version 2), from /proc/self/cgroup.
func path(own, controller string) (string, bool) {
	for line := range strings.Lines(own) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) == 3 && (parts[1] == controller || controller != "" && strings.Contains(","+parts[1]+",", ","+controller+",")) {
			return parts[2], true
		}
	}
	return "", false
}

// below creates a group in our own one, or in the mount if our own is not visible, as in a container.
func below(mount, own, name string) (*Cgroup, error) {
	parent := filepath.Join(mount, own)
	if _, err := os.Stat(parent); err != nil {
		parent = mount
	}
	g := &Cgroup{dir: filepath.Join(parent, name)}
	return g, os.Mkdir(g.dir, 0o755)
}

func newVersionOne(own, name string, memory int64) (*Cgroup, error) {
	group, found := path(own, "memory")
	if !found {
		return nil, errors.New("no memory controller")
	}
	g, err := below(filepath.Join(cgroups, "memory"), group, name)
	if err != nil {
		return nil, err
	}
	if err := g.set("memory.limit_in_bytes", memory); err != nil {
		g.Close()
		return nil, err
	}
	// The file does not exist where the kernel does not count swap.
	_ = g.set("memory.memsw.limit_in_bytes", memory)
	return g, nil
}

func newVersionTwo(own, name string, memory int64) (*Cgroup, error) {
	group, found := path(own, "")
	if !found {
		return nil, errors.New("not mounted")
	}
	mount := cgroups
	if _, err := os.Stat(filepath.Join(mount, "cgroup.controllers")); err != nil {
		mount = filepath.Join(cgroups, "unified")
	}
	parent := filepath.Join(mount, group)
	// It may be enabled already; enabling it fails while the group has processes of its own.
	_ = os.WriteFile(filepath.Join(parent, "cgroup.subtree_control"), []byte("+memory"), 0o644)
	g, err := below(mount, group, name)
	if err != nil {
		return nil, err
	}
	if err := g.set("memory.max", memory); err != nil {
		g.Close()
		return nil, err
	}
	_ = g.set("memory.swap.max", 0)
	return g, nil
}

func (g *Cgroup) set(file string, value int64) error {
	return os.WriteFile(filepath.Join(g.dir, file), strconv.AppendInt(nil, value, 10), 0o644)
}

// wrap returns a command that runs another one in the group: a shell joins the group and executes that command.
func (g *Cgroup) wrap(binary string, arguments []string) (string, []string) {
	script := `echo 0 > "$0" && exec "$@"`
	return "/bin/sh", append([]string{"-c", script, filepath.Join(g.dir, "cgroup.procs"), binary}, arguments...)
}

// Close removes the group. Its processes must have exited.
func (g *Cgroup) Close() error { return os.Remove(g.dir) }
