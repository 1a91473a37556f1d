package stream

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Load has one publisher and consumers of one stream.
type Load struct {
	Stream string
	// Bytes of a message's body, at least eight.
	Size int
	// Without it, consumers read messages of earlier runs.
	Publish bool
	// Number of consumers, each with its own connection.
	Consumers int
}

// The defaults of RabbitMQ's own stream clients: messages of a publish command, messages without a confirm, and the
// credit of a subscription, in chunks.
const (
	batchMessages  = 100
	maxUnconfirmed = 10_000
	initialCredit  = 10
)

// Outcome is the result of a run.
type Outcome struct {
	Messages int
	Took     time.Duration
	// Chunks that one consumer received, and their bytes.
	Chunks, Bytes int
	// Microseconds from sending to arrival, one value per chunk; nil without a publisher and a consumer.
	Latency *hdrhistogram.Histogram
}

// A Rig is a connected load.
type Rig struct {
	load      Load
	publisher *Client
	consumers []*Client
	batch     *Batch
	began     time.Time
	// The publishing id of the next message, and the offset from which consumers read.
	id, offset uint64
}

// Retention bounds the disk space of a stream, in bytes.
const Retention = "4000000000"

// Connect creates the stream and connects all clients.
func (l Load) Connect(address string) (*Rig, error) {
	r := &Rig{load: l, began: time.Now()}
	err := r.connect(address)
	if err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

func (r *Rig) connect(address string) error {
	c, err := Dial(address)
	if err != nil {
		return err
	}
	r.publisher = c
	if err := c.Create(r.load.Stream, map[string]string{"max-length-bytes": Retention}); err != nil {
		return err
	}
	if r.load.Publish {
		if err := c.Publisher(0, "", r.load.Stream); err != nil {
			return err
		}
		r.batch = NewBatch(0, batchMessages, r.load.Size, "")
	}
	for range r.load.Consumers {
		c, err := Dial(address)
		if err != nil {
			return err
		}
		r.consumers = append(r.consumers, c)
	}
	return nil
}

// Close closes all connections.
func (r *Rig) Close() {
	if r.publisher != nil {
		r.publisher.Close()
	}
	for _, c := range r.consumers {
		c.Close()
	}
}

// Run publishes a number of messages, as fast as the broker confirms them, while each consumer takes all of them.
// Without a publisher the consumers continue behind the messages of the last run.
func (r *Rig) Run(messages int) (Outcome, error) {
	messages = (messages + batchMessages - 1) / batchMessages * batchMessages
	outcome := Outcome{Messages: messages}
	if r.load.Publish && len(r.consumers) > 0 {
		outcome.Latency = hdrhistogram.New(1, (5 * time.Minute).Microseconds(), 2)
	}
	for _, c := range r.consumers {
		if err := c.Subscribe(0, r.load.Stream, From(r.offset), initialCredit, nil); err != nil {
			return outcome, err
		}
	}
	began := time.Now()
	var wait sync.WaitGroup
	failures := make([]error, 1+len(r.consumers))
	if r.load.Publish {
		wait.Go(func() { failures[0] = r.publish(messages) })
	}
	for n, c := range r.consumers {
		wait.Go(func() {
			measured := &outcome
			if n > 0 {
				measured = &Outcome{}
			}
			failures[1+n] = r.take(c, messages, measured)
		})
	}
	wait.Wait()
	outcome.Took = time.Since(began)
	if err := errors.Join(failures...); err != nil {
		return outcome, err
	}
	r.offset += uint64(messages)
	for _, c := range r.consumers {
		if err := c.Unsubscribe(0); err != nil {
			return outcome, err
		}
	}
	return outcome, nil
}

// publish sends batches while another goroutine reads their confirms.
func (r *Rig) publish(messages int) error {
	room := make(chan struct{}, maxUnconfirmed/batchMessages)
	over := make(chan error, 1)
	go func() {
		confirmed, freed := 0, 0
		for confirmed < messages {
			count, _, err := r.publisher.Confirmed()
			if err != nil {
				over <- fmt.Errorf("%d of %d messages are confirmed: %w", confirmed, messages, err)
				return
			}
			confirmed += count
			for ; freed+batchMessages <= confirmed; freed += batchMessages {
				<-room
			}
		}
		over <- nil
	}()
	for range messages / batchMessages {
		select {
		case room <- struct{}{}:
		case err := <-over:
			return err
		}
		now := uint64(time.Since(r.began))
		for n := range batchMessages {
			binary.BigEndian.PutUint64(r.batch.Body(n), now)
		}
		if err := r.publisher.Publish(r.batch, r.id); err != nil {
			return err
		}
		r.id += batchMessages
	}
	return <-over
}

// take counts messages by their offsets.
func (r *Rig) take(c *Client, messages int, outcome *Outcome) error {
	for last := r.offset + uint64(messages); ; {
		chunk, err := c.Take()
		if err != nil {
			return err
		}
		outcome.Chunks++
		outcome.Bytes += chunk.Bytes
		if outcome.Latency != nil {
			if body, err := firstBody(chunk); err == nil && chunk.First >= r.offset {
				sent := time.Duration(binary.BigEndian.Uint64(body))
				_ = outcome.Latency.RecordValue(max(1, (time.Since(r.began) - sent).Microseconds()))
			}
		}
		if chunk.First+uint64(chunk.Records) >= last {
			return nil
		}
		if err := c.Credit(0, 1); err != nil {
			return err
		}
	}
}

func firstBody(chunk Chunk) ([]byte, error) {
	if len(chunk.Data) < 4 {
		return nil, errors.New("an empty chunk")
	}
	size := int(binary.BigEndian.Uint32(chunk.Data))
	if size > len(chunk.Data)-4 {
		return nil, errors.New("a message that is cut off")
	}
	body, err := Body(chunk.Data[4 : 4+size])
	if err == nil && len(body) < 8 {
		err = errors.New("a body without a time")
	}
	return body, err
}
