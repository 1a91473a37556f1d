package traffic

import (
	"bytes"
	"fmt"
	"math/rand/v2"

	amqp "github.com/rabbitmq/amqp091-go"
	"posthorn.io/posthorn/test/faults/record"
)

// maxBody bounds the content of a message, in bytes.
const maxBody = 2000

func name(m record.Message) string { return fmt.Sprintf("%d/%d", m.Stream, m.Number) }

func parse(id string) (record.Message, error) {
	var m record.Message
	_, err := fmt.Sscanf(id, "%d/%d", &m.Stream, &m.Number)
	if err != nil || name(m) != id {
		return record.Message{Stream: -1, Number: -1}, fmt.Errorf("%q names no message", id)
	}
	return m, nil
}

// body returns the content of a message; it follows from the name, so that a consumer can verify it.
func body(m record.Message) []byte {
	r := rand.New(rand.NewPCG(uint64(m.Stream), uint64(m.Number)))
	line := []byte(name(m) + " ")
	return bytes.Repeat(line, 1+r.IntN(maxBody/len(line)))
}

func publishingOf(m record.Message) amqp.Publishing {
	return amqp.Publishing{DeliveryMode: amqp.Persistent, MessageId: name(m), ContentType: "text/plain", Body: body(m)}
}

// check returns the identity of a delivery, and whether it is intact.
func check(d amqp.Delivery) (record.Message, bool) {
	m, err := parse(d.MessageId)
	if err != nil {
		return m, false
	}
	return m, d.DeliveryMode == amqp.Persistent && d.ContentType == "text/plain" && bytes.Equal(d.Body, body(m))
}
