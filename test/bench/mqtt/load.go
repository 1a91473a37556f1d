package mqtt

import (
	"encoding/binary"
	"fmt"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Load has pairs of a publisher and a subscriber, each pair with a topic of its own.
type Load struct {
	Pairs int
	QoS   byte
	// Persistent sessions: the messages go through queues.
	Kept bool
	// Bytes of a message, at least eight.
	Size int
	// Limit of a publisher's unacknowledged messages of QoS 1; 0 stands for 1.
	Window int
}

// Outcome is the result of a run.
type Outcome struct {
	// Messages that were sent, and that arrived.
	Sent, Messages int
	Took           time.Duration
	// Microseconds from the intended time of sending to the arrival, nil where it was not measured. With a pace it is
	// the time in the pace, also for a publisher that is late because the broker has not acknowledged yet.
	Latency *hdrhistogram.Histogram
}

// A Rig is a connected load.
type Rig struct {
	load  Load
	pairs []pair
	// Number of runs so far.
	runs  uint32
	began time.Time
}

type pair struct {
	publisher, subscriber *Client
	topic                 string
	latency               *hdrhistogram.Histogram
}

// Connect connects all clients and subscribes.
func (l Load) Connect(address string) (*Rig, error) {
	r := &Rig{load: l, began: time.Now()}
	for i := range l.Pairs {
		p := pair{topic: fmt.Sprintf("bench/%d", i), latency: histogram()}
		var err error
		if p.subscriber, err = Dial(address, fmt.Sprintf("subscriber-%d", i), !l.Kept); err == nil {
			err = p.subscriber.Subscribe(p.topic, l.QoS)
		}
		if err == nil {
			p.publisher, err = Dial(address, fmt.Sprintf("publisher-%d", i), true)
		}
		r.pairs = append(r.pairs, p)
		if err != nil {
			r.Close()
			return nil, err
		}
	}
	return r, nil
}

// Close closes all connections.
func (r *Rig) Close() {
	for _, p := range r.pairs {
		if p.subscriber != nil {
			p.subscriber.Close()
		}
		if p.publisher != nil {
			p.publisher.Close()
		}
	}
}

// From 1 microsecond to 5 minutes, to 1 %.
func histogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, (5 * time.Minute).Microseconds(), 2)
}

// Run sends and receives a number of messages with all pairs together, at a rate per second or, with 0, as fast as
// the broker accepts them.
func (r *Rig) Run(messages int, rate float64) (Outcome, error) {
	r.runs++
	each := max(1, messages/len(r.pairs))
	outcome := Outcome{Sent: each * len(r.pairs)}
	if r.load.QoS > 0 || rate > 0 {
		outcome.Latency = histogram()
	}
	began := time.Now()
	var wait sync.WaitGroup
	var lock sync.Mutex
	var failure error
	note := func(got int, err error) {
		lock.Lock()
		defer lock.Unlock()
		outcome.Messages += got
		if failure == nil {
			failure = err
		}
	}
	for i, p := range r.pairs {
		p.latency.Reset()
		pace := pace{began: r.began}
		if rate > 0 {
			pace.every = time.Duration(float64(len(r.pairs)) / rate * float64(time.Second))
			pace.next = time.Since(r.began) + pace.every*time.Duration(i)/time.Duration(len(r.pairs))
		}
		over := make(chan struct{})
		wait.Go(func() { note(0, r.publish(p, each, pace, over)) })
		wait.Go(func() {
			defer close(over)
			note(r.take(p, each, outcome.Latency != nil))
		})
	}
	wait.Wait()
	outcome.Took = time.Since(began)
	for _, p := range r.pairs {
		if outcome.Latency != nil {
			outcome.Latency.Merge(p.latency)
		}
	}
	return outcome, failure
}

// publish ends when the subscriber has all messages.
func (r *Rig) publish(p pair, times int, pace pace, over <-chan struct{}) error {
	m := NewMessage(p.topic, r.load.QoS, r.load.Size)
	switch {
	case r.load.QoS > 0:
		return r.window(p.publisher, m, times, pace)
	case pace.every > 0:
		if err := paced(p.publisher, m, r.load.Size, times, pace); err != nil {
			return err
		}
	default:
		if err := stream(p.publisher, m, times); err != nil {
			return err
		}
	}
	// A broker may drop the end marker like any message of QoS 0, so it is repeated.
	end := NewMessage(p.topic, 0, endSize)
	binary.BigEndian.PutUint32(end.Body(endSize), r.runs)
	for {
		if err := p.publisher.Ping(); err != nil {
			return err
		}
		if _, err := p.publisher.net.Write(end); err != nil {
			return err
		}
		select {
		case <-over:
			return nil
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// endSize is the size of the message of QoS 0 that ends a run: the run's number.
const endSize = 4

// window sends messages of QoS 1 with a limited number of unacknowledged ones.
func (r *Rig) window(c *Client, m Message, times int, pace pace) error {
	window := max(1, r.load.Window)
	under, id := 0, uint16(0)
	for times > 0 || under > 0 {
		for times > 0 && under < window {
			id = id%uint16(window) + 1
			m.setIdentifier(id, r.load.Size)
			pace.stamp(m.Body(r.load.Size))
			if _, err := c.net.Write(m); err != nil {
				return err
			}
			times--
			under++
		}
		got, err := c.Acknowledged()
		if err != nil {
			return err
		}
		under -= got
	}
	return nil
}

// paced sends messages of QoS 0 when they are due.
func paced(c *Client, m Message, size, times int, pace pace) error {
	for range times {
		pace.stamp(m.Body(size))
		if _, err := c.net.Write(m); err != nil {
			return err
		}
	}
	return nil
}

// stream sends messages of QoS 0 as fast as the broker reads, several in each write.
func stream(c *Client, m Message, times int) error {
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

// take counts messages: of QoS 1 until all have arrived, of QoS 0 until the end of the run.
func (r *Rig) take(p pair, times int, measured bool) (int, error) {
	got := 0
	for r.load.QoS == 0 || got < times {
		body, err := p.subscriber.Take()
		if err != nil {
			return got, fmt.Errorf("%d of %d messages arrived: %w", got, times, err)
		}
		if len(body) == endSize {
			if binary.BigEndian.Uint32(body) == r.runs {
				break
			}
			continue // of an earlier run
		}
		got++
		if measured && len(body) >= 8 {
			sent := time.Duration(binary.BigEndian.Uint64(body))
			_ = p.latency.RecordValue(max(1, (time.Since(r.began) - sent).Microseconds()))
		}
	}
	return got, nil
}

// A pace has the times of the messages since the beginning.
type pace struct {
	began time.Time
	every time.Duration
	next  time.Duration
}

// stamp waits until the next message is due and writes the time from which its latency counts: now, if it had to
// wait, because the client's clock is not the broker's fault; the due time, if the client is late.
func (p *pace) stamp(body []byte) {
	now := time.Since(p.began)
	if p.every > 0 {
		due := p.next
		p.next += p.every
		if due > now {
			time.Sleep(due - now)
			now = time.Since(p.began)
		} else {
			now = due
		}
	}
	binary.BigEndian.PutUint64(body, uint64(now))
}
