// Package mqtt is an MQTT 3.1.1 client that costs next to nothing: what it measures is the broker. It knows what loads need and no
// more, and one goroutine uses a client.
package mqtt

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// Packet types, section 2.2.1.
const (
	connack  = 2
	publish  = 3
	puback   = 4
	suback   = 9
	patience = time.Minute
)

// Client is a connection.
type Client struct {
	net net.Conn
	in  *bufio.Reader
}

// Dial connects as guest, and says with what session: one that ends with the connection, or one that is kept.
func Dial(address, id string, clean bool) (*Client, error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	return Over(conn, id, clean)
}

// Over is Dial on a connection that is there.
func Over(conn net.Conn, id string, clean bool) (*Client, error) {
	c := &Client{net: conn, in: bufio.NewReaderSize(conn, 1024)}
	flags := byte(0xC0)
	if clean {
		flags |= 2
	}
	body := append(text(nil, "MQTT"), 4, flags, 0, 0)
	body = text(text(text(body, id), "guest"), "guest")
	if _, err := conn.Write(packet(1<<4, body)); err != nil {
		conn.Close()
		return nil, err
	}
	answer, err := c.expect(connack)
	if err != nil {
		conn.Close()
		return nil, err
	}
	if len(answer) != 2 || answer[1] != 0 {
		conn.Close()
		return nil, fmt.Errorf("refused: %v", answer)
	}
	return c, nil
}

// Subscribe returns when the broker has granted it.
func (c *Client) Subscribe(filter string, qos byte) error {
	body := append(text([]byte{0, 1}, filter), qos)
	if _, err := c.net.Write(packet(8<<4|2, body)); err != nil {
		return err
	}
	answer, err := c.expect(suback)
	if err != nil {
		return err
	}
	if len(answer) != 3 || answer[2] != qos {
		return fmt.Errorf("subscription not granted: %v", answer)
	}
	return nil
}

// Close is no DISCONNECT.
func (c *Client) Close() error { return c.net.Close() }

// A Message is ready to be sent; of QoS 1 it has packet identifier 1.
type Message []byte

// NewMessage makes one of so many bytes.
func NewMessage(topic string, qos byte, size int) Message {
	body := text(nil, topic)
	if qos > 0 {
		body = append(body, 0, 1)
	}
	return packet(publish<<4|qos<<1, append(body, make([]byte, size)...))
}

// Publish sends a message of QoS 1 so often, each when the one before is acknowledged.
func (c *Client) Publish(m Message, times int) error {
	for range times {
		if _, err := c.net.Write(m); err != nil {
			return err
		}
		if _, err := c.expect(puback); err != nil {
			return err
		}
	}
	return nil
}

// Stream sends a message of QoS 0 so often, as fast as the broker reads, some in each write.
func (c *Client) Stream(m Message, times int) error {
	const together = 16
	var piece []byte
	for range together {
		piece = append(piece, m...)
	}
	for ; times > 0; times -= together {
		if _, err := c.net.Write(piece[:min(times, together)*len(m)]); err != nil {
			return err
		}
	}
	return nil
}

// Take reads messages until so many have come, or one has come with nothing in it, and acknowledges those of QoS 1. It returns how many came.
func (c *Client) Take(times int) (int, error) {
	for got := 0; got < times; got++ {
		kind, body, err := c.read()
		if err != nil {
			return got, err
		}
		if kind>>4 != publish || len(body) < 2 {
			return got, fmt.Errorf("packet %d where messages were expected", kind>>4)
		}
		after := 2 + int(binary.BigEndian.Uint16(body))
		if kind&6 != 0 {
			if len(body) < after+2 {
				return got, errors.New("a PUBLISH is cut off")
			}
			if _, err := c.net.Write([]byte{puback << 4, 2, body[after], body[after+1]}); err != nil {
				return got, err
			}
			after += 2
		}
		if len(body) == after {
			return got, nil
		}
	}
	return times, nil
}

func (c *Client) expect(want byte) ([]byte, error) {
	kind, body, err := c.read()
	if err == nil && kind>>4 != want {
		err = fmt.Errorf("packet %d in place of %d", kind>>4, want)
	}
	return body, err
}

// The body is good until the next call.
func (c *Client) read() (byte, []byte, error) {
	if err := c.net.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return 0, nil, err
	}
	kind, err := c.in.ReadByte()
	if err != nil {
		return 0, nil, err
	}
	size, err := binary.ReadUvarint(c.in)
	if err != nil {
		return 0, nil, err
	}
	body := make([]byte, size)
	_, err = io.ReadFull(c.in, body)
	return kind, body, err
}

func packet(kind byte, body []byte) []byte {
	out := binary.AppendUvarint([]byte{kind}, uint64(len(body)))
	return append(out, body...)
}

func text(out []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint16(out, uint16(len(s))), s...)
}
