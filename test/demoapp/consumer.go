package main

import (
	"context"
	"errors"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"posthorn.io/posthorn/test/demoapp/history"
)

// errCancelled: the broker cancelled the consumer.
var errCancelled = errors.New("consumer cancelled by the broker")

// consumer consumes messages from the queue, acknowledges each, and records the deliveries.
type consumer struct {
	queue     string
	run       string
	prefetch  int
	settle    time.Duration // how long the queue must be silent at the end
	history   *history.History
	stats     *stats
	finished  <-chan struct{} // closed when publishing is complete
	strangers int             // messages of other runs, taken off the queue and not judged
}

// consume runs on one session until the history is complete and the queue silent.
func (c *consumer) consume(ctx context.Context, s session) error {
	if err := s.channel.Qos(c.prefetch, 0, false); err != nil {
		return err
	}
	closed := s.channel.NotifyClose(make(chan *amqp.Error, 1))
	deliveries, err := s.channel.ConsumeWithContext(ctx, c.queue, "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	silence := time.NewTimer(c.settle)
	defer silence.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case d, open := <-deliveries:
			if !open {
				return ended(closed)
			}
			c.take(d)
			if err := d.Ack(false); err != nil {
				return err
			}
			silence.Reset(c.settle)
		case <-silence.C:
			if c.done() {
				return nil
			}
			silence.Reset(c.settle)
		}
	}
}

func (c *consumer) take(d amqp.Delivery) {
	id, err := parseIdentity(d.MessageId)
	if err != nil || id.run != c.run {
		c.strangers++
		return
	}
	c.stats.arrive()
	c.history.Arrived(id.publisher, id.number, d.Redelivered, id.intact(d))
}

func (c *consumer) done() bool {
	select {
	case <-c.finished:
		return c.history.Complete()
	default:
		return false
	}
}

// ended returns why the deliveries stopped: the connection's or channel's error, or, without either, that the broker
// cancelled the consumer because the queue's replica is gone.
func ended(closed <-chan *amqp.Error) error {
	select {
	case err := <-closed:
		if err != nil {
			return err
		}
		return errClosed
	default:
		return errCancelled
	}
}
