// Package stream is a client of the RabbitMQ stream protocol with minimal cost, so that measurements show the broker. It
// supports only the commands that loads need. One goroutine reads from a client, and one writes.
package stream

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"
)

// Keys of commands; see PROTOCOL.adoc of rabbitmq_stream.
const (
	declarePublisher = 1
	publish          = 2
	publishConfirm   = 3
	publishError     = 4
	querySequence    = 5
	deletePublisher  = 6
	subscribe        = 7
	deliver          = 8
	credit           = 9
	unsubscribe      = 12
	create           = 13
	remove           = 14
	metadata         = 15
	metadataUpdate   = 16
	peerProperties   = 17
	saslHandshake    = 18
	saslAuthenticate = 19
	tune             = 20
	open             = 21
	closing          = 22
	heartbeat        = 23
	partitions       = 25
	exchangeVersions = 27
	createSuper      = 29

	response = 0x8000
)

const (
	codeOK     = 1
	codeExists = 5

	// maxFrame bounds the size of a frame, in bytes.
	maxFrame = 80 << 20
	// chunkHeader is the size of a chunk's header, in bytes.
	chunkHeader = 48
)

// Options describe a client.
type Options struct {
	User, Password string
	// Patience bounds the wait for an answer.
	Patience time.Duration
}

var guest = Options{User: "guest", Password: "guest", Patience: time.Minute}

// Client is a connection.
type Client struct {
	options     Options
	net         net.Conn
	in          *bufio.Reader
	correlation uint32
	// A frame that is larger than the buffer of in.
	large []byte
	// The last time that the deadline of reads was extended.
	extended time.Time
}

// A CodeError is a response code other than OK.
type CodeError struct {
	Command string
	Code    uint16
}

func (e CodeError) Error() string { return fmt.Sprintf("%s: response code %d", e.Command, e.Code) }

// Dial connects and logs in as guest to the virtual host "/".
func Dial(address string) (*Client, error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	return Over(conn, guest)
}

// Over logs in over an existing connection, which is closed if the login fails.
func Over(conn net.Conn, o Options) (*Client, error) {
	c := &Client{options: o, net: conn, in: bufio.NewReaderSize(conn, 256<<10)}
	if err := c.login(); err != nil {
		conn.Close()
		return nil, err
	}
	return c, nil
}

func (c *Client) login() error {
	if _, err := c.ask("peer properties", peerProperties, u32(nil, 0)); err != nil {
		return err
	}
	if _, err := c.ask("SASL handshake", saslHandshake, nil); err != nil {
		return err
	}
	credentials := "\x00" + c.options.User + "\x00" + c.options.Password
	plain := append(u32(text(nil, "PLAIN"), uint32(len(credentials))), credentials...)
	if _, err := c.ask("SASL authenticate", saslAuthenticate, plain); err != nil {
		return err
	}
	key, body, err := c.next()
	if err != nil {
		return err
	}
	if key != tune || len(body) < 8 {
		return fmt.Errorf("command %d instead of tune", key)
	}
	// The server's frame size; no heartbeats.
	answer := u32(u32(nil, binary.BigEndian.Uint32(body)), 0)
	if err := c.write(frame(nil, response|tune, 1, answer)); err != nil {
		return err
	}
	if _, err := c.ask("open", open, text(nil, "/")); err != nil {
		return err
	}
	// This client reads version 1 of deliver.
	versions := u32(nil, 1)
	versions = binary.BigEndian.AppendUint16(versions, deliver)
	versions = binary.BigEndian.AppendUint16(versions, 1)
	versions = binary.BigEndian.AppendUint16(versions, 1)
	_, err = c.ask("exchange command versions", exchangeVersions, versions)
	return err
}

// Close closes the socket.
func (c *Client) Close() { _ = c.net.Close() }

// Create creates a stream with arguments, such as max-length-bytes. An existing stream is no error.
func (c *Client) Create(stream string, arguments map[string]string) error {
	_, err := c.ask("create", create, pairs(text(nil, stream), arguments))
	var code CodeError
	if errors.As(err, &code) && code.Code == codeExists {
		return nil
	}
	return err
}

