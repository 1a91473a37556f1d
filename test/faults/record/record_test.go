package record

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

const q = "orders"

// run returns a history with one queue, one channel that published n messages, all confirmed, and one consumer.
func run(order Order, n int) (*History, int, *Session) {
	h := New()
	h.Queue(q, order)
	s := h.Publishing(q)
	for range n {
		h.Confirmed(h.Sent(s))
	}
	return h, s, h.Consuming(q, "test")
}

// take delivers messages for the first time and acknowledges them.
func take(h *History, c *Session, stream int, numbers ...int) {
	for _, i := range numbers {
		h.Arrived(c, Message{stream, i}, false, true)
		h.Acked(Message{stream, i})
	}
}

func upTo(n int) (all []int) {
	for i := range n {
		all = append(all, i)
	}
	return all
}

// only expects exactly this violation, once.
func only(t *testing.T, h *History, count func(Verdict) int, says string) {
	t.Helper()
	v := h.Judge(true)
	all := v.Lost + v.Reordered + v.Resurrected + v.Doubled + v.Invented + v.Corrupted + v.Unroutable
	if v.OK() || count(v) != 1 || all != 1 || len(v.Examples) != 1 || !strings.Contains(v.Examples[0], says) {
		t.Errorf("%+v", v)
	}
}

func TestCorrectRunPasses(t *testing.T) {
	for _, order := range []Order{PerConsumer, Strict} {
		h, s, c := run(order, 100)
		take(h, c, s, upTo(100)...)
		h.Empty(q)
		if v := h.Judge(true); !v.OK() || v.Sent != 100 || v.Confirmed != 100 || v.Arrived != 100 || v.Redelivered != 0 || h.Missing(q) != 0 {
			t.Errorf("%+v", v)
		}
	}
}

func TestEffectsOfFaultsAreAllowed(t *testing.T) {
	h, s, c := run(Strict, 10)
	uncertain := h.Sent(s) // the connection ended before its confirm
	take(h, c, s, 0, 1, 2)
	h.Arrived(c, Message{s, 3}, false, true) // and the consumer is cut off
	again := h.Consuming(q, "test")
	h.Arrived(again, Message{s, 2}, true, true) // its acknowledgement was lost
	h.Arrived(again, Message{s, 3}, true, true)
	h.Acked(Message{s, 2})
	h.Acked(Message{s, 3})
	take(h, again, s, 4, 5, 6, 7, 8, 9)
	take(h, again, s, uncertain.Number)
	if v := h.Judge(true); !v.OK() || v.Redelivered != 2 || v.Arrived != 11 {
		t.Errorf("%+v", v)
	}
	h, s, c = run(PerConsumer, 4)
	other := h.Consuming(q, "test")
	take(h, c, s, 1, 3)
	take(h, other, s, 0, 2) // the order between two consumers is not defined
	if v := h.Judge(true); !v.OK() {
		t.Errorf("%+v", v)
	}
}

func TestFindsALostMessage(t *testing.T) {
	h, s, c := run(Strict, 10)
	take(h, c, s, 0, 1, 2, 3, 5, 6, 7, 8, 9)
	if h.Missing(q) != 1 {
		t.Errorf("%d missing", h.Missing(q))
	}
	only(t, h, func(v Verdict) int { return v.Lost }, "message 4 of stream 0 was confirmed by queue orders and never came")
}

func TestMissingIsNotLostBeforeTheEnd(t *testing.T) {
	h, s, c := run(Strict, 10)
	take(h, c, s, 0, 1, 2)
	if v := h.Judge(false); !v.OK() || v.Missing != 7 || v.Lost != 0 {
		t.Errorf("%+v", v)
	}
}

func TestFindsALostTail(t *testing.T) {
	h, s, c := run(PerConsumer, 10)
	take(h, c, s, upTo(9)...)
	only(t, h, func(v Verdict) int { return v.Lost }, "message 9")
}

func TestFindsALostRequeue(t *testing.T) {
	h, s, c := run(Strict, 2)
	take(h, c, s, 0)
	h.Arrived(c, Message{s, 1}, false, true) // and requeued
	only(t, h, func(v Verdict) int { return v.Lost }, "given back and never came again")
}

