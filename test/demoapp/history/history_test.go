package history

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"
)

// published returns a history in which each publisher sent n messages, all confirmed.
func published(t *testing.T, publishers, n int) *History {
	t.Helper()
	h := New()
	for p := range publishers {
		for i := range n {
			must(t, h.Sent(p, i))
			must(t, h.Confirmed(p, i))
		}
	}
	return h
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestCorrectRunPasses(t *testing.T) {
	h := published(t, 3, 100)
	for i := range 100 {
		for p := range 3 {
			h.Arrived(p, i, false, true)
		}
	}
	v := h.Judge()
	if !v.OK || v.Sent != 300 || v.Arrived != 300 || v.Duplicates != 0 || !h.Complete() {
		t.Errorf("%+v", v)
	}
}

func TestDuplicatesAreAllowed(t *testing.T) {
	// A connection is lost after message 5 of 10: the publisher repeats 3 to 5, and
	// the consumer gets 2 to 5 again.
	h := published(t, 1, 10)
	for _, i := range []int{0, 1, 2, 3, 4, 5, 2, 3, 4, 5, 3, 4, 5, 6, 7, 8, 9} {
		h.Arrived(0, i, false, true)
	}
	if v := h.Judge(); !v.OK || v.Duplicates != 7 || v.Arrived != 10 {
		t.Errorf("%+v", v)
	}
}

func TestDamagedHistoryFails(t *testing.T) {
	all := func(h *History) {
		for i := range 10 {
			h.Arrived(0, i, false, true)
		}
	}
	cases := map[string]struct {
		arrive func(*History)
		count  func(Verdict) int
		says   string
	}{
		"one lost": {func(h *History) {
			for i := range 10 {
				if i != 4 {
					h.Arrived(0, i, false, true)
				}
			}
		}, func(v Verdict) int { return v.Lost }, "message 4 of publisher 0 was confirmed and never arrived"},
		"the last lost": {func(h *History) {
			for i := range 9 {
				h.Arrived(0, i, false, true)
			}
		}, func(v Verdict) int { return v.Lost }, "message 9"},
		"two exchanged": {func(h *History) {
			for _, i := range []int{0, 1, 3, 2, 4, 5, 6, 7, 8, 9} {
				h.Arrived(0, i, false, true)
			}
		}, func(v Verdict) int { return v.Reordered }, "message 2 of publisher 0 arrived first after message 3"},
		"never sent": {func(h *History) { all(h); h.Arrived(0, 10, false, true) },
			func(v Verdict) int { return v.Phantoms }, "never sent"},
		"unknown publisher": {func(h *History) { all(h); h.Arrived(7, 0, false, true) },
			func(v Verdict) int { return v.Phantoms }, "publisher 7"},
		"negative number": {func(h *History) { all(h); h.Arrived(0, -1, false, true) },
			func(v Verdict) int { return v.Phantoms }, "never sent"},
		"another content": {func(h *History) { all(h); h.Arrived(0, 3, false, false) },
			func(v Verdict) int { return v.Corrupted }, "another content"},
	}
	for name, c := range cases {
		h := published(t, 1, 10)
		c.arrive(h)
		v := h.Judge()
		if v.OK || c.count(v) != 1 || !strings.Contains(strings.Join(v.Examples, "\n"), c.says) {
			t.Errorf("%s: %+v", name, v)
		}
	}
}

func TestCorruptedFirstArrivalDoesNotCount(t *testing.T) {
	h := published(t, 1, 1)
	h.Arrived(0, 0, false, false)
	if v := h.Judge(); v.Lost != 1 || v.Corrupted != 1 || h.Complete() {
		t.Errorf("%+v", v)
	}
}

func TestUnconfirmedIsAFaultButNotALoss(t *testing.T) {
	h := New()
	must(t, h.Sent(0, 0))
	if v := h.Judge(); v.OK || v.Lost != 0 || v.Unconfirmed != 1 || !h.Complete() {
		t.Errorf("%+v", v)
	}
}

func TestRejectedMessagesMayArriveLate(t *testing.T) {
	h := published(t, 1, 3)
	must(t, h.Rejected(0, 1))
	for _, i := range []int{0, 2, 1} {
		h.Arrived(0, i, false, true)
	}
	if v := h.Judge(); !v.OK || v.Rejected != 1 {
		t.Errorf("%+v", v)
	}
}

// A consumer is lost with messages on their way to it, and the next one gets later messages first.
func TestRedeliveredMessagesMayBeOvertaken(t *testing.T) {
	h := published(t, 1, 4)
	for _, i := range []int{0, 3} {
		h.Arrived(0, i, false, true)
	}
	for _, i := range []int{1, 2} {
		h.Arrived(0, i, true, true)
	}
	if v := h.Judge(); !v.OK || v.Overtaken != 2 || v.Reordered != 0 || v.Arrived != 4 {
		t.Errorf("%+v", v)
	}
}

func TestImpossibleEventsAreRefused(t *testing.T) {
	h := New()
	if h.Sent(0, 1) == nil || h.Sent(0, -1) == nil {
		t.Error("a gap in what was sent was accepted")
	}
	if h.Confirmed(0, 0) == nil || h.Rejected(3, 1) == nil {
		t.Error("a confirmation of nothing was accepted")
	}
}

// Any damage to a correct sequence of first arrivals is detected.
func TestAnyExchangeOrOmissionIsDetected(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		n := 2 + r.IntN(50)
		order := make([]int, n)
		for i := range order {
			order[i] = i
		}
		if a, b := r.IntN(n), r.IntN(n); a != b && r.IntN(2) == 0 {
			order[a], order[b] = order[b], order[a]
		} else {
			order = append(order[:a], order[a+1:]...)
		}
		h := published(t, 1, n)
		for _, i := range order {
			h.Arrived(0, i, false, true)
		}
		if v := h.Judge(); v.OK {
			t.Fatalf("accepted %v of %d", order, n)
		}
	}
}

func TestLedgerKeepsTheVerdict(t *testing.T) {
	h := published(t, 2, 5)
	must(t, h.Sent(0, 5))
	must(t, h.Sent(1, 5))
	must(t, h.Rejected(1, 5))
	must(t, h.Confirmed(1, 5))
	var b bytes.Buffer
	must(t, h.Save(&b, "r1"))
	got, run, err := Load(&b)
	must(t, err)
	want, have := h.Judge(), got.Judge()
	want.Examples, have.Examples = nil, nil
	if run != "r1" || want.Lost != have.Lost || want.Sent != have.Sent || want.Unconfirmed != have.Unconfirmed || want.Rejected != have.Rejected {
		t.Errorf("%q: saved %+v, loaded %+v", run, want, have)
	}
}

func TestInvalidLedgerIsRefused(t *testing.T) {
	for _, s := range []string{"", "[]", "{}", `{"run":"r","publishers":[{"publisher":1,"sent":-1}]}`,
		`{"run":"r","publishers":[{"publisher":1,"sent":99999999999}]}`} {
		if _, _, err := Load(strings.NewReader(s)); err == nil {
			t.Errorf("%q was accepted", s)
		}
	}
}
