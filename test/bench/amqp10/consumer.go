package amqp10

import (
	"encoding/binary"
	"fmt"
)

// Consumer is a connection with one link from a queue.
type Consumer struct {
	connection
	prefetch uint32
	// The link is attached.
	attached bool
	// Deliveries since the attach, and those that were settled.
	taken, settled uint32
	// The delivery id of the first delivery.
	first uint32
	// The delivery count of the link and the next transfer id of the session, before the first delivery.
	deliveryCount, transfers uint32
}

// Receive connects as guest and attaches a link from a queue, with credit for a number of messages.
func Receive(address string, queue Terminus, prefetch uint32) (*Consumer, error) {
	c := &Consumer{prefetch: prefetch}
	c.connection.note = c.note
	name := text("bench")
	link := frame(frameAMQP, descAttach, name, number(0), yes, []byte{0x50, 0}, []byte{0x50, 0}, queue.source(), described(descTarget, name))
	if err := c.open(address, link); err != nil {
		return nil, err
	}
	for !c.attached {
		if _, err := c.next(); err != nil {
			c.Close()
			return nil, err
		}
	}
	if err := c.write(c.credit(nil)); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// Take receives and accepts a number of messages. It settles and renews the credit after half of the prefetch.
func (c *Consumer) Take(messages int) error {
	for goal := c.settled + uint32(messages); c.settled != goal; {
		if _, err := c.next(); err != nil {
			return fmt.Errorf("%d messages have not come: %w", goal-c.taken, err)
		}
		if c.taken-c.settled >= c.prefetch/2 || c.taken == goal {
			c.out = c.credit(c.accept(c.out[:0]))
			if err := c.write(c.out); err != nil {
				return err
			}
		}
	}
	return nil
}

// accept appends a disposition of the deliveries that are not settled.
func (c *Consumer) accept(out []byte) []byte {
	if c.taken == c.settled {
		return out
	}
	first, last := c.first+c.settled, c.first+c.taken-1
	c.settled = c.taken
	return append(out, frame(frameAMQP, descDisposition, yes, number(first), number(last), yes, described(descAccepted))...)
}

// credit appends a flow that sets the credit to the prefetch.
func (c *Consumer) credit(out []byte) []byte {
	return append(out, frame(frameAMQP, descFlow, number(c.transfers+c.taken), number(sessionWindow), number(0), number(sessionWindow),
		number(0), number(c.deliveryCount+c.taken), number(c.prefetch))...)
}

func (c *Consumer) note(descriptor byte, list []byte) error {
	switch descriptor {
	case descBegin:
		c.transfers = numbers(list, 2)[1]
	case descAttach:
		const initialDeliveryCount = 9
		count, err := field(list, initialDeliveryCount)
		if err != nil {
			return err
		}
		c.deliveryCount, c.attached = count, true
	case descTransfer:
		if c.taken == 0 {
			c.first = numbers(list, 2)[1]
		}
		c.taken++
	}
	return nil
}

// field returns a field of a list as a number; 0 if it is absent.
func field(list []byte, n int) (uint32, error) {
	var rest []byte
	switch {
	case len(list) >= 3 && list[0] == 0xC0:
		rest = list[3:]
	case len(list) >= 9 && list[0] == 0xD0:
		rest = list[9:]
	}
	for ; n > 0 && len(rest) > 0; n-- {
		size, err := valueLen(rest)
		if err != nil {
			return 0, err
		}
		rest = rest[size:]
	}
	return numbers(append([]byte{0xC0, 0, 1}, rest...), 1)[0], nil
}

// valueLen returns the encoded length of the first value.
func valueLen(b []byte) (int, error) {
	size := 1
	if len(b) > 0 && b[0] == 0x00 {
		descriptor, err := valueLen(b[1:])
		if err != nil {
			return 0, err
		}
		value, err := valueLen(b[min(1+descriptor, len(b)):])
		return 1 + descriptor + value, err
	}
	if len(b) > 0 {
		switch kind := b[0] >> 4; {
		case kind >= 5 && kind <= 9:
			size += 1 << (kind - 5)
		case kind == 0xA || kind == 0xC || kind == 0xE:
			size++
			if len(b) > 1 {
				size += int(b[1])
			}
		case kind == 0xB || kind == 0xD || kind == 0xF:
			size += 4
			if len(b) > 4 {
				size += int(binary.BigEndian.Uint32(b[1:]))
			}
		}
	}
	if len(b) == 0 || size > len(b) {
		return 0, fmt.Errorf("a value of %d bytes in %d", size, len(b))
	}
	return size, nil
}
