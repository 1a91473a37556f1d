// Package hostile attacks the memory of one node with clients that do not authenticate, complete or read anything.
package hostile

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const kib, mib = 1 << 10, 1 << 20

// Target is the address of a node.
type Target struct {
	Dial             func(port int) (net.Conn, error)
	AMQP, MQTT, HTTP int // ports
	User, Password   string
}

// Attack is a number of clients that connect one after the other and stay.
type Attack struct {
	Name    string
	Clients int
	// Sheds: the node must have closed some of the clients.
	Sheds bool
	one   func(ctx context.Context, t Target) (sent int64, err error)
	// stream runs next to them; nil for none.
	stream func(ctx context.Context, t Target) error
}

// Attacks are all attacks, in order.
func Attacks() []Attack {
	return []Attack{
		{Name: "MQTT CONNECTs of 60 KiB that are never complete", Clients: 4000, Sheds: true, one: unfinishedConnect},
		{Name: "HTTP headers of 400 KB", Clients: 1000, one: httpHeaders},
		{Name: "AMQP bodies of 12 MiB that are never complete", Clients: 24, Sheds: true, one: unfinishedBodies},
		{Name: "MQTT publishes of 12 MiB that are never complete", Clients: 24, Sheds: true, one: unfinishedPublish},
		{Name: "MQTT messages of QoS 0 for subscribers that do not read", Clients: 20, one: silentSubscriber, stream: flood},
	}
}

// Result is the result of an attack.
type Result struct {
	Sent    int64 // bytes that the node's sockets took
	Refused int64 // clients that could not connect or log in
}

// Run connects the clients of an attack evenly over this time, and returns at the end when all are gone.
func (a Attack) Run(ctx context.Context, t Target, over time.Duration) (Result, error) {
	ctx, cancel := context.WithTimeout(ctx, over)
	defer cancel()
	var sent, refused atomic.Int64
	var clients sync.WaitGroup
	streamed := make(chan error, 1)
	if a.stream == nil {
		streamed <- nil
	} else {
		go func() { streamed <- a.stream(ctx, t) }()
	}
	// The last client still has some time to do harm.
	pace := time.NewTicker(over * 3 / 4 / time.Duration(a.Clients))
	defer pace.Stop()
	for range a.Clients {
		clients.Go(func() {
			n, err := a.one(ctx, t)
			sent.Add(n)
			if err != nil {
				refused.Add(1)
			}
		})
		select {
		case <-ctx.Done():
		case <-pace.C:
		}
	}
	<-ctx.Done()
	clients.Wait()
	return Result{sent.Load(), refused.Load()}, <-streamed
}

// pour writes pieces until a number of bytes is reached or the node stops reading, and returns the number of bytes
// that it accepted.
func pour(ctx context.Context, c net.Conn, piece []byte, bytes int) (sent int64) {
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	for sent < int64(bytes) {
		n, err := c.Write(piece[:min(len(piece), bytes-int(sent))])
		sent += int64(n)
		if err != nil {
			return sent
		}
	}
	return sent
}

// hold keeps a connection open until the attack is over or the node closes it. It reads nothing.
func hold(ctx context.Context, c net.Conn) {
	<-ctx.Done()
	_ = c.Close()
}

// packet returns the beginning of an MQTT packet whose fixed header announces a number of bytes.
func header(first byte, length int) []byte {
	b := []byte{first}
	for {
		digit := byte(length & 0x7f)
		length >>= 7
		if length > 0 {
			digit |= 0x80
		}
		b = append(b, digit)
		if length == 0 {
			return b
		}
	}
}

func text(s string) []byte {
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(s))), s...)
}

func packet(first byte, body ...[]byte) []byte {
	length := 0
	for _, b := range body {
		length += len(b)
	}
	p := header(first, length)
	for _, b := range body {
		p = append(p, b...)
	}
	return p
}

func unfinishedConnect(ctx context.Context, t Target) (int64, error) {
	c, err := t.Dial(t.MQTT)
	if err != nil {
		return 0, err
	}
	defer hold(ctx, c)
	// Protocol 3.1.1, clean session, keep alive 60 s; the client id never ends.
	begin := append(header(0x10, 64_000), append(text("MQTT"), 4, 2, 0, 60, 0xf0, 0)...)
	return pour(ctx, c, append(begin, make([]byte, 60*kib)...), 60*kib), nil
}