func TestFindsReordering(t *testing.T) {
	h, s, c := run(PerConsumer, 5)
	take(h, c, s, 0, 2, 1, 3, 4)
	only(t, h, func(v Verdict) int { return v.Reordered }, "message 1 of stream 0 came to a consumer")
}

func TestFindsReorderingAcrossConsumers(t *testing.T) {
	h, s, c := run(Strict, 3)
	take(h, c, s, 1)
	take(h, h.Consuming(q, "test"), s, 0)
	take(h, c, s, 2)
	only(t, h, func(v Verdict) int { return v.Reordered }, "message 0 of stream 0 came from queue orders for the first time after number 1")
}

func TestFindsReorderingOfRedeliveredMessages(t *testing.T) {
	h, s, c := run(Strict, 2)
	take(h, c, s, 1)
	h.Arrived(c, Message{s, 0}, true, true)
	h.Acked(Message{s, 0})
	only(t, h, func(v Verdict) int { return v.Reordered }, "message 0")
}

func TestFindsResurrection(t *testing.T) {
	h, s, c := run(Strict, 5)
	take(h, c, s, upTo(5)...)
	h.Empty(q)
	h.Arrived(c, Message{s, 2}, true, true)
	only(t, h, func(v Verdict) int { return v.Resurrected }, "message 2 of stream 0 came from queue orders again")
}

func TestFindsDoubling(t *testing.T) {
	h, s, c := run(Strict, 5)
	take(h, c, s, upTo(5)...)
	h.Arrived(h.Consuming(q, "test"), Message{s, 4}, false, true)
	only(t, h, func(v Verdict) int { return v.Doubled }, "message 4 of stream 0 came twice")
}

func TestFindsInvention(t *testing.T) {
	for _, m := range []Message{{0, 5}, {0, -1}, {1, 0}, {-1, 0}} {
		h, s, c := run(Strict, 5)
		take(h, c, s, upTo(5)...)
		h.Arrived(c, m, false, true)
		only(t, h, func(v Verdict) int { return v.Invented }, "never sent there")
	}
}

func TestFindsAMessageOfAnotherQueue(t *testing.T) {
	h, s, c := run(Strict, 1)
	take(h, c, s, 0)
	h.Queue("other", Strict)
	m := h.Sent(h.Publishing("other"))
	h.Arrived(c, m, false, true)
	only(t, h, func(v Verdict) int { return v.Invented }, "never sent there")
}

func TestFindsAConfirmForNothing(t *testing.T) {
	h, s, _ := run(Strict, 0)
	h.Confirmed(Message{s, 0})
	only(t, h, func(v Verdict) int { return v.Invented }, "confirmed and never sent")
}

func TestFindsReturnsAndLaterDeliveries(t *testing.T) {
	h, s, c := run(Strict, 0)
	m := h.Sent(s)
	h.Returned(m)
	only(t, h, func(v Verdict) int { return v.Unroutable }, "unroutable")
	take(h, c, s, m.Number)
	if v := h.Judge(true); v.Invented != 1 {
		t.Errorf("%+v", v)
	}
}

func TestFindsCorruption(t *testing.T) {
	h, s, c := run(Strict, 1)
	h.Arrived(c, Message{s, 0}, false, false)
	if v := h.Judge(true); v.Corrupted != 1 || v.Lost != 1 {
		t.Errorf("%+v", v)
	}
}

// Any damage to a correct sequence of first deliveries is detected.
func TestAnyDamageIsDetected(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		n := 2 + r.IntN(50)
		order := upTo(n)
		a, b := r.IntN(n), r.IntN(n)
		switch r.IntN(3) {
		case 0:
			if a == b {
				continue
			}
			order[a], order[b] = order[b], order[a]
		case 1:
			order = slices.Delete(order, a, a+1)
		case 2:
			order = slices.Insert(order, max(a, b), order[min(a, b)])
		}
		for _, promise := range []Order{PerConsumer, Strict} {
			h, s, c := run(promise, n)
			take(h, c, s, order...)
			if v := h.Judge(true); v.OK() {
				t.Fatalf("accepted %v of %d", order, n)
			}
		}
	}
}

func TestExamplesAreBounded(t *testing.T) {
	h, _, _ := run(Strict, 10*maxExamples)
	if v := h.Judge(true); v.Lost != 10*maxExamples || len(v.Examples) != maxExamples {
		t.Errorf("%d lost, %d told", v.Lost, len(v.Examples))
	}
}
