// Package streams is the load on a stream of a cluster: publishers with names and consumers over the stream protocol,
// which handle lost connections like careful applications, and record all their actions and observations.
package streams

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"posthorn.io/posthorn/test/bench/stream"
	"posthorn.io/posthorn/test/faults/record"
)

const (
	// patience is how long a client waits for an answer before it tries another node.
	patience = 3 * time.Second
	// pause is the time between two attempts of a client to connect.
	pause    = 100 * time.Millisecond
	dialling = 1500 * time.Millisecond
	// together is the number of messages of a publish command, and window the limit of a publisher's unconfirmed
	// messages.
	together = 10
	window   = 100
	// size of a message's body, in bytes.
	size = 64
	// credit of a consumer, in chunks.
	credit = 10
)

// Options describe the load.
type Options struct {
	Addresses  []string // of the stream listeners of all nodes
	User       string
	Password   string
	Stream     string
	Publishers int
	Consumers  int
	// Exists is set if the stream exists already.
	Exists bool
	// SegmentBytes is the maximum size of a segment; 0: a million.
	SegmentBytes int
	// Interval is the time between two messages of a publisher.
	Interval time.Duration
}

// Load is running traffic. It starts paused.
type Load struct {
	o       Options
	History *record.StreamHistory
	cancel  context.CancelFunc
	clients sync.WaitGroup
	open    atomic.Bool
	// Confirms since the start.
	confirms   atomic.Int64
	reconnects atomic.Int64

	mu      sync.Mutex
	pending []int // unconfirmed messages of each publisher
	next    []int // offset that each consumer reads next
	strange []string
}

// Start creates the stream and starts all clients.
func Start(ctx context.Context, o Options) (*Load, error) {
	l := &Load{o: o, History: record.NewStreamHistory(o.Stream, o.Publishers), pending: make([]int, o.Publishers), next: make([]int, o.Consumers)}
	if !o.Exists {
		c, err := l.dial(o.Addresses[0])
		if err != nil {
			return nil, err
		}
		defer c.Close()
		// Small segments, so that a run has many.
		segment := cmp.Or(o.SegmentBytes, 1_000_000)
		if err := c.Create(o.Stream, map[string]string{"stream-max-segment-size-bytes": strconv.Itoa(segment)}); err != nil {
			return nil, err
		}
	}
	ctx, l.cancel = context.WithCancel(ctx)
	for n := range o.Publishers {
		p := &publisher{load: l, number: n, name: fmt.Sprintf("publisher-%d", n)}
		l.run(ctx, n, p.publish)
	}
	for n := range o.Consumers {
		l.run(ctx, n, func(ctx context.Context, address string) error { return l.consume(ctx, address, n) })
	}
	return l, nil
}

// Stop ends all clients.
func (l *Load) Stop() {
	l.cancel()
	l.clients.Wait()
}

// Resume lets the publishers send new messages.
func (l *Load) Resume() { l.open.Store(true) }

// Pause stops new messages; Idle returns nil when all messages are confirmed.
func (l *Load) Pause() { l.open.Store(false) }

// Confirms returns the number of confirms since the start.
func (l *Load) Confirms() int { return int(l.confirms.Load()) }

// Reconnects returns how often a client has lost or left a connection.
func (l *Load) Reconnects() int { return int(l.reconnects.Load()) }

// Idle returns nil when no publisher waits for a confirm.
func (l *Load) Idle() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for n, count := range l.pending {
		if count > 0 {
			return fmt.Errorf("publisher %d of stream %s waits for %d confirms", n, l.o.Stream, count)
		}
	}
	return nil
}

// CaughtUp returns nil when every consumer has read all confirmed messages.
func (l *Load) CaughtUp() error {
	if n := l.History.Missing(); n > 0 {
		return fmt.Errorf("%d confirmed messages of stream %s are missing", n, l.o.Stream)
	}
	end := l.History.End()
	l.mu.Lock()
	defer l.mu.Unlock()
	for n, next := range l.next {
		if next < end {
			return fmt.Errorf("consumer %d of stream %s is at offset %d of %d", n, l.o.Stream, next, end)
		}
	}
	return nil
}

