package wire

import (
	"encoding/binary"
	"fmt"
	"strconv"
)

// Declare declares a durable queue of a type.
func (c *Conn) Declare(queue, kind string) error {
	return c.DeclareAll([]string{queue}, kind)
}

// DeclareAll declares many queues, with up to a thousand requests in flight.
func (c *Conn) DeclareAll(queues []string, kind string) error {
	const together = 1000
	for from := 0; from < len(queues); from += together {
		some := queues[from:min(from+together, len(queues))]
		var out []byte
		for _, queue := range some {
			table := append(append(short(nil, "x-queue-type"), 'S'), long(nil, kind)...)
			arguments := append(short([]byte{0, 0}, queue), 1<<1) // durable
			out = method(out, 1, queueDeclare, append(arguments, long(nil, string(table))...))
		}
		if _, err := c.net.Write(out); err != nil {
			return err
		}
		for range some {
			if _, err := c.until(queueDeclareOk); err != nil {
				return err
			}
		}
	}
	return nil
}

// Confirms enables publisher confirms.
func (c *Conn) Confirms() error { return c.ask(1, confirmSelect, []byte{0}, confirmSelectOk) }

// A Message is a persistent message to a queue, encoded for sending.
type Message []byte

// NewMessage returns a message of a number of bytes.
func NewMessage(queue string, size int) Message {
	out := method(nil, 1, basicPublish, append(short([]byte{0, 0, 0}, queue), 0))
	header := []byte{0, 60, 0, 0}
	header = binary.BigEndian.AppendUint64(header, uint64(size))
	header = binary.BigEndian.AppendUint16(header, 1<<12) // delivery-mode
	out = frame(out, frameHeader, 1, append(header, 2))
	for body := make([]byte, size); len(body) > 0; {
		piece := body[:min(len(body), frameMax-8)]
		out = frame(out, frameBody, 1, piece)
		body = body[len(piece):]
	}
	return out
}

// Publish sends a message a number of times, with at most window of them unconfirmed, and returns when all are
// confirmed.
func (c *Conn) Publish(m Message, times, window int) error {
	batch := min(max(window/4, 1), max(1, (128<<10)/len(m)))
	piece := make([]byte, 0, batch*len(m))
	for range batch {
		piece = append(piece, m...)
	}
	for times > 0 {
		n := min(times, batch)
		for c.sent+uint64(n)-c.confirmed > uint64(window) {
			if _, err := c.until(basicAck); err != nil {
				return err
			}
		}
		if _, err := c.net.Write(piece[:n*len(m)]); err != nil {
			return err
		}
		c.sent += uint64(n)
		times -= n
	}
	return c.Confirmed()
}

// Send sends a message when fewer than window are unconfirmed.
func (c *Conn) Send(m Message, window int) error {
	for c.sent-c.confirmed >= uint64(window) {
		if _, err := c.until(basicAck); err != nil {
			return err
		}
	}
	c.sent++
	_, err := c.net.Write(m)
	return err
}

// Confirmed returns when all sent messages are confirmed.
func (c *Conn) Confirmed() error {
	for c.confirmed < c.sent {
		if _, err := c.until(basicAck); err != nil {
			return err
		}
	}
	return nil
}

// Consume starts a consumer that acknowledges.
func (c *Conn) Consume(queue, tag string, prefetch uint16) error {
	if prefetch > 0 {
		qos := binary.BigEndian.AppendUint32(nil, 0)
		qos = binary.BigEndian.AppendUint16(qos, prefetch)
		if err := c.ask(1, basicQos, append(qos, 0), basicQosOk); err != nil {
			return err
		}
	}
	arguments := short(short([]byte{0, 0}, queue), tag)
	return c.ask(1, basicConsume, append(arguments, 0, 0, 0, 0, 0), basicConsumeOk)
}

// Churn starts and cancels a consumer a number of times.
func (c *Conn) Churn(queue string, times int) error {
	for n := range times {
		tag := "c" + strconv.Itoa(n)
		if err := c.Consume(queue, tag, 0); err != nil {
			return err
		}
		if err := c.ask(1, basicCancel, append(short(nil, tag), 0), basicCancelOk); err != nil {
			return err
		}
	}
	return nil
}

// Next returns at the next delivery.
func (c *Conn) Next() error {
	for before := c.Delivered; c.Delivered == before; {
		if _, _, err := c.next(); err != nil {
			return err
		}
	}
	return nil
}

// Take receives a number of messages and acknowledges them in batches.
func (c *Conn) Take(messages, together int) error {
	for last := c.Delivered + uint64(messages); c.Delivered < last; {
		if err := c.Next(); err != nil {
			return err
		}
		if c.Delivered-c.acked >= uint64(together) || c.Delivered == last {
			if err := c.Ack(c.Delivered, true); err != nil {
				return err
			}
		}
	}
	return nil
}

// Ack acknowledges a delivery, or all up to it.
func (c *Conn) Ack(tag uint64, multiple bool) error {
	if tag > c.Delivered {
		return fmt.Errorf("delivery %d has not come", tag)
	}
	c.acked = tag
	bit := byte(0)
	if multiple {
		bit = 1
	}
	_, err := c.net.Write(method(nil, 1, basicAck, append(binary.BigEndian.AppendUint64(nil, tag), bit)))
	return err
}
