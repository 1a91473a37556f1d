package history

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Bounds on a ledger file, whose content is not trusted.
const (
	maxPublishers = 10_000
	maxMessages   = 100_000_000
)

// ledger is the published part of a history as a file, with which a consumer, perhaps in another process, compares
// its deliveries.
type ledger struct {
	Run        string           `json:"run"`
	Publishers []ledgerOfStream `json:"publishers"`
}

type ledgerOfStream struct {
	Publisher   int   `json:"publisher"`
	Sent        int   `json:"sent"` // messages 0 to Sent-1
	Unconfirmed []int `json:"unconfirmed,omitempty"`
	Rejected    []int `json:"rejected,omitempty"`
}

// Save writes the published and confirmed messages of the run of this name.
func (h *History) Save(w io.Writer, run string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := ledger{Run: run}
	for _, p := range h.publishers() {
		s := ledgerOfStream{Publisher: p, Sent: len(h.streams[p].messages)}
		for number, m := range h.streams[p].messages {
			if m&confirmed == 0 {
				s.Unconfirmed = append(s.Unconfirmed, number)
			}
			if m&rejected != 0 {
				s.Rejected = append(s.Rejected, number)
			}
		}
		l.Publishers = append(l.Publishers, s)
	}
	return json.NewEncoder(w).Encode(l)
}

// Load reads a ledger. It returns a history without arrivals and the name of its run.
func Load(r io.Reader) (*History, string, error) {
	var l ledger
	if err := json.NewDecoder(r).Decode(&l); err != nil {
		return nil, "", fmt.Errorf("ledger: %w", err)
	}
	if l.Run == "" || len(l.Publishers) > maxPublishers {
		return nil, "", errors.New("ledger: no run is named, or too many publishers")
	}
	h, total := New(), 0
	for _, s := range l.Publishers {
		if total += s.Sent; s.Sent < 0 || s.Sent > maxMessages || total > maxMessages {
			return nil, "", fmt.Errorf("ledger: publisher %d: impossible number of messages %d", s.Publisher, s.Sent)
		}
		st := &stream{newest: -1, messages: make([]state, s.Sent)}
		for i := range st.messages {
			st.messages[i] = sent | confirmed
		}
		h.streams[s.Publisher] = st
		for _, number := range s.Unconfirmed {
			if m := h.message(s.Publisher, number); m != nil {
				*m &^= confirmed
			}
		}
		for _, number := range s.Rejected {
			if m := h.message(s.Publisher, number); m != nil {
				*m |= rejected
			}
		}
	}
	return h, l.Run, nil
}
