package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// retryPause is the time between two attempts to connect.
const retryPause = 300 * time.Millisecond

// session is one connection with one channel on it.
type session struct {
	connection *amqp.Connection
	channel    *amqp.Channel
}

// keepConnected runs work on new sessions until it returns nil, ctx ends, or the broker refuses in a way that a retry
// cannot change.
func keepConnected(ctx context.Context, b binding, name string, s *stats, work func(context.Context, session) error) error {
	for {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		err := once(ctx, b, name, work)
		if err == nil || ctx.Err() != nil {
			return ctx.Err()
		}
		if hopeless(err) {
			return fmt.Errorf("%s: %w", name, err)
		}
		s.interrupted(name, err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(retryPause):
		}
	}
}

func once(ctx context.Context, b binding, name string, work func(context.Context, session) error) error {
	connection, err := b.dial(name)
	if err != nil {
		return err
	}
	// Close of a broken connection waits for an answer; its own deadline bounds that.
	defer connection.CloseDeadline(time.Now().Add(time.Second))
	channel, err := connection.Channel()
	if err != nil {
		return err
	}
	return work(ctx, session{connection, channel})
}

// hopeless reports whether a retry cannot help: wrong credentials, no permission, or a queue with other properties. A
// missing queue may be a replica that is still catching up, so the client retries.
func hopeless(err error) bool {
	var e *amqp.Error
	if !errors.As(err, &e) {
		return false
	}
	return e.Code == amqp.AccessRefused || e.Code == amqp.PreconditionFailed || e.Code == amqp.NotAllowed
}

func hostname() string {
	h, err := os.Hostname()
	if err != nil {
		return "demo-client"
	}
	return h
}
