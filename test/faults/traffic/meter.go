package traffic

import (
	"sync"
	"time"
)

// meter measures the confirms and deliveries of one queue.
type meter struct {
	mu          sync.Mutex
	count       int
	lastConfirm time.Time
	gap         time.Duration
	lastArrival time.Time
}

func (m *meter) begin(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.count, m.gap, m.lastConfirm = 0, 0, now
}

func (m *meter) confirm(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.count++
	m.gap = max(m.gap, now.Sub(m.lastConfirm))
	m.lastConfirm = now
}

func (m *meter) confirms() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.count
}

func (m *meter) longest(now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return max(m.gap, now.Sub(m.lastConfirm))
}

func (m *meter) arrive(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lastArrival = now
}

// silent reports whether no message came from the queue for this time.
func (m *meter) silent(now time.Time, long time.Duration) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return now.Sub(m.lastArrival) > long
}

// gate is open or shut.
type gate struct {
	mu     sync.Mutex
	opened chan struct{} // closed while the gate is open
	isOpen bool
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.isOpen {
		g.isOpen = true
		close(g.opened)
	}
}

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.isOpen {
		g.isOpen = false
		g.opened = make(chan struct{})
	}
}

func (g *gate) state() (open bool, opens <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.isOpen, g.opened
}
