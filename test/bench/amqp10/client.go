// Package amqp10 is an AMQP 1.0 publisher and an AMQP 1.0 consumer with minimal cost, so that measurements show the broker. One
// goroutine uses each.
package amqp10

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// Descriptors of performatives and types; AMQP 1.0, part 2, sections 2.7 and 3.4, and part 5, section 5.3.
const (
	descOpen        = 0x10
	descBegin       = 0x11
	descAttach      = 0x12
	descFlow        = 0x13
	descTransfer    = 0x14
	descDisposition = 0x15
	descDetach      = 0x16
	descEnd         = 0x17
	descClose       = 0x18
	descAccepted    = 0x24
	descSource      = 0x28
	descTarget      = 0x29
	descMechanisms  = 0x40
	descInit        = 0x41
	descOutcome     = 0x44
)

const (
	frameAMQP = 0
	frameSASL = 1
	frameMax  = 131_072
	// sessionWindow is the number of transfers that both sides of a session have room for.
	sessionWindow = 65_535
	// patience bounds the wait for an answer.
	patience = time.Minute
)

// Queue returns the address of a queue of a broker that has addresses of RabbitMQ's version 2.
func Queue(name string) Terminus { return Terminus{Address: "/queues/" + name} }

// Terminus is the node of a link.
type Terminus struct {
	Address string
	// Capability of the node that the client asks for, if any. Artemis creates a queue for "queue".
	Capability string
}

// encode encodes a source or a target, whose capabilities are the field with this number.
func (t Terminus) encode(descriptor byte, capabilities int) []byte {
	fields := [][]byte{text(t.Address)}
	if t.Capability != "" {
		for len(fields) < capabilities {
			fields = append(fields, null)
		}
		fields = append(fields, symbol(t.Capability))
	}
	return described(descriptor, fields...)
}

func (t Terminus) source() []byte { return t.encode(descSource, 10) }
func (t Terminus) target() []byte { return t.encode(descTarget, 6) }

// connection is the part that both roles share: a session with one link.
type connection struct {
	net net.Conn
	in  *bufio.Reader
	buf []byte
	out []byte
	// note handles the fields of a performative.
	note     func(descriptor byte, list []byte) error
	extended time.Time
}

// Publisher is a connection with one link to a queue.
type Publisher struct {
	connection
	// Messages are durable.
	Durable bool
	// Transfers that were sent, settled, and that the link and the session have room for.
	sent, settled, credit, window uint32
}

// Dial connects as guest and attaches a link to a queue.
func Dial(address string, queue Terminus) (*Publisher, error) {
	p := &Publisher{}
	p.connection.note = p.note
	name := text("bench")
	link := frame(frameAMQP, descAttach, name, number(0), no, []byte{0x50, 0}, []byte{0x50, 0},
		described(descSource, name), queue.target(), null, null, number(0))
	if err := p.open(address, link); err != nil {
		return nil, err
	}
	for p.credit == 0 {
		if _, err := p.next(); err != nil {
			p.Close()
			return nil, err
		}
	}
	return p, nil
}

// Close closes the socket.
func (p *connection) Close() { _ = p.net.Close() }

// open connects as guest, begins a session and sends the attach of a link.
func (p *connection) open(address string, link []byte) error {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	p.net, p.in, p.buf = conn, bufio.NewReaderSize(conn, 256<<10), make([]byte, frameMax)
	if err := p.logIn(link); err != nil {
		conn.Close()
		return err
	}
	return nil
}