// CreateSuper creates a super stream with a number of partitions, which get the name of the super stream and their
// number, and the same number as binding key.
func (c *Client) CreateSuper(name string, count int, arguments map[string]string) error {
	body := u32(text(nil, name), uint32(count))
	for n := range count {
		body = text(body, fmt.Sprintf("%s-%d", name, n))
	}
	body = u32(body, uint32(count))
	for n := range count {
		body = text(body, strconv.Itoa(n))
	}
	_, err := c.ask("create super stream", createSuper, pairs(body, arguments))
	return err
}

// Partitions returns the streams of a super stream, in order.
func (c *Client) Partitions(super string) ([]string, error) {
	body, err := c.ask("partitions", partitions, text(nil, super))
	if err != nil {
		return nil, err
	}
	in := fields{rest: body}
	var streams []string
	for range in.u32() {
		streams = append(streams, in.text())
		if in.cut {
			return nil, errors.New("a list of partitions that is cut off")
		}
	}
	return streams, nil
}

// Delete deletes a stream.
func (c *Client) Delete(stream string) error {
	_, err := c.ask("delete", remove, text(nil, stream))
	return err
}

// Leader returns the address of a stream's leader, or an empty one while it has none.
func (c *Client) Leader(stream string) (string, error) {
	body, err := c.askRaw(metadata, text(u32(nil, 1), stream))
	if err != nil {
		return "", err
	}
	in := fields{rest: body}
	hosts := map[uint16]string{}
	for range in.u32() {
		reference, host := in.u16(), in.text()
		hosts[reference] = fmt.Sprintf("%s:%d", host, in.u32())
		if in.cut {
			break
		}
	}
	in.u32()
	in.text()
	code := in.u16()
	leader := in.u16()
	switch {
	case in.cut:
		return "", errors.New("metadata that is cut off")
	case code != codeOK:
		return "", CodeError{"metadata", code}
	}
	return hosts[leader], nil
}

// Publisher declares a publisher. A reference turns deduplication on.
func (c *Client) Publisher(id byte, reference, stream string) error {
	_, err := c.ask("declare publisher", declarePublisher, text(text([]byte{id}, reference), stream))
	return err
}

// DeletePublisher frees the publisher's id.
func (c *Client) DeletePublisher(id byte) error {
	_, err := c.ask("delete publisher", deletePublisher, []byte{id})
	return err
}

// Sequence returns the highest publishing id of a reference that the stream has stored.
func (c *Client) Sequence(reference, stream string) (uint64, error) {
	body, err := c.ask("query publisher sequence", querySequence, text(text(nil, reference), stream))
	if err != nil {
		return 0, err
	}
	in := fields{rest: body}
	last := in.u64()
	if in.cut {
		return 0, errors.New("a sequence that is cut off")
	}
	return last, nil
}

// An Offset is the start of a subscription.
type Offset struct {
	kind  uint16
	value uint64
}

// First is the first message of the stream.
var First = Offset{kind: 1}

// Next is the first message that is published after the subscription.
var Next = Offset{kind: 3}

// From is the message at an offset.
func From(offset uint64) Offset { return Offset{4, offset} }

// Subscribe subscribes with a credit of chunks and properties, such as filter.0.
func (c *Client) Subscribe(id byte, stream string, from Offset, chunks uint16, properties map[string]string) error {
	body := binary.BigEndian.AppendUint16(text([]byte{id}, stream), from.kind)
	if from.kind >= 4 {
		body = binary.BigEndian.AppendUint64(body, from.value)
	}
	body = binary.BigEndian.AppendUint16(body, chunks)
	if len(properties) > 0 {
		body = pairs(body, properties)
	}
	_, err := c.ask("subscribe", subscribe, body)
	return err
}

// Unsubscribe skips the chunks that are on their way.
func (c *Client) Unsubscribe(id byte) error {
	_, err := c.ask("unsubscribe", unsubscribe, []byte{id})
	return err
}

// Credit lets the server send more chunks.
func (c *Client) Credit(id byte, chunks uint16) error {
	return c.write(frame(nil, credit, 1, binary.BigEndian.AppendUint16([]byte{id}, chunks)))
}

// A Batch is a prepared publish command: publishing ids, and messages of equal size.
type Batch struct {
	bytes []byte
	// Position of the first publishing id, distance of the ids, and of a body from its id.
	first, step, body int
	count             int
	size              int
}

