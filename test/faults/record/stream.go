package record

import (
	"fmt"
	"sync"
	"time"
)

// StreamVerdict is the result of a stream's history. The counts are numbers of messages.
type StreamVerdict struct {
	Lost      int // confirmed, and not in the stream although there was time
	Changed   int // another message at an offset that had one
	Doubled   int // at two offsets, although its publisher has a name
	Reordered int // at a lower offset than an earlier message of its publisher
	Skipped   int // a consumer got a later offset without the message before it
	Forgotten int // confirmed, and the stream reports a lower publishing id for its publisher
	Invented  int // never sent
	Corrupted int // with other content
	Sent      int
	Confirmed int
	Arrived   int // different messages
	Examples  []string
}

// OK reports whether the checks found no violation.
func (v StreamVerdict) OK() bool {
	return v.Lost+v.Changed+v.Doubled+v.Reordered+v.Skipped+v.Forgotten+v.Invented+v.Corrupted == 0
}

// StreamHistory is the record of one stream. Its publishers have names, send each message with the next publishing id
// from 1, and repeat messages without a confirm after a lost connection. It is safe for concurrent use.
type StreamHistory struct {
	mu         sync.Mutex
	name       string
	began      time.Time
	publishers []streamPublisher
	// Messages by their offsets.
	offsets []StreamMessage
	missing int
	verdict StreamVerdict
}

// StreamMessage identifies a message: its publisher and its publishing id, from 1.
type StreamMessage struct{ Publisher, ID int }

type streamPublisher struct {
	// By publishing id less 1.
	messages  []streamMessage
	confirmed int // highest id
}

type streamMessage struct {
	confirmed bool
	offset    int // -1: none yet
}

// NewStreamHistory returns an empty history for a number of publishers.
func NewStreamHistory(name string, publishers int) *StreamHistory {
	return &StreamHistory{name: name, began: time.Now(), publishers: make([]streamPublisher, publishers)}
}

// Sent records that a publisher is about to send its next message, and returns the message.
func (h *StreamHistory) Sent(publisher int) StreamMessage {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := &h.publishers[publisher]
	p.messages = append(p.messages, streamMessage{offset: -1})
	h.verdict.Sent++
	return StreamMessage{publisher, len(p.messages)}
}

// Confirmed records a confirm. A message may be confirmed again after it was repeated.
func (h *StreamHistory) Confirmed(m StreamMessage) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.find(m)
	switch {
	case s == nil:
		h.found(&h.verdict.Invented, "%v was confirmed and never sent", m)
	case !s.confirmed:
		s.confirmed = true
		h.verdict.Confirmed++
		if s.offset < 0 {
			h.missing++
		}
		p := &h.publishers[m.Publisher]
		p.confirmed = max(p.confirmed, m.ID)
	}
}

// LastConfirmed returns the highest publishing id of a publisher that was confirmed, 0 for none. A caller of Sequence
// takes it before it asks the broker.
func (h *StreamHistory) LastConfirmed(publisher int) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.publishers[publisher].confirmed
}

// Sequence records the publishing id that the stream has stored for a publisher, of which an id was confirmed before.
func (h *StreamHistory) Sequence(publisher, confirmed int, stored uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if stored < uint64(confirmed) {
		h.found(&h.verdict.Forgotten, "the last id of publisher %d is %d after the confirm of %d", publisher, stored, confirmed)
	}
	if sent := len(h.publishers[publisher].messages); stored > uint64(sent) {
		h.found(&h.verdict.Invented, "the last id of publisher %d is %d, and %d were sent", publisher, stored, sent)
	}
}

