// Package wire is an AMQP 0.9.1 client with minimal cost, so that measurements show the broker. It supports only a
// few methods, and one goroutine uses it.
package wire

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// Classes and methods of AMQP 0.9.1 in their wire form: class << 16 | method.
const (
	connectionStart   = 10<<16 | 10
	connectionStartOk = 10<<16 | 11
	connectionTune    = 10<<16 | 30
	connectionTuneOk  = 10<<16 | 31
	connectionOpen    = 10<<16 | 40
	connectionOpenOk  = 10<<16 | 41
	connectionClose   = 10<<16 | 50
	channelOpen       = 20<<16 | 10
	channelOpenOk     = 20<<16 | 11
	channelFlow       = 20<<16 | 20
	channelClose      = 20<<16 | 40
	queueDeclare      = 50<<16 | 10
	queueDeclareOk    = 50<<16 | 11
	basicQos          = 60<<16 | 10
	basicQosOk        = 60<<16 | 11
	basicConsume      = 60<<16 | 20
	basicConsumeOk    = 60<<16 | 21
	basicCancel       = 60<<16 | 30
	basicCancelOk     = 60<<16 | 31
	basicPublish      = 60<<16 | 40
	basicDeliver      = 60<<16 | 60
	basicAck          = 60<<16 | 80
	basicNack         = 60<<16 | 120
	confirmSelect     = 85<<16 | 10
	confirmSelectOk   = 85<<16 | 11
)

const (
	frameMethod = 1
	frameHeader = 2
	frameBody   = 3
	frameEnd    = 0xCE
	frameMax    = 131_072
)

// patience bounds the wait for an answer.
const patience = 5 * time.Minute

// Conn is a connection with one channel.
type Conn struct {
	net net.Conn
	in  *bufio.Reader
	buf []byte

	confirmed uint64 // delivery tag of the newest confirm
	sent      uint64

	// Delivered is the delivery tag of the newest delivery, 0 before the first.
	Delivered uint64
	acked     uint64
}

// Dial connects and logs in as guest. A refused connection is an error at once.
func Dial(address string) (*Conn, error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	return over(conn, 256<<10, 1)
}

// DialIdle opens a connection with a number of channels that will carry little traffic.
func DialIdle(address string, channels uint16) (*Conn, error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	return over(conn, 1<<10, channels)
}

func over(conn net.Conn, buffer int, channels uint16) (*Conn, error) {
	c := &Conn{net: conn, in: bufio.NewReaderSize(conn, buffer)}
	if err := c.handshake(channels); err != nil {
		conn.Close()
		return nil, err
	}
	return c, nil
}

// Close closes the socket without a connection.close.
func (c *Conn) Close() { _ = c.net.Close() }

func (c *Conn) handshake(channels uint16) error {
	if _, err := c.net.Write([]byte("AMQP\x00\x00\x09\x01")); err != nil {
		return err
	}
	if _, err := c.until(connectionStart); err != nil {
		return err
	}
	start := binary.BigEndian.AppendUint32(nil, 0) // no client properties
	start = short(start, "PLAIN")
	start = long(start, "\x00guest\x00guest")
	start = short(start, "en_US")
	if err := c.ask(0, connectionStartOk, start, connectionTune); err != nil {
		return err
	}
	tune := binary.BigEndian.AppendUint16(nil, channels)
	tune = binary.BigEndian.AppendUint32(tune, frameMax)
	tune = binary.BigEndian.AppendUint16(tune, 0)
	if _, err := c.net.Write(method(nil, 0, connectionTuneOk, tune)); err != nil {
		return err
	}
	if err := c.ask(0, connectionOpen, append(short(nil, "/"), 0, 0), connectionOpenOk); err != nil {
		return err
	}
	for channel := range channels {
		if err := c.ask(channel+1, channelOpen, []byte{0}, channelOpenOk); err != nil {
			return err
		}
	}
	return nil
}

func short(to []byte, s string) []byte { return append(append(to, byte(len(s))), s...) }

func long(to []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint32(to, uint32(len(s))), s...)
}

func frame(to []byte, kind byte, channel uint16, payload []byte) []byte {
	to = append(to, kind)
	to = binary.BigEndian.AppendUint16(to, channel)
	to = binary.BigEndian.AppendUint32(to, uint32(len(payload)))
	return append(append(to, payload...), frameEnd)
}

func method(to []byte, channel uint16, id uint32, arguments []byte) []byte {
	return frame(to, frameMethod, channel, append(binary.BigEndian.AppendUint32(nil, id), arguments...))
}

func (c *Conn) ask(channel uint16, id uint32, arguments []byte, answer uint32) error {
	if _, err := c.net.Write(method(nil, channel, id, arguments)); err != nil {
		return err
	}
	_, err := c.until(answer)
	return err
}

// until reads up to a method and returns its arguments. It counts confirms and deliveries on the way.
func (c *Conn) until(wanted uint32) ([]byte, error) {
	for {
		id, arguments, err := c.next()
		if err != nil {
			return nil, err
		}
		if id == wanted {
			return arguments, nil
		}
	}
}

// next reads a method and skips other frames.
func (c *Conn) next() (uint32, []byte, error) {
	for {
		kind, payload, err := c.read()
		if err != nil {
			return 0, nil, err
		}
		if kind != frameMethod {
			continue
		}
		if len(payload) < 4 {
			return 0, nil, errors.New("a method of less than four bytes")
		}
		id, arguments := binary.BigEndian.Uint32(payload), payload[4:]
		if err := c.note(id, arguments); err != nil {
			return 0, nil, err
		}
		return id, arguments, nil
	}
}

func (c *Conn) note(id uint32, arguments []byte) error {
	switch id {
	case basicAck:
		if len(arguments) < 9 {
			return errors.New("an ack that is cut off")
		}
		// Confirms come in order; one for several has the last tag.
		c.confirmed = max(c.confirmed, binary.BigEndian.Uint64(arguments))
	case basicDeliver:
		tag := int(arguments[0]) + 1
		if len(arguments) < tag+8 {
			return errors.New("a delivery that is cut off")
		}
		c.Delivered = binary.BigEndian.Uint64(arguments[tag:])
	case basicNack:
		return errors.New("the broker refused a message")
	case channelClose, connectionClose, basicCancel, channelFlow:
		return fmt.Errorf("the broker said %d.%d: %q", id>>16, id&0xffff, arguments)
	}
	return nil
}

// read returns a frame; its payload is valid until the next call.
func (c *Conn) read() (byte, []byte, error) {
	if c.in.Buffered() == 0 {
		_ = c.net.SetReadDeadline(time.Now().Add(patience))
	}
	head, err := c.in.Peek(7)
	if err != nil {
		return 0, nil, err
	}
	kind, size := head[0], int(binary.BigEndian.Uint32(head[3:]))
	if size > frameMax {
		return 0, nil, fmt.Errorf("a frame of %d bytes", size)
	}
	_, _ = c.in.Discard(7)
	if cap(c.buf) < size+1 {
		c.buf = make([]byte, frameMax+1)
	}
	whole := c.buf[:size+1]
	if _, err := io.ReadFull(c.in, whole); err != nil {
		return 0, nil, err
	}
	if whole[size] != frameEnd {
		return 0, nil, errors.New("a frame without its end")
	}
	return kind, whole[:size], nil
}
