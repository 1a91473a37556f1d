// Command delayed measures how punctually delayed messages arrive: the time from the moment at which a message is due until
// a consumer has it. A message is due when its delay has passed since it was published, so the time until the queue has
// stored it counts as late. Other messages wait in the same queue for an hour, and publishers and consumers of another
// quorum queue load the node meanwhile. Messages are early that arrive more than a millisecond before they are due.
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync/atomic"
	"text/tabwriter"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"posthorn.io/posthorn/test/bench/process"
)

const (
	exchange = "later"
	queue    = "reminders"
	beside   = "busy"
	// window is the limit of unconfirmed messages of a publisher.
	window = 500
	// prefetch is the limit of unacknowledged messages of a consumer.
	prefetch = 1000
	hour     = int64(time.Hour / time.Millisecond)
	// resolution is that of the clock of a queue: an arrival within it is not early.
	resolution = time.Millisecond
)

type settings struct {
	waiting, count, rate, load int
	least, most                time.Duration
}

func main() {
	var s settings
	flag.IntVar(&s.waiting, "waiting", 1_000_000, "messages that wait in the queue for an hour")
	flag.IntVar(&s.count, "count", 20_000, "messages that become due")
	flag.IntVar(&s.rate, "rate", 1000, "messages a second that are published with a delay")
	flag.IntVar(&s.load, "load", 5000, "messages a second of another quorum queue")
	flag.DurationVar(&s.least, "least", time.Second, "shortest delay")
	flag.DurationVar(&s.most, "most", 10*time.Second, "longest delay")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: delayed [FLAGS] PROGRAM...")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() == 0 || s.least >= s.most {
		flag.Usage()
		os.Exit(2)
	}
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(out, "program\twaiting\tmessages\tmedian ms\tp99 ms\tp99.9 ms\tmost ms\tearly\tmessages/s beside")
	for _, program := range flag.Args() {
		if err := trial(program, s, out); err != nil {
			fmt.Fprintf(os.Stderr, "delayed: %s: %v\n", program, err)
			os.Exit(1)
		}
	}
	if err := out.Flush(); err != nil {
		fmt.Fprintln(os.Stderr, "delayed:", err)
		os.Exit(1)
	}
}

func trial(program string, s settings, out *tabwriter.Writer) error {
	broker, err := process.Start(program)
	if err != nil {
		return err
	}
	defer broker.Remove()
	connection, channel, err := open(broker)
	if err != nil {
		return err
	}
	defer connection.Close()
	if err := prepare(channel); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "delayed: publishing %d messages that wait\n", s.waiting)
	if err := publish(channel, s.waiting, 0, func() amqp.Publishing { return delayed(hour) }); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "delayed: publishing %d messages in %d s\n", s.count, s.count/s.rate)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var passed atomic.Int64
	failed := make(chan error, 2)
	go func() { failed <- load(ctx, broker, s.load, &passed) }()
	late := make(chan []time.Duration, 1)
	go func() {
		all, err := consume(broker, s.count)
		if err != nil {
			failed <- err
			return
		}
		late <- all
	}()
	began := time.Now()
	err = publish(channel, s.count, s.rate, func() amqp.Publishing {
		wait := s.least + time.Duration(rand.Int64N(int64(s.most-s.least)))
		return delayed(wait.Milliseconds())
	})
	if err != nil {
		return err
	}
	select {
	case err := <-failed:
		return err
	case all := <-late:
		took := time.Since(began)
		slices.Sort(all)
		early, _ := slices.BinarySearch(all, -resolution)
		ms := func(share float64) float64 {
			at := min(int(float64(len(all))*share), len(all)-1)
			return float64(all[at].Microseconds()) / 1000
		}
		fmt.Fprintf(out, "%s\t%d\t%d\t%.1f\t%.1f\t%.1f\t%.1f\t%d\t%.0f\n", program, s.waiting, len(all), ms(0.5), ms(0.99), ms(0.999), ms(1), early,
			float64(passed.Load())/took.Seconds())
		return nil
	}
}