func (p *connection) logIn(link []byte) error {
	if err := p.header("AMQP\x03\x01\x00\x00"); err != nil {
		return err
	}
	if err := p.until(descMechanisms); err != nil {
		return err
	}
	if err := p.write(frame(frameSASL, descInit, symbol("PLAIN"), binary8("\x00guest\x00guest"))); err != nil {
		return err
	}
	if err := p.until(descOutcome); err != nil {
		return err
	}
	if err := p.header("AMQP\x00\x01\x00\x00"); err != nil {
		return err
	}
	opening := frame(frameAMQP, descOpen, text("bench"), text("vhost:/"), number(frameMax))
	begin := frame(frameAMQP, descBegin, null, number(0), number(sessionWindow), number(sessionWindow))
	return p.write(append(append(opening, begin...), link...))
}

func (p *connection) header(header string) error {
	if err := p.write([]byte(header)); err != nil {
		return err
	}
	answer := make([]byte, len(header))
	if _, err := io.ReadFull(p.in, answer); err != nil {
		return err
	}
	if string(answer) != header {
		return fmt.Errorf("protocol header %x, want %x", answer, header)
	}
	return nil
}

// Publish sends messages of a size in bytes, with a limited number of unsettled ones, and returns when all are accepted.
func (p *Publisher) Publish(size, messages, unsettled int) error {
	const together = 64
	var section []byte
	if p.Durable {
		section = append(section, 0x00, 0x53, 0x70, 0xC0, 2, 1, 0x41)
	}
	section = append(section, 0x00, 0x53, 0x75)
	if size < 256 {
		section = append(section, 0xA0, byte(size))
	} else {
		section = binary.BigEndian.AppendUint32(append(section, 0xB0), uint32(size))
	}
	section = append(section, make([]byte, size)...)
	for goal := p.sent + uint32(messages); p.settled != goal; {
		p.out = p.out[:0]
		for n := 0; n < together && p.sent != goal && p.sent-p.settled < uint32(unsettled) && p.sent != p.credit && p.sent != p.window; n++ {
			p.transfer(section)
		}
		if len(p.out) > 0 {
			if err := p.write(p.out); err != nil {
				return err
			}
			if p.in.Buffered() == 0 {
				continue
			}
		}
		if _, err := p.next(); err != nil {
			return fmt.Errorf("%d messages are not settled: %w", goal-p.settled, err)
		}
	}
	return nil
}

func (p *Publisher) transfer(payload []byte) {
	p.out = appendTransfer(p.out, 0, p.sent, payload)
	p.sent++
}

// appendTransfer appends a transfer with its delivery id, and the same bytes as its tag.
func appendTransfer(to []byte, handle byte, id uint32, payload []byte) []byte {
	const fields = 2 + 5 + 6 + 1 + 1
	start := len(to)
	to = append(to, 0, 0, 0, 0, 2, frameAMQP, 0, 0, 0, 0x53, descTransfer, 0xC0, fields+1, 5, 0x52, handle)
	to = binary.BigEndian.AppendUint32(append(to, 0x70), id)
	to = binary.BigEndian.AppendUint32(append(to, 0xA0, 4), id)
	to = append(append(to, 0x43, 0x42), payload...)
	binary.BigEndian.PutUint32(to[start:], uint32(len(to)-start))
	return to
}

func (p *connection) until(wanted byte) error {
	for {
		got, err := p.next()
		if err != nil {
			return err
		}
		if got == wanted {
			return nil
		}
	}
}

// next reads a frame and returns its descriptor, 0 for a heartbeat.
func (p *connection) next() (byte, error) {
	if now := time.Now(); now.Sub(p.extended) > time.Second {
		p.extended = now
		_ = p.net.SetReadDeadline(now.Add(patience))
	}
	head, err := p.in.Peek(8)
	if err != nil {
		return 0, err
	}
	size := int(binary.BigEndian.Uint32(head))
	if size < 8 || size > frameMax {
		return 0, fmt.Errorf("a frame of %d bytes", size)
	}
	whole := p.buf[:size]
	if _, err := io.ReadFull(p.in, whole); err != nil {
		return 0, err
	}
	body := whole[8:]
	if len(body) == 0 {
		return 0, nil
	}
	if len(body) < 4 || body[0] != 0 || body[1] != 0x53 {
		return 0, errors.New("a frame without a performative")
	}
	switch descriptor, list := body[2], body[3:]; descriptor {
	case descOutcome:
		if fields := numbers(list, 1); fields[0] != 0 {
			return descriptor, fmt.Errorf("the login failed with code %d", fields[0])
		}
		return descriptor, nil
	case descDetach, descEnd, descClose:
		return descriptor, fmt.Errorf("the broker ended with performative %#x: %q", descriptor, list)
	default:
		return descriptor, p.note(descriptor, list)
	}
}

