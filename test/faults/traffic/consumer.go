package traffic

import (
	"context"
	"math/rand/v2"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// oneIn is the number of acknowledged messages for each requeued one.
const oneIn = 30

type consumer struct {
	load   *Load
	queue  string
	meter  *meter
	random *rand.Rand
}

// consume runs on one channel until the channel ends.
func (c *consumer) consume(ctx context.Context, channel client) error {
	if err := channel.Qos(c.load.o.Prefetch, 0, false); err != nil {
		return err
	}
	closed := channel.NotifyClose(make(chan *amqp.Error, 1))
	session := c.load.History.Consuming(c.queue, channel.address)
	deliveries, err := channel.ConsumeWithContext(ctx, c.queue, "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	channel.isSetUp()
	c.meter.arrive(time.Now())
	looking := time.NewTicker(patience / 2)
	defer looking.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-closed:
			return ended(err)
		case <-looking.C:
			if c.meter.silent(time.Now(), patience) && c.load.History.Missing(c.queue) > 0 {
				return errImpatient
			}
		case d, more := <-deliveries:
			if !more {
				return errEnded
			}
			c.meter.arrive(time.Now())
			m, intact := check(d)
			c.load.History.Arrived(session, m, d.Redelivered, intact)
			if c.random.IntN(oneIn) == 0 {
				err = d.Nack(false, true)
			} else {
				c.load.History.Acked(m)
				err = d.Ack(false)
			}
			if err != nil {
				return err
			}
		}
	}
}
