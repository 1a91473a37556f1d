package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"posthorn.io/posthorn/test/faults/network"
	"posthorn.io/posthorn/test/faults/nodes"
)

// clients is the clients' host on the network; node i is on host i+1.
const clients = 0

func host(n *nodes.Node) int { return n.Number + 1 }

func names(list []*nodes.Node) string {
	var out []string
	for _, n := range list {
		out = append(out, n.Name)
	}
	return strings.Join(out, ", ")
}

// others returns all nodes but these.
func (w *world) others(these ...*nodes.Node) (rest []*nodes.Node) {
	for _, n := range w.cluster.Nodes {
		if !slices.Contains(these, n) {
			rest = append(rest, n)
		}
	}
	return rest
}

func (w *world) heal() error {
	w.net.Heal()
	return nil
}

// isolated: these nodes reach neither other nodes nor clients.
func (w *world) isolated(these ...*nodes.Node) fault {
	return fault{names(these) + " off the network", func() error {
		for _, n := range these {
			w.net.Both(host(n), clients, network.Quality{Cut: true})
			for _, m := range w.others(these...) {
				w.net.Both(host(n), host(m), network.Quality{Cut: true})
			}
		}
		return nil
	}, w.heal}
}

// split: nodes in different parts do not reach each other; clients reach all.
func (w *world) split(parts ...[]*nodes.Node) fault {
	var text []string
	for _, p := range parts {
		text = append(text, names(p))
	}
	return fault{"partition " + strings.Join(text, " | "), func() error {
		for i, a := range parts {
			for _, b := range parts[i+1:] {
				for _, n := range a {
					for _, m := range b {
						w.net.Both(host(n), host(m), network.Quality{Cut: true})
					}
				}
			}
		}
		return nil
	}, w.heal}
}

// mute: packets of this node to other nodes are lost; it still receives theirs.
func (w *world) mute(n *nodes.Node) fault {
	return fault{n.Name + " is not heard by other nodes", w.cutOneWay(n, true), w.heal}
}

// deaf: packets of other nodes to this one are lost; they still receive its own.
func (w *world) deaf(n *nodes.Node) fault {
	return fault{n.Name + " does not hear other nodes", w.cutOneWay(n, false), w.heal}
}

func (w *world) cutOneWay(n *nodes.Node, from bool) func() error {
	return func() error {
		for _, m := range w.others(n) {
			a, b := host(m), host(n)
			if from {
				a, b = b, a
			}
			w.net.Set(a, b, network.Quality{Cut: true})
		}
		return nil
	}
}

// apart: two nodes do not reach each other, and all others reach both.
func (w *world) apart(a, b *nodes.Node) fault {
	return fault{fmt.Sprintf("no way between %s and %s", a.Name, b.Name), func() error {
		w.net.Both(host(a), host(b), network.Quality{Cut: true})
		return nil
	}, w.heal}
}

// poor: all links between nodes have this quality.
func (w *world) poor(what string, q network.Quality) fault {
	return fault{what, func() error {
		for _, n := range w.cluster.Nodes {
			for _, m := range w.others(n) {
				w.net.Set(host(n), host(m), q)
			}
		}
		return nil
	}, w.heal}
}

func (w *world) slow() fault {
	return w.poor("links between nodes take 40 to 80 ms", network.Quality{Delay: 40 * time.Millisecond, Jitter: 40 * time.Millisecond})
}

func (w *world) lossy() fault {
	return w.poor("links between nodes lose 3 % of packets", network.Quality{Loss: 0.03, Delay: time.Millisecond, Jitter: time.Millisecond})
}

// killed: kill -9, and a new process at the end of the fault.
func (w *world) killed(these ...*nodes.Node) fault {
	return fault{"kill -9 of " + names(these), func() error {
		for _, n := range these {
			n.Kill()
		}
		return nil
	}, func() error { return start(these...) }}
}

// restartedAll: kill -9 of all at once, and new processes at once.
func (w *world) restartedAll() fault {
	return fault{"kill -9 and start of all", func() error {
		for _, n := range w.cluster.Nodes {
			n.Kill()
		}
		return start(w.cluster.Nodes...)
	}, func() error { return nil }}
}

func start(these ...*nodes.Node) error {
	for _, n := range these {
		// Another fault may have started it.
		if n.Running() {
			continue
		}
		if err := n.Start(); err != nil {
			return err
		}
	}
	return nil
}

// frozen: SIGSTOP, and SIGCONT at the end of the fault.
func (w *world) frozen(these ...*nodes.Node) fault {
	return fault{names(these) + " frozen", func() error {
		for _, n := range these {
			if err := n.Freeze(); err != nil {
				return errors.Join(err, thaw(these))
			}
		}
		return nil
	}, func() error { return thaw(these) }}
}

func thaw(these []*nodes.Node) error {
	var all error
	for _, n := range these {
		all = errors.Join(all, n.Thaw())
	}
	return all
}

// restarted: SIGTERM, and a new process when the old one has exited.
func (w *world) restarted(n *nodes.Node) fault {
	return fault{n.Name + " restarted", func() error {
		if err := n.Terminate(); err != nil {
			return err
		}
		return n.Start()
	}, func() error { return nil }}
}

// full: the disk of this node has no free byte. The process may exit because of it, and is started again when there
// is room.
func (w *world) full(n *nodes.Node) fault {
	return fault{n.Name + " has a full disk", func() error {
		n.MayEnd(true)
		return n.FillDisk()
	}, func() error {
		if err := n.FreeDisk(); err != nil {
			return err
		}
		ended := !n.Running()
		n.MayEnd(false)
		if ended {
			w.say("%s had ended", n.Name)
			return n.Start()
		}
		return nil
	}}
}

// wiped: kill -9, all data deleted, and a new node of this name at once.
func (w *world) wiped(n *nodes.Node) fault {
	return fault{n.Name + " loses its data directory", func() error {
		n.Kill()
		if err := n.Wipe(); err != nil {
			return err
		}
		return n.Start()
	}, func() error { return nil }}
}