func (p *Publisher) note(descriptor byte, list []byte) error {
	switch descriptor {
	case descFlow:
		fields := numbers(list, 7)
		p.window = fields[0] + fields[1]
		if fields[6] > 0 {
			p.credit = fields[5] + fields[6]
		}
	case descDisposition:
		fields := numbers(list, 3)
		last := fields[2]
		if !accepts(list) {
			return fmt.Errorf("message %d is not accepted", fields[1])
		}
		p.settled += last - fields[1] + 1
	}
	return nil
}

// accepts reports whether a disposition ends with the state accepted, an empty list.
func accepts(list []byte) bool {
	for n := 0; n+3 < len(list); n++ {
		if list[n] == 0x00 && list[n+1] == 0x53 && list[n+2] == descAccepted {
			return true
		}
	}
	return false
}

// numbers returns the first fields of a list as numbers; 0 for an absent field and for another type. A range of one
// delivery in a disposition has no last id, which is then the first.
func numbers(list []byte, count int) []uint32 {
	all := make([]uint32, count)
	switch {
	case len(list) >= 3 && list[0] == 0xC0:
		list = list[3:]
	case len(list) >= 9 && list[0] == 0xD0:
		list = list[9:]
	default:
		return all
	}
	for n := 0; n < count && len(list) > 0; n++ {
		width := 0
		switch list[0] >> 4 {
		case 4:
		case 5:
			width = 1
		case 6:
			width = 2
		case 7:
			width = 4
		case 8:
			width = 8
		case 0xA, 0xC:
			if len(list) > 1 {
				width = 1 + int(list[1])
			}
		default:
			return all
		}
		if len(list) < 1+width {
			return all
		}
		switch value := list[1 : 1+width]; list[0] {
		case 0x50, 0x52:
			all[n] = uint32(value[0])
		case 0x60:
			all[n] = uint32(binary.BigEndian.Uint16(value))
		case 0x70:
			all[n] = binary.BigEndian.Uint32(value)
		case 0x40:
			if count == 3 && n == 2 {
				all[n] = all[1]
			}
		}
		list = list[1+width:]
	}
	return all
}

func (p *connection) write(b []byte) error {
	_, err := p.net.Write(b)
	return err
}

var (
	null = []byte{0x40}
	yes  = []byte{0x41}
	no   = []byte{0x42}
)

func frame(kind, descriptor byte, fields ...[]byte) []byte {
	body := described(descriptor, fields...)
	out := binary.BigEndian.AppendUint32(nil, uint32(8+len(body)))
	return append(append(out, 2, kind, 0, 0), body...)
}

// described encodes a described list with less than 256 bytes.
func described(descriptor byte, fields ...[]byte) []byte {
	var list []byte
	for _, field := range fields {
		list = append(list, field...)
	}
	return append([]byte{0x00, 0x53, descriptor, 0xC0, byte(len(list) + 1), byte(len(fields))}, list...)
}

func text(s string) []byte    { return append([]byte{0xA1, byte(len(s))}, s...) }
func symbol(s string) []byte  { return append([]byte{0xA3, byte(len(s))}, s...) }
func binary8(s string) []byte { return append([]byte{0xA0, byte(len(s))}, s...) }

func number(n uint32) []byte { return binary.BigEndian.AppendUint32([]byte{0x70}, n) }
