// Package mqtt is an MQTT 3.1.1 client with minimal cost, so that measurements show the broker. It supports only the
// packets that loads need, and one goroutine uses a client.
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
	pingresp = 13
	patience = time.Minute

	// maxPacket bounds the size of a packet, in bytes.
	packetMax = 1 << 20
)

// Client is a connection.
type Client struct {
	net net.Conn
	in  *bufio.Reader
	buf []byte
	// Acknowledgements that are not sent yet.
	acknowledge []byte
}

// Dial connects as guest, with a session that ends with the connection or a persistent one.
func Dial(address, id string, clean bool) (*Client, error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	return Over(conn, id, clean)
}

// Over is Dial over an existing connection.
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

// Subscribe returns when the broker has granted the subscription.
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

// Close sends no DISCONNECT.
func (c *Client) Close() error { return c.net.Close() }

// Drop ends the connection like a broken network: the broker gets a reset, and no socket remains here.
func (c *Client) Drop() {
	if tcp, ok := c.net.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	c.net.Close()
}

// Send sends a message and does not wait.
func (c *Client) Send(m Message) error {
	_, err := c.net.Write(m)
	return err
}

// A Message is encoded for sending.
type Message []byte

// NewMessage returns a message of a number of bytes.
func NewMessage(topic string, qos byte, size int) Message {
	body := text(nil, topic)
	if qos > 0 {
		body = append(body, 0, 1)
	}
	return packet(publish<<4|qos<<1, append(body, make([]byte, size)...))
}

// Body returns the last bytes of the message, its content.
func (m Message) Body(size int) []byte { return m[len(m)-size:] }

// setIdentifier sets the packet identifier of a message of QoS 1, which precedes its body.
func (m Message) setIdentifier(id uint16, size int) {
	binary.BigEndian.PutUint16(m[len(m)-size-2:], id)
}

// Ping returns when the broker has read all earlier packets.
func (c *Client) Ping() error {
	if _, err := c.net.Write([]byte{12 << 4, 0}); err != nil {
		return err
	}
	_, err := c.expect(pingresp)
	return err
}

// Acknowledged waits for acknowledgements of messages of QoS 1 and returns their number, at least one.
func (c *Client) Acknowledged() (int, error) {
	count := 0
	for count == 0 || c.in.Buffered() >= 4 {
		if _, err := c.expect(puback); err != nil {
			return count, err
		}
		count++
	}
	return count, nil
}

// Take reads a message and acknowledges one of QoS 1. The body is valid until the next call.
func (c *Client) Take() ([]byte, error) {
	kind, body, err := c.read()
	if err != nil {
		return nil, err
	}
	if kind>>4 != publish || len(body) < 2 {
		return nil, fmt.Errorf("packet %d where messages were expected", kind>>4)
	}
	after := 2 + int(binary.BigEndian.Uint16(body))
	if kind&6 != 0 {
		if len(body) < after+2 {
			return nil, errors.New("a PUBLISH is cut off")
		}
		c.acknowledge = append(c.acknowledge, puback<<4, 2, body[after], body[after+1])
		after += 2
	}
	if len(body) < after {
		return nil, errors.New("a PUBLISH is cut off")
	}
	// Messages that arrived together are acknowledged together.
	if len(c.acknowledge) > 0 && c.in.Buffered() == 0 {
		_, err = c.net.Write(c.acknowledge)
		c.acknowledge = c.acknowledge[:0]
	}
	return body[after:], err
}

func (c *Client) expect(want byte) ([]byte, error) {
	kind, body, err := c.read()
	if err == nil && kind>>4 != want {
		err = fmt.Errorf("packet %d in place of %d", kind>>4, want)
	}
	return body, err
}

// The body is valid until the next call.
func (c *Client) read() (byte, []byte, error) {
	if c.in.Buffered() == 0 {
		if err := c.net.SetReadDeadline(time.Now().Add(patience)); err != nil {
			return 0, nil, err
		}
	}
	kind, err := c.in.ReadByte()
	if err != nil {
		return 0, nil, err
	}
	size, err := binary.ReadUvarint(c.in)
	if err != nil {
		return 0, nil, err
	}
	if size > packetMax {
		return 0, nil, fmt.Errorf("a packet of %d bytes", size)
	}
	if uint64(cap(c.buf)) < size {
		c.buf = make([]byte, size)
	}
	body := c.buf[:size]
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