// Strange returns answers to clients that no fault explains.
func (l *Load) Strange() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.strange...)
}

// ReadAll reads the whole stream from a node.
func (l *Load) ReadAll(ctx context.Context, address string) error {
	next := 0
	return l.read(ctx, address, func() int { return next }, func(n int) bool {
		next = n
		return n >= l.History.End()
	})
}

// run keeps a client connected to one node after another until ctx ends.
func (l *Load) run(ctx context.Context, at int, work func(context.Context, string) error) {
	l.clients.Go(func() {
		for ctx.Err() == nil {
			l.unusual(work(ctx, l.o.Addresses[at%len(l.o.Addresses)]))
			at++
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		}
	})
}

// Response codes that blame the client: the stream exists, and the client may use it. A node with an alarm refuses
// publishers with code 17, precondition failed, as RabbitMQ does.
const (
	codeNoStream       = 2
	codeNoSubscription = 4
	codeSASLFailed     = 8
	codeAccessRefused  = 16
	codeNoPublisher    = 18
)

func (l *Load) unusual(err error) {
	l.reconnects.Add(1)
	var code stream.CodeError
	if !errors.As(err, &code) {
		return
	}
	switch code.Code {
	case codeNoStream, codeNoSubscription, codeSASLFailed, codeAccessRefused, codeNoPublisher:
		l.mu.Lock()
		defer l.mu.Unlock()
		if len(l.strange) < 20 {
			l.strange = append(l.strange, fmt.Sprintf("a client of stream %s was told: %v", l.o.Stream, err))
		}
	}
}

func (l *Load) dial(address string) (*stream.Client, error) {
	conn, err := net.DialTimeout("tcp", address, dialling)
	if err != nil {
		return nil, err
	}
	return stream.Over(conn, stream.Options{User: l.o.User, Password: l.o.Password, Patience: patience})
}

// publisher sends messages with increasing publishing ids, and repeats those without a confirm after a lost connection.
type publisher struct {
	load   *Load
	number int
	name   string
	mu     sync.Mutex
	// Unconfirmed messages, in the order of their ids.
	pending []record.StreamMessage
}

func (p *publisher) publish(ctx context.Context, address string) error {
	first, err := p.load.dial(address)
	if err != nil {
		return err
	}
	leader, err := first.Leader(p.load.o.Stream)
	first.Close()
	if err != nil {
		return err
	}
	if leader == "" {
		return errors.New("the stream has no leader")
	}
	c, err := p.load.dial(leader)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.Publisher(0, p.name, p.load.o.Stream); err != nil {
		return err
	}
	confirmed := p.load.History.LastConfirmed(p.number)
	stored, err := c.Sequence(p.name, p.load.o.Stream)
	if err != nil {
		return err
	}
	p.load.History.Sequence(p.number, confirmed, stored)
	for _, m := range p.unconfirmed() {
		if err := p.send(c, []record.StreamMessage{m}); err != nil {
			return err
		}
	}
	over := make(chan error, 1)
	var reader sync.WaitGroup
	reader.Add(1)
	go func() {
		defer reader.Done()
		over <- p.confirms(c)
	}()
	defer func() {
		c.Close()
		reader.Wait()
	}()
	tick := time.NewTicker(together * p.load.o.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-over:
			return err
		case <-tick.C:
			if !p.load.open.Load() || len(p.unconfirmed())+together > window {
				continue
			}
			if err := p.send(c, p.more()); err != nil {
				return err
			}
		}
	}
}

// more returns the next new messages.
func (p *publisher) more() []record.StreamMessage {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []record.StreamMessage
	for range together {
		all = append(all, p.load.History.Sent(p.number))
	}
	p.pending = append(p.pending, all...)
	p.count()
	return all
}

