package traffic

import (
	"context"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"posthorn.io/posthorn/test/faults/record"
)

// publisher sends each message once. It does not repeat messages without a confirm after a lost connection.
type publisher struct {
	load  *Load
	queue string
	meter *meter
	busy  bool
}

// publish runs on one channel until the channel ends.
func (p *publisher) publish(ctx context.Context, channel client) error {
	window := p.load.o.Window
	if err := channel.Confirm(false); err != nil {
		return err
	}
	channel.isSetUp()
	s := &publishing{publisher: p, channel: channel.Channel, stream: p.load.History.Publishing(p.queue),
		// Room for a whole window, so that the library's reader never blocks on us.
		confirms: channel.NotifyPublish(make(chan amqp.Confirmation, window)),
		returns:  channel.NotifyReturn(make(chan amqp.Return, window)),
		closed:   channel.NotifyClose(make(chan *amqp.Error, 1)),
	}
	defer func() { p.busy = p.load.setBusy(p.busy, false) }()
	return s.run(ctx)
}

// publishing is the state of one channel.
type publishing struct {
	*publisher
	channel  *amqp.Channel
	stream   int
	sent     int // messages of this channel
	answered int // the broker answers in any order, the library delivers the answers in order
	confirms <-chan amqp.Confirmation
	returns  <-chan amqp.Return
	closed   <-chan *amqp.Error
}

func (s *publishing) run(ctx context.Context) error {
	pace := time.NewTicker(s.load.o.Interval)
	defer pace.Stop()
	waiting := time.NewTimer(patience)
	defer waiting.Stop()
	for {
		open, opens := s.load.gate.state()
		turn := pace.C
		if !open || s.sent-s.answered >= s.load.o.Window {
			turn = nil
		}
		if open {
			opens = nil
		}
		s.busy = s.load.setBusy(s.busy, s.sent > s.answered)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-s.closed:
			return ended(err)
		case c, more := <-s.confirms:
			if !more {
				s.confirms = nil // the channel closed has the cause
				continue
			}
			s.answer(c)
			waiting.Reset(patience)
		case <-opens:
			waiting.Reset(patience)
		case <-turn:
			if s.sent == s.answered {
				waiting.Reset(patience)
			}
			if err := s.send(ctx); err != nil {
				return err
			}
		case <-waiting.C:
			if s.sent > s.answered {
				return errImpatient
			}
			waiting.Reset(patience)
		}
	}
}

func (s *publishing) send(ctx context.Context) error {
	m := s.load.History.Sent(s.stream)
	s.sent++
	return s.channel.PublishWithContext(ctx, "", s.queue, true, false, publishingOf(m))
}

func (s *publishing) answer(c amqp.Confirmation) {
	s.answered++
	m := record.Message{Stream: s.stream, Number: int(c.DeliveryTag) - 1}
	if s.wasReturned(m) || !c.Ack {
		return
	}
	s.load.History.Confirmed(m)
	s.meter.confirm(time.Now())
}

// wasReturned reads the returns before a confirm, and reports whether its message is among them.
func (s *publishing) wasReturned(m record.Message) (found bool) {
	for {
		select {
		case r, more := <-s.returns:
			if !more {
				s.returns = nil
				continue
			}
			if back, err := parse(r.MessageId); err == nil {
				s.load.History.Returned(back)
				found = found || back == m
			}
		default:
			return found
		}
	}
}

func ended(err *amqp.Error) error {
	if err == nil {
		return errEnded
	}
	return err
}
