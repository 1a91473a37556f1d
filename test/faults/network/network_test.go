package network

import (
	"testing"
	"time"
)

type sink struct{ got chan []byte }

func (s sink) deliver(p []byte) { s.got <- p }

func TestCutDropsEveryPacket(t *testing.T) {
	l := newLink(1, 0, 1, nil)
	l.quality.Store(&Quality{Cut: true})
	for range 100 {
		if _, ok := l.schedule(time.Now()); ok {
			t.Fatal("a cut link carried a packet")
		}
	}
}

func TestLossIsReproducibleFromTheSeed(t *testing.T) {
	count := func(seed uint64) (arrived int) {
		l := newLink(seed, 0, 1, nil)
		l.quality.Store(&Quality{Loss: 0.1})
		for range 10_000 {
			if _, ok := l.schedule(time.Now()); ok {
				arrived++
			}
		}
		return arrived
	}
	if n := count(7); n < 8_800 || n > 9_200 || n != count(7) {
		t.Errorf("%d of 10000 arrived, then %d", n, count(7))
	}
}

func TestDelayKeepsTheOrder(t *testing.T) {
	l := newLink(3, 0, 1, nil)
	l.quality.Store(&Quality{Delay: time.Millisecond, Jitter: 20 * time.Millisecond})
	now, last := time.Now(), time.Time{}
	for range 1000 {
		now = now.Add(time.Millisecond)
		due, ok := l.schedule(now)
		if !ok || due.Before(last) || due.Before(now.Add(time.Millisecond)) {
			t.Fatalf("sent %v, due %v after %v", now, due, last)
		}
		last = due
	}
}

func TestLinkKeepsTheOrderAndDropsTheExcess(t *testing.T) {
	s := sink{make(chan []byte, 2*queueLength)}
	l := newLink(1, 0, 1, s)
	for i := range 2 * queueLength {
		l.send([]byte{byte(i), byte(i >> 8)})
	}
	over := make(chan struct{})
	go l.carry(over)
	for next := range queueLength {
		if p := <-s.got; int(p[0])|int(p[1])<<8 != next {
			t.Fatalf("packet %d came as number %d", int(p[0])|int(p[1])<<8, next)
		}
	}
	l.send([]byte{1, 2, 3})
	if p := <-s.got; len(p) != 3 {
		t.Errorf("%v came after a full link", p)
	}
	close(over)
}

func TestDestinationOfAPacket(t *testing.T) {
	packet := make([]byte, 20)
	packet[0] = 0x45
	copy(packet[16:], Address(2).AsSlice())
	if to, ok := destination(packet, 4); !ok || to != 2 {
		t.Error(to, ok)
	}
	for _, bad := range [][]byte{nil, packet[:19], append([]byte{0x60}, packet[1:]...)} {
		if _, ok := destination(bad, 4); ok {
			t.Errorf("%v has a destination", bad)
		}
	}
	if _, ok := destination(packet, 2); ok {
		t.Error("a host that is not there has a number")
	}
}
