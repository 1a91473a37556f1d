package hostile

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	queue = "honest"
	// pace is the time between two messages of the honest publisher.
	pace = 4 * time.Millisecond
	// patience bounds each confirm and each delivery.
	patience = 5 * time.Second
)

// Honest is a publisher that waits for each confirm, and a consumer of the same queue.
type Honest struct {
	publisher, consumer *amqp.Connection
	channel             *amqp.Channel
	deliveries          <-chan amqp.Delivery
	blocked             atomic.Bool
}

// NewHonest connects publisher and consumer.
func NewHonest(t Target) (*Honest, error) {
	h := &Honest{}
	dial := func() (*amqp.Connection, *amqp.Channel, error) {
		config := amqp.Config{
			SASL:      []amqp.Authentication{&amqp.PlainAuth{Username: t.User, Password: t.Password}},
			Heartbeat: 10 * time.Second,
			Vhost:     "/",
		}
		var raw net.Conn
		raw, err := t.Dial(t.AMQP)
		if err != nil {
			return nil, nil, err
		}
		connection, err := amqp.Open(raw, config)
		if err != nil {
			return nil, nil, err
		}
		channel, err := connection.Channel()
		return connection, channel, err
	}
	var err error
	var consuming *amqp.Channel
	if h.publisher, h.channel, err = dial(); err != nil {
		return nil, err
	}
	if h.consumer, consuming, err = dial(); err != nil {
		return nil, err
	}
	if _, err = h.channel.QueueDeclare(queue, true, false, false, false, nil); err != nil {
		return nil, err
	}
	if err = h.channel.Confirm(false); err != nil {
		return nil, err
	}
	if h.deliveries, err = consuming.Consume(queue, "", false, false, false, false, nil); err != nil {
		return nil, err
	}
	blockings := h.publisher.NotifyBlocked(make(chan amqp.Blocking, 16))
	go func() {
		for b := range blockings {
			if b.Active {
				h.blocked.Store(true)
			}
		}
	}()
	return h, nil
}

// Close ends both connections.
func (h *Honest) Close() {
	_ = h.publisher.CloseDeadline(time.Now().Add(time.Second))
	_ = h.consumer.CloseDeadline(time.Now().Add(time.Second))
}

// Measure publishes for this time and returns the 99th percentile of the time from a publish to its confirm. It
// requires that each message is confirmed and arrives, and that the broker never blocks the publisher.
func (h *Honest) Measure(ctx context.Context, during time.Duration) (p99 time.Duration, count int, err error) {
	ticker := time.NewTicker(pace)
	defer ticker.Stop()
	var took []time.Duration
	for end := time.Now().Add(during); time.Now().Before(end); {
		select {
		case <-ctx.Done():
			return 0, 0, ctx.Err()
		case <-ticker.C:
		}
		began := time.Now()
		if err := h.roundTrip(ctx, len(took)); err != nil {
			return 0, len(took), fmt.Errorf("honest message %d: %w", len(took), err)
		}
		took = append(took, time.Since(began))
	}
	if h.blocked.Load() {
		return 0, len(took), errors.New("the honest publisher was blocked (connection.blocked)")
	}
	if len(took) == 0 {
		return 0, 0, errors.New("nothing was measured")
	}
	slices.Sort(took)
	return took[len(took)*99/100], len(took), nil
}

// roundTrip publishes one message, and waits for its confirm and its delivery, which it acknowledges.
func (h *Honest) roundTrip(ctx context.Context, number int) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	id := fmt.Sprint(number)
	message := amqp.Publishing{DeliveryMode: amqp.Persistent, MessageId: id, Body: make([]byte, 200)}
	confirm, err := h.channel.PublishWithDeferredConfirm("", queue, true, false, message)
	if err != nil {
		return err
	}
	acked, err := confirm.WaitContext(ctx)
	if err != nil {
		return fmt.Errorf("no confirm within %v: %w", patience, err)
	}
	if !acked {
		return errors.New("refused (basic.nack)")
	}
	select {
	case <-ctx.Done():
		return fmt.Errorf("no delivery within %v: %w", patience, ctx.Err())
	case d, open := <-h.deliveries:
		if !open {
			return errors.New("the consumer's connection ended")
		}
		if d.MessageId != id {
			return fmt.Errorf("message %q arrived", d.MessageId)
		}
		return d.Ack(false)
	}
}