// NewBatch prepares a number of messages with bodies of a size in bytes, each in an AMQP 1.0 data section as the
// clients of RabbitMQ encode them. A filter value is of all messages; empty for none.
func NewBatch(publisher byte, count, size int, filter string) *Batch {
	section := []byte{0x00, 0x53, 0x75}
	if size < 256 {
		section = append(section, 0xA0, byte(size))
	} else {
		section = u32(append(section, 0xB0), uint32(size))
	}
	version := uint16(1)
	if filter != "" {
		version = 2
	}
	b := &Batch{count: count, size: size}
	body := u32([]byte{publisher}, uint32(count))
	b.first = 8 + len(body)
	for range count {
		start := len(body)
		body = binary.BigEndian.AppendUint64(body, 0)
		if filter != "" {
			body = text(body, filter)
		}
		body = u32(body, uint32(len(section)+size))
		body = append(body, section...)
		b.body = len(body) - start
		body = append(body, make([]byte, size)...)
		b.step = len(body) - start
	}
	b.bytes = frame(nil, publish, version, body)
	return b
}

// Body returns the body of a message, to be filled in.
func (b *Batch) Body(message int) []byte {
	at := b.first + message*b.step + b.body
	return b.bytes[at : at+b.size]
}

// Publish sends a batch with publishing ids from a first one on.
func (c *Client) Publish(b *Batch, id uint64) error {
	for n := range b.count {
		binary.BigEndian.PutUint64(b.bytes[b.first+n*b.step:], id+uint64(n))
	}
	return c.write(b.bytes)
}

// Confirmed reads until messages are confirmed and returns their publishing ids, valid until the next call.
func (c *Client) Confirmed() (count int, ids []byte, err error) {
	for {
		key, body, err := c.next()
		if err != nil {
			return 0, nil, err
		}
		switch key {
		case publishConfirm:
			if len(body) < 5 {
				return 0, nil, errors.New("a confirm that is cut off")
			}
			return int(binary.BigEndian.Uint32(body[1:])), body[5:], nil
		case publishError:
			return 0, nil, fmt.Errorf("the broker refused a message: %x", body[:min(len(body), 15)])
		case metadataUpdate:
			return 0, nil, errors.New("the stream has another leader, or is deleted")
		case closing:
			return 0, nil, fmt.Errorf("the broker closes the connection: %q", body)
		}
	}
}

// A Chunk is a delivery of messages.
type Chunk struct {
	// Offset of the first message.
	First uint64
	// Messages.
	Records int
	// Bytes of the whole frame.
	Bytes int
	// The entries, of which messages of the client's own batches are not compressed.
	Data []byte
}

// Messages calls a function for each message, in the order of their offsets.
func (c Chunk) Messages(each func(offset uint64, message []byte) error) error {
	offset, rest := c.First, c.Data
	for len(rest) >= 4 && offset < c.First+uint64(c.Records) {
		size := int(binary.BigEndian.Uint32(rest))
		if size>>31 == 1 {
			return errors.New("a sub-entry batch, which this client does not send")
		}
		if len(rest) < 4+size {
			return errors.New("a message that is cut off")
		}
		if err := each(offset, rest[4:4+size]); err != nil {
			return err
		}
		offset, rest = offset+1, rest[4+size:]
	}
	if offset != c.First+uint64(c.Records) {
		return fmt.Errorf("a chunk of %d messages has %d", c.Records, offset-c.First)
	}
	return nil
}

// Body returns the body of a message in an AMQP 1.0 data section.
func Body(message []byte) ([]byte, error) {
	switch {
	case len(message) >= 5 && message[3] == 0xA0 && len(message) == 5+int(message[4]):
		return message[5:], nil
	case len(message) >= 8 && message[3] == 0xB0:
		return message[8:], nil
	}
	return nil, errors.New("a message without a data section")
}

