package mqtt

import (
	"fmt"
	"sync"
	"time"
)

// Load is pairs of a publisher and a subscriber, each with a topic of their own. With QoS 1 a publisher has one message in flight; with
// QoS 0 it sends as fast as the broker reads.
type Load struct {
	Pairs int
	QoS   byte
	// Kept sessions: the messages go through queues.
	Kept bool
	// Bytes of a message.
	Size int
}

// Outcome is what came of a load.
type Outcome struct {
	// Messages that arrived.
	Messages int
	Took     time.Duration
}

type pair struct{ publisher, subscriber *Client }

// Run connects, and sends and takes so many messages, all pairs together.
func (l Load) Run(address string, messages int) (Outcome, error) {
	pairs := make([]pair, l.Pairs)
	for i := range pairs {
		var err error
		if pairs[i].subscriber, err = Dial(address, fmt.Sprintf("subscriber-%d", i), !l.Kept); err != nil {
			return Outcome{}, err
		}
		defer pairs[i].subscriber.Close()
		if err := pairs[i].subscriber.Subscribe(topic(i), 1); err != nil {
			return Outcome{}, err
		}
		if pairs[i].publisher, err = Dial(address, fmt.Sprintf("publisher-%d", i), true); err != nil {
			return Outcome{}, err
		}
		defer pairs[i].publisher.Close()
	}
	each := messages / l.Pairs
	began := time.Now()
	var wait sync.WaitGroup
	var lock sync.Mutex
	var outcome Outcome
	var failure error
	note := func(got int, err error) {
		lock.Lock()
		defer lock.Unlock()
		outcome.Messages += got
		if failure == nil {
			failure = err
		}
	}
	for i, p := range pairs {
		wait.Go(func() { note(0, l.publish(p.publisher, topic(i), each)) })
		wait.Go(func() {
			got, err := p.subscriber.Take(each + 1)
			note(got, err)
		})
	}
	wait.Wait()
	outcome.Took = time.Since(began)
	if failure == nil && l.QoS > 0 && outcome.Messages != each*l.Pairs {
		failure = fmt.Errorf("%d of %d messages arrived", outcome.Messages, each*l.Pairs)
	}
	return outcome, failure
}

// The last message is empty, and never dropped.
func (l Load) publish(c *Client, topic string, times int) error {
	send := c.Publish
	if l.QoS == 0 {
		send = c.Stream
	}
	if err := send(NewMessage(topic, l.QoS, l.Size), times); err != nil {
		return err
	}
	return c.Publish(NewMessage(topic, 1, 0), 1)
}

func topic(i int) string { return fmt.Sprintf("bench/%d", i) }
