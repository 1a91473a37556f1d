// Package record keeps the actions and observations of the clients in one run, and checks the broker's guarantees.
//
// The clients make this strict: a message is sent once and never again. A message without a confirm at the end of a
// connection may or may not be in the queue; all others are certain. So besides losses it also detects duplicated and
// resurrected messages, which clients that repeat themselves could not distinguish from their own repetitions.
package record

import (
	"fmt"
	"sync"
	"time"
)

// maxExamples bounds the number of violations that a verdict describes one by one.
const maxExamples = 20

// Order is the guarantee of a queue about the order of first deliveries.
type Order int

const (
	// PerConsumer: each consumer gets the messages of one channel in the order of publishing.
	PerConsumer Order = iota
	// Strict: all consumers together get the messages of one channel in the order of publishing, as a queue with a
	// single active consumer guarantees.
	Strict
)

// Message identifies one message: the channel that published it and its number there, from 0.
type Message struct{ Stream, Number int }

// Session is one consumer on one channel.
type Session struct {
	name   string
	queue  *queue
	newest map[int]int // by stream: highest number that arrived for the first time
}

// History is the record of one run. It is safe for concurrent use.
type History struct {
	mu       sync.Mutex
	began    time.Time
	queues   map[string]*queue
	streams  []*stream
	sessions int
	verdict  Verdict // results of the checks during the run
}

type queue struct {
	name    string
	order   Order
	missing int // confirmed, and not acknowledged by any consumer
}

type stream struct {
	queue    *queue
	messages []state
	newest   int // highest number that arrived for the first time, -1 for none
	newestBy *Session
}

type state uint8

const (
	confirmed state = 1 << iota
	arrived         // at least once
	fresh           // once without the mark of a redelivery
	acked           // an acknowledgement was sent
	gone            // and the queue was seen empty after it
	returned        // by the broker, as unroutable
)

// Verdict is the result of a history. The counts are numbers of messages.
type Verdict struct {
	Lost        int // confirmed, and not delivered although there was time
	Missing     int // the same, without enough time
	Reordered   int // arrived for the first time after a later one
	Resurrected int // arrived again after its acknowledgement was certainly applied
	Doubled     int // delivered twice without the redelivered mark
	Invented    int // never sent to this queue, or returned as unroutable
	Corrupted   int // arrived with different content
	Unroutable  int // returned although its queue exists
	Sent        int
	Confirmed   int
	Arrived     int // different messages
	Redelivered int // arrivals of messages that had already arrived
	Examples    []string
}

// OK reports whether the checks found no violation.
func (v Verdict) OK() bool {
	return v.Lost+v.Reordered+v.Resurrected+v.Doubled+v.Invented+v.Corrupted+v.Unroutable == 0
}

// New returns an empty history.
func New() *History { return &History{began: time.Now(), queues: map[string]*queue{}} }

// Queue adds a queue and its guarantee, before it is used.
func (h *History) Queue(name string, order Order) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.queues[name] = &queue{name: name, order: order}
}

// Publishing adds a channel that will publish to a queue, and returns its number.
func (h *History) Publishing(name string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.streams = append(h.streams, &stream{queue: h.queues[name], newest: -1})
	return len(h.streams) - 1
}

// Consuming adds a consumer of a queue; who is its name in examples.
func (h *History) Consuming(name, who string) *Session {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sessions++
	return &Session{fmt.Sprintf("consumer %d (%s)", h.sessions, who), h.queues[name], map[int]int{}}
}

// Sent records that a channel is about to publish its next message.
func (h *History) Sent(streamNumber int) Message {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.streams[streamNumber]
	s.messages = append(s.messages, 0)
	return Message{streamNumber, len(s.messages) - 1}
}

// Confirmed records that the broker confirmed a message.
func (h *History) Confirmed(m Message) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.mark(m, confirmed) {
		return
	}
	h.found(&h.verdict.Invented, "%v was confirmed and never sent", m)
}

// Returned records that the broker returned a message as unroutable.
func (h *History) Returned(m Message) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mark(m, returned)
	h.found(&h.verdict.Unroutable, "%v came back as unroutable", m)
}

// Arrived records a delivery; redelivered is the broker's mark, intact is set when the content is as sent.
func (h *History) Arrived(c *Session, m Message, redelivered, intact bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.find(m)
	switch {
	case s == nil || h.streams[m.Stream].queue != c.queue:
		h.found(&h.verdict.Invented, "%v came from queue %s and was never sent there", m, c.queue.name)
		return
	case !intact:
		h.found(&h.verdict.Corrupted, "%v came from queue %s with another content", m, c.queue.name)
		return
	}
	h.unexpected(c, m, *s, redelivered)
	h.inOrder(c, m, *s, redelivered)
	if *s&arrived != 0 {
		h.verdict.Redelivered++
	}
	*s |= arrived
	if !redelivered {
		*s |= fresh
	}
}

