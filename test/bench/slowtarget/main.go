// Command slowtarget measures whether publishing to a quorum queue slows a consumer of another queue on the same
// connection: one program publishes batches of 10,000 to a quorum queue and consumes from a classic queue, once over
// one connection and channel, once over one connection with a channel for each, once with a connection for each. The
// first is the scenario in which RabbitMQ's developers compared AMQP 0.9.1 and 1.0. The client sends under a lock of
// the channel, so the report includes the consumer's wait in its client to send an acknowledgement, which no broker
// causes.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"sort"
	"sync/atomic"
	"text/tabwriter"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"posthorn.io/posthorn/test/bench/process"
)

const (
	source, target = "classic", "quorum"
	prefetch       = 200
	batch          = 10_000
)

var body = make([]byte, 12)

// The layout of publisher and consumer.
type sharing int

const (
	oneChannel sharing = iota
	oneConnection
	nothing
)

var sharings = map[sharing]string{oneChannel: "one, one channel", oneConnection: "one, a channel each", nothing: "one each"}

// Messages per second of one trial, and the consumer's time in its client to send one acknowledgement (microseconds).
type rates struct{ consumed, published, acking float64 }

func main() {
	rounds := flag.Int("rounds", 5, "rounds; one connection and channel, one connection, and two in turns")
	long := flag.Duration("time", 5*time.Second, "how long each lasts")
	messages := flag.Int("messages", 1_000_000, "messages that wait in the classic queue")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: POSTHORN=program slowtarget [FLAGS]")
		flag.PrintDefaults()
	}
	flag.Parse()
	if err := run(os.Getenv("POSTHORN"), *rounds, *long, *messages); err != nil {
		fmt.Fprintln(os.Stderr, "slowtarget:", err)
		os.Exit(1)
	}
}

func run(program string, rounds int, long time.Duration, messages int) error {
	if program == "" {
		return fmt.Errorf("POSTHORN (the program) is not set")
	}
	found := map[sharing][]rates{}
	for round := range rounds {
		// The order changes, so that none always gets the warmer machine.
		for i := range len(sharings) {
			shared := sharing((round + i) % len(sharings))
			r, err := trial(program, shared, long, messages)
			if err != nil {
				return err
			}
			found[shared] = append(found[shared], r)
		}
	}
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(out, "connections\tconsumed/s (least to most)\tpublished/s (least to most)\tµs to send an acknowledgement (least to most)")
	for _, shared := range []sharing{oneChannel, oneConnection, nothing} {
		all := found[shared]
		fmt.Fprintf(out, "%s\t%s\t%s\t%s\n", sharings[shared], spread(all, "%.0f", func(r rates) float64 { return r.consumed }),
			spread(all, "%.0f", func(r rates) float64 { return r.published }), spread(all, "%.1f", func(r rates) float64 { return r.acking }))
	}
	return out.Flush()
}

func spread(all []rates, format string, of func(rates) float64) string {
	values := make([]float64, 0, len(all))
	for _, r := range all {
		values = append(values, of(r))
	}
	sort.Float64s(values)
	return fmt.Sprintf(format+" ("+format+" to "+format+")", values[len(values)/2], values[0], values[len(values)-1])
}

// trial runs on a broker of its own.
func trial(program string, shared sharing, long time.Duration, messages int) (rates, error) {
	b, err := process.Start(program)
	if err != nil {
		return rates{}, err
	}
	defer b.Remove()
	address := "amqp://guest:guest@" + b.Address()
	consuming, err := open(address)
	if err != nil {
		return rates{}, err
	}
	publishing := consuming.channel
	switch shared {
	case oneChannel:
	case oneConnection:
		publishing, err = consuming.connection.Channel()
	case nothing:
		var other opened
		other, err = open(address)
		publishing = other.channel
	}
	if err != nil {
		return rates{}, err
	}
	if err := prepare(publishing, consuming.channel, messages); err != nil {
		return rates{}, err
	}
	ctx, stop := context.WithTimeout(context.Background(), long)
	defer stop()
	published := make(chan error, 1)
	var count atomic.Int64
	go func() { published <- publish(ctx, publishing, &count) }()
	consumed, acking, err := consume(ctx, consuming.channel)
	if err != nil {
		return rates{}, err
	}
	if err := <-published; err != nil {
		return rates{}, err
	}
	each := float64(acking.Microseconds()) / float64(max(consumed, 1))
	return rates{float64(consumed) / long.Seconds(), float64(count.Load()) / long.Seconds(), each}, nil
}

type opened struct {
	connection *amqp.Connection
	channel    *amqp.Channel
}

func open(address string) (opened, error) {
	connection, err := amqp.Dial(address)
	if err != nil {
		return opened{}, err
	}
	channel, err := connection.Channel()
	return opened{connection, channel}, err
}

func prepare(channel, consuming *amqp.Channel, messages int) error {
	for name, kind := range map[string]string{source: "classic", target: "quorum"} {
		if _, err := channel.QueueDeclare(name, true, false, false, false, amqp.Table{"x-queue-type": kind}); err != nil {
			return err
		}
	}
	if err := channel.Confirm(false); err != nil {
		return err
	}
	for left := messages; left > 0; left -= batch {
		if err := send(context.Background(), channel, source, min(left, batch)); err != nil {
			return err
		}
	}
	return consuming.Qos(prefetch, 0, false)
}

// send publishes a number of messages and waits for their confirms.
func send(ctx context.Context, channel *amqp.Channel, queue string, n int) error {
	waiting := make([]*amqp.DeferredConfirmation, 0, n)
	for range n {
		c, err := channel.PublishWithDeferredConfirm("", queue, false, false, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: body})
		if err != nil {
			return err
		}
		waiting = append(waiting, c)
	}
	for _, c := range waiting {
		ok, err := c.WaitContext(ctx)
		if err != nil {
			return err
		}
		if !ok {
			return fmt.Errorf("%s refused a message", queue)
		}
	}
	return nil
}

// publish runs until the time is over; messages confirmed by then count.
func publish(ctx context.Context, channel *amqp.Channel, count *atomic.Int64) error {
	for ctx.Err() == nil {
		if err := send(ctx, channel, target, batch); err != nil {
			if ctx.Err() != nil {
				return nil //nolint:nilerr // The end of the measurement interrupted it.
			}
			return err
		}
		count.Add(batch)
	}
	return nil
}

// consume acknowledges all deliveries until the time is over, and returns their number and the time to send the
// acknowledgements.
func consume(ctx context.Context, channel *amqp.Channel) (int, time.Duration, error) {
	// Without the context: a cancellation would be sent in the middle of a publish of the other goroutine.
	deliveries, err := channel.Consume(source, "", false, false, false, false, nil)
	if err != nil {
		return 0, 0, err
	}
	var acking time.Duration
	for n := 0; ; n++ {
		select {
		case d, more := <-deliveries:
			if !more || ctx.Err() != nil {
				return n, acking, nil //nolint:nilerr // The error is that of the context: the measurement is over.
			}
			began := time.Now()
			if err := d.Ack(false); err != nil {
				return n, acking, err
			}
			acking += time.Since(began)
		case <-ctx.Done():
			return n, acking, nil
		}
	}
}