// Read records that a consumer got a message at an offset; intact is set when the content is as sent.
func (h *StreamHistory) Read(offset int, m StreamMessage, intact bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.find(m)
	switch {
	case !intact:
		h.found(&h.verdict.Corrupted, "offset %d has another content than %v", offset, m)
		return
	case s == nil:
		h.found(&h.verdict.Invented, "offset %d has %v, which was never sent", offset, m)
		return
	}
	h.grow(offset)
	switch known := h.offsets[offset]; {
	case known == m:
		return
	case known == ownRecord:
		h.found(&h.verdict.Changed, "offset %d has %v, and had no message before", offset, m)
		return
	case known.ID != 0:
		h.found(&h.verdict.Changed, "offset %d has %v, and had %v before", offset, m, known)
		return
	case s.offset >= 0:
		h.found(&h.verdict.Doubled, "%v is at offset %d and at offset %d", m, s.offset, offset)
		return
	}
	h.offsets[offset], s.offset = m, offset
	h.verdict.Arrived++
	if s.confirmed {
		h.missing--
	}
	if before := h.find(StreamMessage{m.Publisher, m.ID - 1}); before != nil && before.offset > offset {
		h.found(&h.verdict.Reordered, "%v is at offset %d and the message before it at offset %d", m, offset, before.offset)
	}
	if after := h.find(StreamMessage{m.Publisher, m.ID + 1}); after != nil && after.offset >= 0 && after.offset < offset {
		h.found(&h.verdict.Reordered, "%v is at offset %d and the message after it at offset %d", m, offset, after.offset)
	}
}

// Skipped records that a consumer got an offset in place of the next one. A stream's own records, such as the first of
// a new leader, have offsets too. No consumer may get a message at such an offset.
func (h *StreamHistory) Skipped(next, got int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.grow(got - 1)
	for offset := next; offset < got; offset++ {
		if known := h.offsets[offset]; known.ID > 0 {
			h.found(&h.verdict.Skipped, "a consumer got offset %d after %d, without %v at offset %d", got, next-1, known, offset)
		} else {
			h.offsets[offset] = ownRecord
		}
	}
}

// ownRecord stands for the offset of a record that is no message.
var ownRecord = StreamMessage{ID: -1}

func (h *StreamHistory) grow(offset int) {
	for len(h.offsets) <= offset {
		h.offsets = append(h.offsets, StreamMessage{})
	}
}

// Missing returns the number of confirmed messages that no consumer has read yet.
func (h *StreamHistory) Missing() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.missing
}

// End returns the offset after the last message that any consumer has read.
func (h *StreamHistory) End() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.offsets)
}

// Judge returns the verdict at the end. Finished is set when the cluster had recovered and a consumer had read the
// whole stream: a missing message is lost then.
func (h *StreamHistory) Judge(finished bool) StreamVerdict {
	h.mu.Lock()
	defer h.mu.Unlock()
	before := h.verdict
	h.verdict.Examples = append([]string(nil), before.Examples...)
	if finished {
		for number, p := range h.publishers {
			for at, s := range p.messages {
				if s.confirmed && s.offset < 0 {
					h.found(&h.verdict.Lost, "%v was confirmed and is at no offset", StreamMessage{number, at + 1})
				}
			}
		}
	}
	v := h.verdict
	h.verdict = before
	return v
}

func (h *StreamHistory) find(m StreamMessage) *streamMessage {
	if m.Publisher < 0 || m.Publisher >= len(h.publishers) || m.ID < 1 || m.ID > len(h.publishers[m.Publisher].messages) {
		return nil
	}
	return &h.publishers[m.Publisher].messages[m.ID-1]
}

func (h *StreamHistory) found(count *int, format string, args ...any) {
	*count++
	if len(h.verdict.Examples) < maxExamples {
		at := fmt.Sprintf("%.1f s: stream %s: ", time.Since(h.began).Seconds(), h.name)
		h.verdict.Examples = append(h.verdict.Examples, at+fmt.Sprintf(format, args...))
	}
}

// String returns the identity of a message.
func (m StreamMessage) String() string {
	return fmt.Sprintf("message %d of publisher %d", m.ID, m.Publisher)
}
