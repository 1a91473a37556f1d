package nodes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// cgroups is where the kernel shows control groups.
const cgroups = "/sys/fs/cgroup"

// Cgroup is a control group with a memory limit, version 1 or 2.
type Cgroup struct{ dir string }

// NewCgroup makes a control group below our own whose processes may use so many bytes of memory, without swap. It fails where neither
// version of control groups can limit memory.
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

// path is our own group of a controller ("" is version 2), as /proc/self/cgroup says.
func path(own, controller string) (string, bool) {
	for line := range strings.Lines(own) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) == 3 && (parts[1] == controller || controller != "" && strings.Contains(","+parts[1]+",", ","+controller+",")) {
			return parts[2], true
		}
	}
	return "", false
}

// below makes a group in our own one, or in the mount where that is not shown, as in a container.
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
	// There is no such file where the kernel does not count swap.
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
	// It may be on already, and it is refused while the group has processes of its own.
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

// wrap is the command that runs another one in the group: a shell joins it and becomes that command.
func (g *Cgroup) wrap(binary string, arguments []string) (string, []string) {
	script := `echo 0 > "$0" && exec "$@"`
	return "/bin/sh", append([]string{"-c", script, filepath.Join(g.dir, "cgroup.procs"), binary}, arguments...)
}

// Close removes the group. Its processes must have ended.
func (g *Cgroup) Close() error { return os.Remove(g.dir) }
