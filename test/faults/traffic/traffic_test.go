package traffic

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"posthorn.io/posthorn/test/faults/record"
)

func delivered(p amqp.Publishing) amqp.Delivery {
	return amqp.Delivery{DeliveryMode: p.DeliveryMode, MessageId: p.MessageId, ContentType: p.ContentType, Body: p.Body}
}

func TestDamagedMessagesAreDetected(t *testing.T) {
	for i := range 1000 {
		m := record.Message{Stream: i % 7, Number: i}
		d := delivered(publishingOf(m))
		if got, intact := check(d); got != m || !intact || len(d.Body) > maxBody {
			t.Fatalf("%v came as %v, intact %v", m, got, intact)
		}
		d.Body[len(d.Body)/2] ^= 1
		if _, intact := check(d); intact {
			t.Fatalf("%v with a flipped bit is intact", m)
		}
	}
	d := delivered(publishingOf(record.Message{Stream: 1, Number: 2}))
	d.MessageId = "1/3"
	if _, intact := check(d); intact {
		t.Error("a message with another's content is intact")
	}
	for _, id := range []string{"", "1", "1/", "x/1", "1/2/3", "01/2", "1/2 "} {
		if m, err := parse(id); err == nil {
			t.Errorf("%q is %v", id, m)
		}
	}
}

func TestMeterFindsTheLongestSilence(t *testing.T) {
	at := func(ms int) time.Time { return time.Unix(0, 0).Add(time.Duration(ms) * time.Millisecond) }
	m := &meter{}
	m.begin(at(0))
	for _, ms := range []int{10, 20, 500, 510} {
		m.confirm(at(ms))
	}
	if got := m.longest(at(520)); got != 480*time.Millisecond || m.confirms() != 4 {
		t.Error(got, m.confirms())
	}
	if got := m.longest(at(1600)); got != 1090*time.Millisecond {
		t.Error("a silence that lasts does not count:", got)
	}
	m.begin(at(2000))
	if got := m.longest(at(2001)); got != time.Millisecond || m.confirms() != 0 {
		t.Error(got)
	}
}

func TestGateBlocksWhileShut(t *testing.T) {
	g := gate{opened: make(chan struct{})}
	if open, _ := g.state(); open {
		t.Error("begins open")
	}
	_, opens := g.state()
	g.open()
	g.open()
	<-opens
	g.shut()
	g.shut()
	if open, opens := g.state(); open {
		t.Error("shut and open")
	} else {
		select {
		case <-opens:
			t.Error("shut and opens")
		default:
		}
	}
}
