// Package history records the messages of one run that were published, confirmed and delivered, and checks them:
// every confirmed message arrives, the messages of each publisher arrive in order, and no message arrives that was
// not sent.
//
// Duplicates are counted and allowed: with confirms and acknowledgements delivery is at least once, and after a lost
// connection both sides repeat.
package history

import (
	"fmt"
	"slices"
	"sync"
)

// maxExamples bounds the number of faults that a verdict describes one by one.
const maxExamples = 10

// History is the record of one run. It is safe for concurrent use.
type History struct {
	mu      sync.Mutex
	streams map[int]*stream
	verdict Verdict // the counters that grow as events come in
}

// stream has the messages of one publisher, numbered from 0 without gaps.
type stream struct {
	messages []state
	newest   int // highest number that arrived for the first time, -1 for none
}

type state uint8

const (
	sent state = 1 << iota
	confirmed
	rejected
	arrived
)

// Verdict is the result of a history. The counts are numbers of messages.
type Verdict struct {
	OK          bool     `json:"ok"`          // nothing of the next five was found
	Lost        int      `json:"lost"`        // confirmed, never arrived
	Reordered   int      `json:"reordered"`   // arrived first after a later one of the same publisher, without the redelivered mark
	Phantoms    int      `json:"phantoms"`    // arrived, never sent
	Corrupted   int      `json:"corrupted"`   // arrived with another content than was sent
	Unconfirmed int      `json:"unconfirmed"` // sent, and the broker never said it has it
	Sent        int      `json:"sent"`
	Confirmed   int      `json:"confirmed"`
	Rejected    int      `json:"rejected"`   // refused at least once by the broker (basic.nack)
	Arrived     int      `json:"arrived"`    // different messages
	Duplicates  int      `json:"duplicates"` // arrivals of messages that had arrived before
	Overtaken   int      `json:"overtaken"`  // like Reordered, with the redelivered mark: was on its way to a consumer that was lost
	Examples    []string `json:"examples,omitempty"`
}

// New returns an empty history.
func New() *History { return &History{streams: map[int]*stream{}} }

// Sent records that a publisher is about to send a message, the first time or again.
func (h *History) Sent(publisher, number int) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.streams[publisher]
	if s == nil {
		s = &stream{newest: -1}
		h.streams[publisher] = s
	}
	switch {
	case number < 0 || number > len(s.messages):
		return fmt.Errorf("publisher %d sent message %d after %d messages", publisher, number, len(s.messages))
	case number == len(s.messages):
		s.messages = append(s.messages, sent)
	}
	return nil
}

// Confirmed records that the broker confirmed a message.
func (h *History) Confirmed(publisher, number int) error { return h.mark(publisher, number, confirmed) }

// Rejected records that the broker rejected a message, which is then sent again. The message loses its place in the
// order, which is no fault of the broker.
func (h *History) Rejected(publisher, number int) error { return h.mark(publisher, number, rejected) }

func (h *History) mark(publisher, number int, what state) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	m := h.message(publisher, number)
	if m == nil {
		return fmt.Errorf("the broker answered for message %d of publisher %d, which was never sent", number, publisher)
	}
	*m |= what
	return nil
}

// message returns the state of a sent message, nil for any other.
func (h *History) message(publisher, number int) *state {
	s := h.streams[publisher]
	if s == nil || number < 0 || number >= len(s.messages) {
		return nil
	}
	return &s.messages[number]
}

// Arrived records a delivery; redelivered is the broker's mark, intact is set when its content was as sent.
//
// A marked message was on its way to a consumer that was lost, and returned to its queue. Another consumer may have got
// later messages before the broker noticed the loss, so its order is not judged.
func (h *History) Arrived(publisher, number int, redelivered, intact bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m := h.message(publisher, number)
	switch {
	case m == nil:
		h.verdict.Phantoms++
		h.example("message %d of publisher %d arrived, but was never sent", number, publisher)
		return
	case !intact:
		// The content differs from the sent message: it counts as lost too, unless it comes again.
		h.verdict.Corrupted++
		h.example("message %d of publisher %d arrived with another content", number, publisher)
		return
	case *m&arrived != 0:
		h.verdict.Duplicates++
		return
	}
	*m |= arrived
	s := h.streams[publisher]
	switch {
	case number > s.newest || *m&rejected != 0:
	case redelivered:
		h.verdict.Overtaken++
	default:
		h.verdict.Reordered++
		h.example("message %d of publisher %d arrived first after message %d", number, publisher, s.newest)
	}
	s.newest = max(s.newest, number)
}

func (h *History) example(format string, args ...any) {
	if len(h.verdict.Examples) < maxExamples {
		h.verdict.Examples = append(h.verdict.Examples, fmt.Sprintf(format, args...))
	}
}

// Complete reports whether every confirmed message has arrived.
func (h *History) Complete() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.streams {
		for _, m := range s.messages {
			if lost(m) {
				return false
			}
		}
	}
	return true
}

func lost(m state) bool { return m&confirmed != 0 && m&arrived == 0 }

// Judge returns the verdict over all records so far.
func (h *History) Judge() Verdict {
	h.mu.Lock()
	defer h.mu.Unlock()
	v := h.verdict
	v.Examples = slices.Clone(v.Examples)
	for _, p := range h.publishers() {
		for number, m := range h.streams[p].messages {
			v.Sent++
			v.Confirmed += one(m&confirmed != 0)
			v.Rejected += one(m&rejected != 0)
			v.Arrived += one(m&arrived != 0)
			v.Unconfirmed += one(m&confirmed == 0)
			if lost(m) {
				v.Lost++
				if len(v.Examples) < maxExamples {
					v.Examples = append(v.Examples, fmt.Sprintf("message %d of publisher %d was confirmed and never arrived", number, p))
				}
			}
		}
	}
	v.OK = v.Lost+v.Reordered+v.Phantoms+v.Corrupted+v.Unconfirmed == 0
	return v
}

func (h *History) publishers() []int {
	var ids []int
	for p := range h.streams {
		ids = append(ids, p)
	}
	slices.Sort(ids)
	return ids
}

func one(b bool) int {
	if b {
		return 1
	}
	return 0
}