func httpHeaders(ctx context.Context, t Target) (int64, error) {
	c, err := t.Dial(t.HTTP)
	if err != nil {
		return 0, err
	}
	defer hold(ctx, c)
	request := "GET /api/overview HTTP/1.1\r\nHost: x\r\nX-Filler: " + strings.Repeat("x", 400_000)
	return pour(ctx, c, []byte(request), len(request)), nil
}

// unfinishedBodies does the same on two channels. The library logs in; then the attack writes frames directly to its
// connection.
func unfinishedBodies(ctx context.Context, t Target) (sent int64, err error) {
	raw, err := t.Dial(t.AMQP)
	if err != nil {
		return 0, err
	}
	defer hold(ctx, raw)
	connection, err := amqp.Open(raw, amqp.Config{SASL: []amqp.Authentication{&amqp.PlainAuth{Username: t.User, Password: t.Password}}, Vhost: "/", Heartbeat: 0})
	if err != nil {
		return 0, err
	}
	for range 2 {
		if _, err := connection.Channel(); err != nil {
			return 0, err
		}
	}
	const size, frame = 12 * mib, 128*kib - 8
	frameOf := func(kind byte, channel uint16, payload []byte) []byte {
		f := append([]byte{kind}, binary.BigEndian.AppendUint16(nil, channel)...)
		f = binary.BigEndian.AppendUint32(f, uint32(len(payload)))
		return append(append(f, payload...), 0xce)
	}
	for channel := range uint16(2) {
		// basic.publish to the default exchange with routing key "nowhere".
		publish := append([]byte{0, 60, 0, 40, 0, 0, 0, 7}, "nowhere\x00"...)
		content := binary.BigEndian.AppendUint64([]byte{0, 60, 0, 0}, size)
		begin := append(frameOf(1, channel+1, publish), frameOf(2, channel+1, append(content, 0, 0))...)
		sent += pour(ctx, raw, begin, len(begin))
		body := frameOf(3, channel+1, make([]byte, frame))
		// Without its last frames.
		sent += pour(ctx, raw, body, len(body)*(size/frame-1))
	}
	return sent, nil
}

// connect logs in over MQTT.
func connect(t Target, id string) (net.Conn, error) {
	c, err := t.Dial(t.MQTT)
	if err != nil {
		return nil, err
	}
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	hello := append(text("MQTT"), 4, 0xc2, 0, 0)
	_, err = c.Write(packet(0x10, hello, text(id), text(t.User), text(t.Password)))
	answer := make([]byte, 4)
	if err == nil {
		_, err = io.ReadFull(c, answer)
	}
	if err == nil && answer[3] != 0 {
		err = fmt.Errorf("CONNACK %d", answer[3])
	}
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, c.SetDeadline(time.Time{})
}

func unfinishedPublish(ctx context.Context, t Target) (int64, error) {
	c, err := connect(t, "")
	if err != nil {
		return 0, err
	}
	defer hold(ctx, c)
	const size = 12 * mib
	begin := append(header(0x30, size+7), text("flood")...)
	sent := pour(ctx, c, begin, len(begin))
	return sent + pour(ctx, c, make([]byte, 64*kib), size-64*kib), nil
}

func silentSubscriber(ctx context.Context, t Target) (int64, error) {
	c, err := connect(t, "")
	if err != nil {
		return 0, err
	}
	defer hold(ctx, c)
	_, err = c.Write(packet(0x82, []byte{0, 1}, text("flood"), []byte{0}))
	return 0, err
}

// ErrUnfinished reports that an attack needs more time on this machine.
var ErrUnfinished = errors.New("the attack did not end in time")

// flood publishes 200 MiB for the silent subscribers, evenly over most of the remaining time.
func flood(ctx context.Context, t Target) error {
	c, err := connect(t, "flood")
	if err != nil {
		return err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	const size, count = 256 * kib, 800
	publish := packet(0x30, text("flood"), make([]byte, size))
	end, _ := ctx.Deadline()
	pace := time.NewTicker(time.Until(end) * 3 / 4 / count)
	defer pace.Stop()
	for n := range count {
		select {
		case <-ctx.Done():
		case <-pace.C:
		}
		_, err := c.Write(publish)
		if ctx.Err() != nil {
			return fmt.Errorf("%w: %d of %d messages were published", ErrUnfinished, n, count)
		}
		if err != nil {
			return fmt.Errorf("message %d of the flood: %w", n, err)
		}
	}
	return nil
}