// Take reads a chunk, whose data are valid until the next call.
func (c *Client) Take() (Chunk, error) {
	for {
		key, body, err := c.next()
		if err != nil {
			return Chunk{}, err
		}
		switch key {
		case deliver:
			if len(body) < 1+chunkHeader {
				return Chunk{}, errors.New("a chunk that is cut off")
			}
			header := body[1:]
			// A filter of the chunk stays on the server.
			end := chunkHeader + int(binary.BigEndian.Uint32(header[36:]))
			if end > len(header) {
				return Chunk{}, errors.New("a chunk that is cut off")
			}
			return Chunk{
				First:   binary.BigEndian.Uint64(header[24:]),
				Records: int(binary.BigEndian.Uint32(header[4:])),
				Bytes:   len(body) + 8,
				Data:    header[chunkHeader:end],
			}, nil
		case response | credit:
			return Chunk{}, fmt.Errorf("credit was refused: %x", body)
		case metadataUpdate:
			return Chunk{}, errors.New("the stream has another leader, or is deleted")
		case closing:
			return Chunk{}, fmt.Errorf("the broker closes the connection: %q", body)
		}
	}
}

// ask sends a request and returns the response after its code, which is OK.
func (c *Client) ask(name string, key uint16, request []byte) ([]byte, error) {
	body, err := c.askRaw(key, request)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(body) < 2 {
		return nil, fmt.Errorf("%s: a response that is cut off", name)
	}
	if code := binary.BigEndian.Uint16(body); code != codeOK {
		return nil, CodeError{name, code}
	}
	return body[2:], nil
}

// askRaw returns the response after its correlation id.
func (c *Client) askRaw(key uint16, request []byte) ([]byte, error) {
	c.correlation++
	if err := c.write(frame(nil, key, 1, append(u32(nil, c.correlation), request...))); err != nil {
		return nil, err
	}
	for {
		got, body, err := c.next()
		if err != nil {
			return nil, err
		}
		if got == response|key && len(body) >= 4 && binary.BigEndian.Uint32(body) == c.correlation {
			return body[4:], nil
		}
		if got == closing {
			return nil, fmt.Errorf("the broker closes the connection: %q", body)
		}
	}
}

func (c *Client) write(b []byte) error {
	_, err := c.net.Write(b)
	return err
}

// next returns a command without its head. The body is valid until the next call.
func (c *Client) next() (uint16, []byte, error) {
	if now := time.Now(); now.Sub(c.extended) > time.Second {
		c.extended = now
		_ = c.net.SetReadDeadline(now.Add(c.options.Patience))
	}
	head, err := c.in.Peek(8)
	if err != nil {
		return 0, nil, err
	}
	size, key := int(binary.BigEndian.Uint32(head)), binary.BigEndian.Uint16(head[4:])
	if size < 4 || size > maxFrame {
		return 0, nil, fmt.Errorf("a frame of %d bytes", size)
	}
	_, _ = c.in.Discard(8)
	body, err := c.body(size - 4)
	return key, body, err
}

// body reads without a copy where the buffer has room.
func (c *Client) body(size int) ([]byte, error) {
	if size <= c.in.Size() {
		body, err := c.in.Peek(size)
		if err == nil {
			_, _ = c.in.Discard(size)
		}
		return body, err
	}
	if cap(c.large) < size {
		c.large = make([]byte, size)
	}
	_, err := io.ReadFull(c.in, c.large[:size])
	return c.large[:size], err
}

func frame(to []byte, key, version uint16, body []byte) []byte {
	to = u32(to, uint32(4+len(body)))
	to = binary.BigEndian.AppendUint16(to, key)
	to = binary.BigEndian.AppendUint16(to, version)
	return append(to, body...)
}

func u32(to []byte, n uint32) []byte { return binary.BigEndian.AppendUint32(to, n) }

func text(to []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint16(to, uint16(len(s))), s...)
}

func pairs(to []byte, all map[string]string) []byte {
	to = u32(to, uint32(len(all)))
	for name, value := range all {
		to = text(text(to, name), value)
	}
	return to
}

// fields reads the fields of a response; cut is set when it ends early.
type fields struct {
	rest []byte
	cut  bool
}

func (f *fields) take(size int) []byte {
	if len(f.rest) < size {
		f.cut, f.rest = true, nil
		return make([]byte, size)
	}
	taken := f.rest[:size]
	f.rest = f.rest[size:]
	return taken
}

func (f *fields) u16() uint16 { return binary.BigEndian.Uint16(f.take(2)) }
func (f *fields) u32() uint32 { return binary.BigEndian.Uint32(f.take(4)) }
func (f *fields) u64() uint64 { return binary.BigEndian.Uint64(f.take(8)) }

func (f *fields) text() string {
	size := f.u16()
	if size == 0xFFFF {
		return ""
	}
	return string(f.take(int(size)))
}
