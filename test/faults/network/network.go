// Package network is a network for a few processes: each host has a Linux network namespace with one interface, and
// packets between hosts go through a switch in this process, link by link and direction by direction. So a link can
// be cut, slow or lossy in one direction only, independently of the kernel's queueing disciplines and packet filters.
//
// Nothing of it outlives the process: the namespaces have no names, and an interface is removed when its file is
// closed.
package network

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// queueLength is the number of packets on one direction of a link; more are dropped, like in a router.
const queueLength = 1024

// Quality is the behaviour of one direction of a link.
type Quality struct {
	Cut    bool
	Loss   float64       // share of packets that are dropped, 0 to 1
	Delay  time.Duration // of every packet
	Jitter time.Duration // additional random delay of each packet up to this; the order is kept
}

// Network is the switch and its hosts, numbered from 0.
type Network struct {
	hosts []*Host
	links [][]*link // [from][to]
	over  chan struct{}
}

// Address returns the address of host number n.
func Address(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 77, 0, byte(n + 1)}) }

// New creates a network of a number of hosts; the seed determines losses and delays. Host 0 is the network namespace
// of the calling process.
func New(hosts int, seed uint64) (*Network, error) {
	n := &Network{over: make(chan struct{})}
	for i := range hosts {
		h, err := newHost(i)
		if err != nil {
			n.Close()
			return nil, fmt.Errorf("host %d of the network: %w", i, err)
		}
		n.hosts = append(n.hosts, h)
	}
	for from := range hosts {
		row := make([]*link, hosts)
		for to := range hosts {
			row[to] = newLink(seed, from, to, n.hosts[to])
			go row[to].carry(n.over)
		}
		n.links = append(n.links, row)
	}
	for i := range n.hosts {
		go n.forward(i)
	}
	return n, nil
}

// Close removes the interfaces, and the namespaces once no process is in them.
func (n *Network) Close() {
	close(n.over)
	for _, h := range n.hosts {
		h.close()
	}
}

// Host returns host number i.
func (n *Network) Host(i int) *Host { return n.hosts[i] }

// Set sets the quality of the direction from one host to another.
func (n *Network) Set(from, to int, q Quality) { n.links[from][to].quality.Store(&q) }

// Both sets the quality of both directions between two hosts.
func (n *Network) Both(a, b int, q Quality) {
	n.Set(a, b, q)
	n.Set(b, a, q)
}

// Heal makes every link perfect.
func (n *Network) Heal() {
	for from := range n.links {
		for to := range n.links[from] {
			n.Set(from, to, Quality{})
		}
	}
}

// forward switches the packets of a host until its interface is closed.
func (n *Network) forward(from int) {
	for {
		packet := make([]byte, mtu)
		size, err := n.hosts[from].tun.Read(packet)
		if err != nil {
			return
		}
		if to, ok := destination(packet[:size], len(n.hosts)); ok {
			n.links[from][to].send(packet[:size])
		}
	}
}

// destination returns the number of the host to which an IPv4 packet is addressed.
func destination(packet []byte, hosts int) (int, bool) {
	const header, at = 20, 16
	if len(packet) < header || packet[0]>>4 != 4 {
		return 0, false
	}
	to := netip.AddrFrom4([4]byte(packet[at : at+4]))
	for i := range hosts {
		if Address(i) == to {
			return i, true
		}
	}
	return 0, false
}

// link is one direction between two hosts.
type link struct {
	quality atomic.Pointer[Quality]
	to      interface{ deliver([]byte) }
	queue   chan parcel
	mu      sync.Mutex
	random  *rand.Rand
	last    time.Time // due time of the newest packet on the link
}

type parcel struct {
	packet []byte
	due    time.Time
}

func newLink(seed uint64, from, to int, host interface{ deliver([]byte) }) *link {
	l := &link{to: host, queue: make(chan parcel, queueLength), random: rand.New(rand.NewPCG(seed, uint64(from)<<8|uint64(to)))}
	l.quality.Store(&Quality{})
	return l
}

// send puts a packet on the link, or drops it.
func (l *link) send(packet []byte) {
	due, ok := l.schedule(time.Now())
	if !ok {
		return
	}
	select {
	case l.queue <- parcel{packet, due}:
	default:
	}
}

// schedule returns when a packet sent now arrives; false when it is dropped.
func (l *link) schedule(now time.Time) (time.Time, bool) {
	q := l.quality.Load()
	l.mu.Lock()
	defer l.mu.Unlock()
	if q.Cut || (q.Loss > 0 && l.random.Float64() < q.Loss) {
		return now, false
	}
	due := now.Add(q.Delay)
	if q.Jitter > 0 {
		due = due.Add(time.Duration(l.random.Int64N(int64(q.Jitter))))
	}
	if due.Before(l.last) {
		due = l.last
	}
	l.last = due
	return due, true
}

// carry delivers the packets on the link until the network is closed. A cut also drops those in transit.
func (l *link) carry(over <-chan struct{}) {
	for {
		select {
		case <-over:
			return
		case p := <-l.queue:
			if wait := time.Until(p.due); wait > 0 {
				time.Sleep(wait)
			}
			if !l.quality.Load().Cut {
				l.to.deliver(p.packet)
			}
		}
	}
}