func open(broker *process.Broker) (*amqp.Connection, *amqp.Channel, error) {
	connection, err := amqp.Dial("amqp://guest:guest@" + broker.Address())
	if err != nil {
		return nil, nil, err
	}
	channel, err := connection.Channel()
	if err == nil {
		err = channel.Confirm(false)
	}
	return connection, channel, err
}

func prepare(channel *amqp.Channel) error {
	quorum := amqp.Table{"x-queue-type": "quorum"}
	_, err := channel.QueueDeclare(queue, true, false, false, false, quorum)
	if err == nil {
		_, err = channel.QueueDeclare(beside, true, false, false, false, quorum)
	}
	if err == nil {
		err = channel.ExchangeDeclare(exchange, "x-delayed-message", true, false, false, false, amqp.Table{"x-delayed-type": "direct"})
	}
	if err == nil {
		err = channel.QueueBind(queue, queue, exchange, false, nil)
	}
	return err
}

// delayed returns a message that carries the time at which it is due, in nanoseconds since 1970.
func delayed(ms int64) amqp.Publishing {
	due := time.Now().Add(time.Duration(ms) * time.Millisecond)
	return amqp.Publishing{
		DeliveryMode: amqp.Persistent, Headers: amqp.Table{"x-delay": ms},
		Body: binary.BigEndian.AppendUint64(nil, uint64(due.UnixNano())),
	}
}

// publish publishes a number of messages to the exchange, at most rate of them a second (0: without a limit), and waits for
// their confirms.
func publish(channel *amqp.Channel, count, rate int, message func() amqp.Publishing) error {
	var waiting []*amqp.DeferredConfirmation
	began := time.Now()
	for n := range count {
		if rate > 0 {
			time.Sleep(time.Until(began.Add(time.Duration(n) * time.Second / time.Duration(rate))))
		}
		confirm, err := channel.PublishWithDeferredConfirm(exchange, queue, false, false, message())
		if err != nil {
			return err
		}
		waiting = append(waiting, confirm)
		if len(waiting) >= window {
			if !waiting[0].Wait() {
				return errors.New("a message was refused")
			}
			waiting = waiting[1:]
		}
	}
	for _, confirm := range waiting {
		if !confirm.Wait() {
			return errors.New("a message was refused")
		}
	}
	return nil
}

// consume takes a number of messages and returns how late each is.
func consume(broker *process.Broker, count int) ([]time.Duration, error) {
	connection, channel, err := open(broker)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	if err := channel.Qos(prefetch, 0, false); err != nil {
		return nil, err
	}
	deliveries, err := channel.Consume(queue, "", false, false, false, false, nil)
	if err != nil {
		return nil, err
	}
	late := make([]time.Duration, 0, count)
	for delivery := range deliveries {
		due := time.Unix(0, int64(binary.BigEndian.Uint64(delivery.Body)))
		late = append(late, time.Since(due))
		if err := delivery.Ack(false); err != nil {
			return nil, err
		}
		if len(late) == count {
			return late, nil
		}
	}
	return nil, errors.New("the connection of the consumer ended")
}

// load publishes to another queue and consumes from it until the context ends. It counts the consumed messages.
func load(ctx context.Context, broker *process.Broker, rate int, passed *atomic.Int64) error {
	if rate == 0 {
		<-ctx.Done()
		return nil
	}
	connection, channel, err := open(broker)
	if err != nil {
		return err
	}
	defer connection.Close()
	if err := channel.Qos(prefetch, 0, false); err != nil {
		return err
	}
	deliveries, err := channel.Consume(beside, "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	go func() {
		for delivery := range deliveries {
			if delivery.Ack(false) != nil {
				return
			}
			passed.Add(1)
		}
	}()
	var waiting []*amqp.DeferredConfirmation
	began := time.Now()
	body := make([]byte, 100)
	for n := 0; ctx.Err() == nil; n++ {
		time.Sleep(time.Until(began.Add(time.Duration(n) * time.Second / time.Duration(rate))))
		confirm, err := channel.PublishWithDeferredConfirm("", beside, false, false, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: body})
		if err != nil {
			return err
		}
		if waiting = append(waiting, confirm); len(waiting) >= window {
			if !waiting[0].Wait() {
				return errors.New("a message was refused")
			}
			waiting = waiting[1:]
		}
	}
	return nil
}