func (p *publisher) send(c *stream.Client, messages []record.StreamMessage) error {
	batch := stream.NewBatch(0, len(messages), size, "")
	for n, m := range messages {
		fill(batch.Body(n), m)
	}
	return c.Publish(batch, uint64(messages[0].ID))
}

func (p *publisher) unconfirmed() []record.StreamMessage {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]record.StreamMessage(nil), p.pending...)
}

// confirms reads confirms until the connection ends.
func (p *publisher) confirms(c *stream.Client) error {
	for {
		count, ids, err := c.Confirmed()
		if err != nil {
			return err
		}
		if len(ids) < 8*count {
			return errors.New("a confirm that is cut off")
		}
		for ; count > 0; count, ids = count-1, ids[8:] {
			p.confirm(int(binary.BigEndian.Uint64(ids)))
		}
	}
}

func (p *publisher) confirm(id int) {
	p.load.History.Confirmed(record.StreamMessage{Publisher: p.number, ID: id})
	p.load.confirms.Add(1)
	p.mu.Lock()
	defer p.mu.Unlock()
	for at, m := range p.pending {
		if m.ID == id {
			p.pending = append(p.pending[:at], p.pending[at+1:]...)
			break
		}
	}
	p.count()
}

func (p *publisher) count() {
	p.load.mu.Lock()
	defer p.load.mu.Unlock()
	p.load.pending[p.number] = len(p.pending)
}

// consume reads from where the consumer has stopped before.
func (l *Load) consume(ctx context.Context, address string, number int) error {
	return l.read(ctx, address, func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.next[number]
	}, func(next int) bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.next[number] = next
		return false
	})
}

// read reads from an offset on, until moved returns true for the offset after the last message.
func (l *Load) read(ctx context.Context, address string, from func() int, moved func(int) bool) error {
	c, err := l.dial(address)
	if err != nil {
		return err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, c.Close)
	defer stop()
	next := from()
	if err := c.Subscribe(0, l.o.Stream, stream.From(uint64(next)), credit, nil); err != nil {
		return err
	}
	for {
		chunk, err := c.Take()
		if err != nil {
			return err
		}
		if int(chunk.First) > next {
			l.History.Skipped(next, int(chunk.First))
		}
		err = chunk.Messages(func(offset uint64, message []byte) error {
			m, intact := parse(message)
			l.History.Read(int(offset), m, intact)
			return nil
		})
		if err != nil {
			return err
		}
		next = max(next, int(chunk.First)+chunk.Records)
		if moved(next) {
			return nil
		}
		if err := c.Credit(0, 1); err != nil {
			return err
		}
	}
}

// fill writes the content of a message; it follows from the identity, so that a consumer can verify it.
func fill(body []byte, m record.StreamMessage) {
	const golden = 0x9E3779B97F4A7C15 // spreads the bits of the publisher's number
	state := uint64(m.Publisher)*golden ^ uint64(m.ID)
	binary.BigEndian.PutUint64(body, uint64(m.Publisher))
	binary.BigEndian.PutUint64(body[8:], uint64(m.ID))
	for at := 16; at+8 <= len(body); at += 8 {
		// The multiplier and increment of Knuth's MMIX generator.
		state = state*6364136223846793005 + 1442695040888963407
		binary.BigEndian.PutUint64(body[at:], state)
	}
}

// parse returns the identity of a message, and whether it is intact.
func parse(message []byte) (record.StreamMessage, bool) {
	body, err := stream.Body(message)
	if err != nil || len(body) != size {
		return record.StreamMessage{}, false
	}
	m := record.StreamMessage{Publisher: int(binary.BigEndian.Uint64(body)), ID: int(binary.BigEndian.Uint64(body[8:]))}
	var want [size]byte
	fill(want[:], m)
	return m, string(want[:]) == string(body)
}
