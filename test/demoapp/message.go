package main

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// identity identifies a message: its run, its publisher, and its number among that publisher's messages.
type identity struct {
	run       string
	publisher int
	number    int
}

func (id identity) String() string {
	return fmt.Sprintf("%s/%d/%d", id.run, id.publisher, id.number)
}

func parseIdentity(s string) (identity, error) {
	parts := strings.Split(s, "/")
	if len(parts) != 3 || parts[0] == "" {
		return identity{}, fmt.Errorf("message id %q is none of ours", s)
	}
	publisher, err1 := strconv.Atoi(parts[1])
	number, err2 := strconv.Atoi(parts[2])
	if err1 != nil || err2 != nil {
		return identity{}, fmt.Errorf("message id %q is none of ours", s)
	}
	return identity{parts[0], publisher, number}, nil
}

// body returns the content of a message: its identity, repeated up to the size. It follows from the identity, so that
// the consumer can verify it.
func (id identity) body(size int) []byte {
	line := []byte(id.String() + "\n")
	return bytes.Repeat(line, max(1, size/len(line)))
}

func (id identity) publishing(size int) amqp.Publishing {
	return amqp.Publishing{
		DeliveryMode: amqp.Persistent,
		MessageId:    id.String(),
		ContentType:  "text/plain",
		Headers:      amqp.Table{"x-body-size": int32(size)},
		Body:         id.body(size),
	}
}

// intact reports whether a delivery has exactly the content that its identity implies.
func (id identity) intact(d amqp.Delivery) bool {
	size, ok := d.Headers["x-body-size"].(int32)
	return ok && size >= 0 && int(size) <= maxBody && bytes.Equal(d.Body, id.body(int(size))) && d.DeliveryMode == amqp.Persistent
}
