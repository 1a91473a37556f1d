package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"posthorn.io/posthorn/test/demoapp/history"
)

// publisher sends its messages in order, and sends those again that were not confirmed because of a lost connection
// or a rejection.
type publisher struct {
	id       int
	count    int // messages to send
	window   int // limit of unconfirmed messages
	interval time.Duration
	size     int
	queue    string
	run      string
	history  *history.History
	stats    *stats
	enough   <-chan struct{} // closed to stop sending; nil once that is known

	next    int                // first message that was never sent
	pending []int              // sent and without a confirm, in the order of sending
	returns <-chan amqp.Return // returns of this session
}

// errReturned: no queue received the message. The broker confirms such a message although it stores it nowhere.
var errReturned = errors.New("the broker returned a message because the queue is not there")

// errClosed: the connection ended without an error.
var errClosed = errors.New("connection closed")

// publish runs on one session until all messages are confirmed or the session ends.
func (p *publisher) publish(ctx context.Context, s session) error {
	if err := s.channel.Confirm(false); err != nil {
		return err
	}
	// Room for a whole window, so that the library's reader never blocks on us.
	confirms := s.channel.NotifyPublish(make(chan amqp.Confirmation, p.window))
	p.returns = s.channel.NotifyReturn(make(chan amqp.Return, p.window))
	closed := s.channel.NotifyClose(make(chan *amqp.Error, 1))
	again := p.pending
	p.pending = nil
	for i, number := range again {
		if err := p.send(ctx, s, number); err != nil {
			p.pending = append(p.pending, again[i+1:]...)
			return err
		}
	}
	return p.continueWith(ctx, s, confirms, closed)
}

func (p *publisher) continueWith(ctx context.Context, s session, confirms <-chan amqp.Confirmation, closed <-chan *amqp.Error) error {
	var pace <-chan time.Time
	if p.interval > 0 {
		t := time.NewTicker(p.interval)
		defer t.Stop()
		pace = t.C
	} else {
		c := make(chan time.Time)
		close(c)
		pace = c
	}
	for p.next < p.count || len(p.pending) > 0 {
		turn := pace
		if p.next == p.count || len(p.pending) >= p.window {
			turn = nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-closed:
			if err == nil {
				return errClosed
			}
			return err
		case <-p.enough:
			p.count, p.enough = p.next, nil
		case c, open := <-confirms:
			if !open {
				confirms = nil // the channel closed has the cause
				continue
			}
			if err := p.answered(ctx, s, c.Ack); err != nil {
				return err
			}
		case <-turn:
			p.next++
			if err := p.send(ctx, s, p.next-1); err != nil {
				return err
			}
		}
	}
	return nil
}

// send publishes one message. The message counts as pending even when sending fails, because a part of it may have
// been sent.
func (p *publisher) send(ctx context.Context, s session, number int) error {
	if err := p.history.Sent(p.id, number); err != nil {
		return err
	}
	p.pending = append(p.pending, number)
	id := identity{p.run, p.id, number}
	return s.channel.PublishWithContext(ctx, "", p.queue, true, false, id.publishing(p.size))
}

// answered handles the broker's answer to the oldest pending message: the library delivers answers in the order of
// publishing.
func (p *publisher) answered(ctx context.Context, s session, ack bool) error {
	if len(p.pending) == 0 {
		return fmt.Errorf("publisher %d got a confirm for nothing", p.id)
	}
	number := p.pending[0]
	select {
	case r := <-p.returns: // it comes before its confirm
		return p.returned(r)
	default:
	}
	p.pending = p.pending[1:]
	if !ack {
		if err := p.history.Rejected(p.id, number); err != nil {
			return err
		}
		return p.send(ctx, s, number)
	}
	p.stats.confirm()
	return p.history.Confirmed(p.id, number)
}

// returned ends the session, so that the returned message and all after it are sent again after a pause.
func (p *publisher) returned(r amqp.Return) error {
	id, err := parseIdentity(r.MessageId)
	if err != nil || id.run != p.run || id.publisher != p.id {
		return fmt.Errorf("publisher %d was returned a message of another: %q", p.id, r.MessageId)
	}
	if err := p.history.Rejected(p.id, id.number); err != nil {
		return err
	}
	return fmt.Errorf("%w: %d %s", errReturned, r.ReplyCode, r.ReplyText)
}