// unexpected detects arrivals that must never happen.
func (h *History) unexpected(c *Session, m Message, s state, redelivered bool) {
	switch {
	case s&gone != 0:
		h.found(&h.verdict.Resurrected, "%v came from queue %s again, which had been empty after its acknowledgement", m, c.queue.name)
	case s&fresh != 0 && !redelivered:
		h.found(&h.verdict.Doubled, "%v came twice from queue %s as if for the first time", m, c.queue.name)
	case s&returned != 0:
		h.found(&h.verdict.Invented, "%v came from queue %s after it was returned as unroutable", m, c.queue.name)
	}
}

// inOrder compares a first delivery with the order of publishing.
func (h *History) inOrder(c *Session, m Message, s state, redelivered bool) {
	if !redelivered {
		newest, seen := c.newest[m.Stream]
		if seen && m.Number < newest && s&fresh == 0 {
			h.found(&h.verdict.Reordered, "%v came to a consumer of queue %s for the first time after number %d", m, c.queue.name, newest)
		}
		c.newest[m.Stream] = max(newest, m.Number)
	}
	if s&arrived != 0 {
		return
	}
	st := h.streams[m.Stream]
	if c.queue.order == Strict && m.Number < st.newest {
		h.found(&h.verdict.Reordered, "%v came from queue %s for the first time after number %d, to %s after %s", m, c.queue.name, st.newest, c.name, st.newestBy.name)
	}
	if m.Number > st.newest {
		st.newest, st.newestBy = m.Number, c
	}
}

// Acked records that a consumer is about to acknowledge a message.
func (h *History) Acked(m Message) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mark(m, acked)
}

// Empty records that the broker, after all acknowledgements so far, reports an empty queue, with no ready and no
// unacknowledged message: acknowledged messages must not come again.
func (h *History) Empty(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, st := range h.streams {
		if st.queue.name != name {
			continue
		}
		for i, s := range st.messages {
			if s&acked != 0 {
				st.messages[i] |= gone
			}
		}
	}
}

// Missing returns the number of confirmed messages of a queue that no consumer has acknowledged yet.
func (h *History) Missing(name string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.queues[name].missing
}

func lost(s state) bool { return s&confirmed != 0 && s&acked == 0 }

// Judge returns the verdict at the end. Finished is set when consumers had the time to consume everything: a missing
// message is lost then.
func (h *History) Judge(finished bool) Verdict {
	h.mu.Lock()
	defer h.mu.Unlock()
	found := h.verdict
	found.Examples = append([]string(nil), found.Examples...)
	end := History{began: h.began, verdict: found}
	v := &end.verdict
	for number, st := range h.streams {
		for i, s := range st.messages {
			v.Sent++
			v.Confirmed += one(s&confirmed != 0)
			v.Arrived += one(s&arrived != 0)
			if lost(s) && !finished {
				v.Missing++
			} else if lost(s) {
				seen := "never came"
				if s&arrived != 0 {
					seen = "came, was given back and never came again"
				}
				end.found(&v.Lost, "%v was confirmed by queue %s and %s", Message{number, i}, st.queue.name, seen)
			}
		}
	}
	return *v
}

func (h *History) find(m Message) *state {
	if m.Stream < 0 || m.Stream >= len(h.streams) || m.Number < 0 || m.Number >= len(h.streams[m.Stream].messages) {
		return nil
	}
	return &h.streams[m.Stream].messages[m.Number]
}

// mark adds to the state of a message; false when it was never sent.
func (h *History) mark(m Message, what state) bool {
	s := h.find(m)
	if s == nil {
		return false
	}
	before := lost(*s)
	*s |= what
	h.streams[m.Stream].queue.missing += one(lost(*s)) - one(before)
	return true
}

func (h *History) found(count *int, format string, args ...any) {
	*count++
	if len(h.verdict.Examples) < maxExamples {
		at := fmt.Sprintf("%.1f s: ", time.Since(h.began).Seconds())
		h.verdict.Examples = append(h.verdict.Examples, at+fmt.Sprintf(format, args...))
	}
}

// String returns the identity of a message in its content.
func (m Message) String() string { return fmt.Sprintf("message %d of stream %d", m.Number, m.Stream) }

func one(b bool) int {
	if b {
		return 1
	}
	return 0
}
