package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"
)

// stats counts the events of the run and reports them line by line.
type stats struct {
	mu          sync.Mutex
	out         io.Writer
	began       time.Time
	total       int // messages to publish
	confirmed   int
	arrived     int // deliveries, including duplicates
	reconnects  int
	lastConfirm time.Time
	longestWait time.Duration // between two confirms
}

func newStats(out io.Writer, total int) *stats {
	return &stats{out: out, began: time.Now(), total: total}
}

// line writes a marker and a JSON object.
func (s *stats) line(marker string, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		b = fmt.Appendf(nil, "%q", err.Error())
	}
	fmt.Fprintf(s.out, "%s %s\n", marker, b)
}

func (s *stats) confirm() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if !s.lastConfirm.IsZero() {
		s.longestWait = max(s.longestWait, now.Sub(s.lastConfirm))
	}
	s.lastConfirm = now
	s.confirmed++
	if s.confirmed == (s.total+1)/2 {
		fmt.Fprintln(s.out, "HALFWAY")
	}
}

func (s *stats) arrive() {
	s.mu.Lock()
	s.arrived++
	s.mu.Unlock()
}

func (s *stats) interrupted(name string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reconnects++
	s.line("RECONNECT", map[string]any{"who": name, "because": err.Error(), "seconds": s.seconds()})
}

func (s *stats) seconds() float64 { return float64(time.Since(s.began).Milliseconds()) / 1000 }

// counters are the part of the report about this run's progress.
type counters struct {
	Seconds     float64 `json:"seconds"`
	Total       int     `json:"total"`
	Confirmed   int     `json:"confirmed_so_far"`
	Deliveries  int     `json:"deliveries"`
	Reconnects  int     `json:"reconnects"`
	LongestWait float64 `json:"longest_wait_for_a_confirm_seconds"`
}

func (s *stats) now() counters {
	s.mu.Lock()
	defer s.mu.Unlock()
	return counters{s.seconds(), s.total, s.confirmed, s.arrived, s.reconnects, float64(s.longestWait.Milliseconds()) / 1000}
}

// report writes the progress every second until ctx ends.
func (s *stats) report(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.line("PROGRESS", s.now())
		}
	}
}
