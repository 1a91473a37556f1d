package record

import "testing"

// sentAndConfirmed returns a history of one publisher with three confirmed messages.
func sentAndConfirmed() *StreamHistory {
	h := NewStreamHistory("s", 1)
	for range 3 {
		h.Confirmed(h.Sent(0))
	}
	return h
}

func message(id int) StreamMessage { return StreamMessage{0, id} }

func TestStreamHistoryOfACorrectBrokerIsAccepted(t *testing.T) {
	h := sentAndConfirmed()
	h.Sent(0) // without a confirm it may exist or not
	for range 2 {
		for offset := range 3 {
			h.Read(offset, message(offset+1), true)
		}
	}
	h.Confirmed(message(1)) // it was repeated
	h.Skipped(3, 4)
	h.Read(4, message(4), true)
	h.Sequence(0, 3, 4)
	if v := h.Judge(true); !v.OK() || h.Missing() != 0 || v.Sent != 4 || v.Confirmed != 3 || v.Arrived != 4 {
		t.Errorf("%+v, %d missing", v, h.Missing())
	}
}

func TestStreamHistoryDetectsEachViolation(t *testing.T) {
	for name, c := range map[string]struct {
		falsify func(*StreamHistory)
		count   func(StreamVerdict) int
	}{
		"lost":    {func(*StreamHistory) {}, func(v StreamVerdict) int { return v.Lost }},
		"changed": {func(h *StreamHistory) { h.Read(0, message(2), true) }, func(v StreamVerdict) int { return v.Changed }},
		"changed from a record that is no message": {func(h *StreamHistory) { h.Skipped(1, 2); h.Read(1, message(2), true) }, func(v StreamVerdict) int { return v.Changed }},
		"doubled":                  {func(h *StreamHistory) { h.Read(1, message(1), true) }, func(v StreamVerdict) int { return v.Doubled }},
		"reordered":                {func(h *StreamHistory) { h.Read(2, message(2), true); h.Read(1, message(3), true) }, func(v StreamVerdict) int { return v.Reordered }},
		"skipped":                  {func(h *StreamHistory) { h.Skipped(0, 2) }, func(v StreamVerdict) int { return v.Skipped }},
		"forgotten":                {func(h *StreamHistory) { h.Sequence(0, h.LastConfirmed(0), 2) }, func(v StreamVerdict) int { return v.Forgotten }},
		"invented":                 {func(h *StreamHistory) { h.Read(1, message(4), true) }, func(v StreamVerdict) int { return v.Invented }},
		"confirmed but never sent": {func(h *StreamHistory) { h.Confirmed(message(9)) }, func(v StreamVerdict) int { return v.Invented }},
		"corrupted":                {func(h *StreamHistory) { h.Read(1, message(2), false) }, func(v StreamVerdict) int { return v.Corrupted }},
	} {
		h := sentAndConfirmed()
		h.Read(0, message(1), true)
		c.falsify(h)
		if v := h.Judge(true); c.count(v) == 0 || v.OK() || len(v.Examples) == 0 {
			t.Errorf("%s: %+v", name, v)
		}
	}
}

func TestMissingMessagesAreNotLostBeforeTheEnd(t *testing.T) {
	h := sentAndConfirmed()
	if v := h.Judge(false); !v.OK() || h.Missing() != 3 {
		t.Errorf("%+v, %d missing", v, h.Missing())
	}
}
