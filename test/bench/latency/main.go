// Command latency measures how long publishers wait for their confirms: one and ten publishers that wait for each
// confirm before they publish again, on a classic and on a quorum queue, and one while a client lists all queues
// without a pause. It also measures the processor time of a stream of publishes without a consumer. Several programs
// take turns in one run, so that their figures can be compared.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"sync"
	"text/tabwriter"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"posthorn.io/posthorn/test/bench/process"
)

// The processor time of publishes in a stream is reported per million.
const million = 1e6

// window is the limit of unconfirmed messages of a stream.
const window = 200

var body = make([]byte, 12)

// A figure of one program by its name: one value for each round.
type figures map[string][]float64

type settings struct {
	rounds, queues int
	long           time.Duration
}

func main() {
	var s settings
	flag.IntVar(&s.rounds, "rounds", 3, "rounds; the programs take turns in each")
	flag.IntVar(&s.queues, "queues", 6000, "queues that are listed")
	flag.DurationVar(&s.long, "time", 3*time.Second, "how long each measurement lasts")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: latency [FLAGS] PROGRAM...")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(s, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "latency:", err)
		os.Exit(1)
	}
}

var rows = []string{
	"classic, 1 publisher, median ms", "classic, 1 publisher, p99 ms",
	"quorum, 1 publisher, median ms", "quorum, 1 publisher, p99 ms",
	"classic, 10 publishers, median ms", "quorum, 10 publishers, median ms",
	"classic, a stream, CPU s per million", "classic, a stream, messages/s",
	"classic, 1 publisher beside listings, median ms", "classic, 1 publisher beside listings, p99 ms", "listings/s",
}

func run(s settings, programs []string) error {
	found := make([]figures, len(programs))
	for i := range found {
		found[i] = figures{}
	}
	for range s.rounds {
		for i, program := range programs {
			if err := trial(program, s, found[i]); err != nil {
				return fmt.Errorf("%s: %w", program, err)
			}
		}
	}
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	for i, program := range programs {
		fmt.Fprintf(out, "%s\tmedian\tleast\tmost\n", program)
		for _, row := range rows {
			all := slices.Sorted(slices.Values(found[i][row]))
			fmt.Fprintf(out, "  %s\t%.3f\t%.3f\t%.3f\n", row, all[len(all)/2], all[0], all[len(all)-1])
		}
	}
	return out.Flush()
}

// trial measures everything once, on a broker of its own.
func trial(program string, s settings, found figures) error {
	b, err := process.Start(program)
	if err != nil {
		return err
	}
	defer b.Remove()
	note := func(name string, value float64) { found[name] = append(found[name], value) }
	for _, kind := range []string{"classic", "quorum"} {
		one, err := publishers(b, kind, 1, s.long)
		if err != nil {
			return err
		}
		note(kind+", 1 publisher, median ms", percentile(one, 50))
		note(kind+", 1 publisher, p99 ms", percentile(one, 99))
		ten, err := publishers(b, kind, 10, s.long)
		if err != nil {
			return err
		}
		note(kind+", 10 publishers, median ms", percentile(ten, 50))
	}
	if err := measureStream(b, s.long, note); err != nil {
		return err
	}
	if err := declare(b, s.queues); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	listed := make(chan listing, 1)
	go func() { listed <- list(ctx, b) }()
	began := time.Now()
	beside, err := publishers(b, "classic", 1, 2*s.long)
	took := time.Since(began)
	stop()
	l := <-listed
	if err != nil {
		return err
	}
	if l.err != nil {
		return l.err
	}
	note("classic, 1 publisher beside listings, median ms", percentile(beside, 50))
	note("classic, 1 publisher beside listings, p99 ms", percentile(beside, 99))
	note("listings/s", float64(l.count)/took.Seconds())
	return nil
}

func percentile(sorted []time.Duration, percent int) float64 {
	return float64(sorted[len(sorted)*percent/100].Nanoseconds()) / float64(time.Millisecond)
}

// publishers runs a number of publishers to one queue, each of which waits for the confirm of its last message, and
// returns the sorted waits.
func publishers(b *process.Broker, kind string, count int, long time.Duration) ([]time.Duration, error) {
	var wait sync.WaitGroup
	waits := make([][]time.Duration, count)
	errs := make([]error, count)
	end := time.Now().Add(long)
	for i := range count {
		wait.Go(func() { waits[i], errs[i] = publish(b, kind, end) })
	}
	wait.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	all := slices.Concat(waits...)
	slices.Sort(all)
	if len(all) == 0 {
		return nil, fmt.Errorf("nothing was confirmed in %s", long)
	}
	return all, nil
}

func publish(b *process.Broker, kind string, end time.Time) (waits []time.Duration, err error) {
	connection, channel, err := open(b, kind)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	for time.Now().Before(end) {
		began := time.Now()
		confirm, err := send(channel, kind)
		if err != nil {
			return nil, err
		}
		if err := confirmed(confirm); err != nil {
			return nil, err
		}
		waits = append(waits, time.Since(began))
	}
	return waits, nil
}

// measureStream publishes with a window of unconfirmed messages and no consumer.
func measureStream(b *process.Broker, long time.Duration, note func(string, float64)) error {
	connection, channel, err := open(b, "classic")
	if err != nil {
		return err
	}
	defer connection.Close()
	before, err := b.Usage()
	if err != nil {
		return err
	}
	began, count := time.Now(), 0
	var waiting []*amqp.DeferredConfirmation
	for time.Since(began) < long {
		confirm, err := send(channel, "classic")
		if err != nil {
			return err
		}
		waiting = append(waiting, confirm)
		if len(waiting) == window {
			if err := confirmed(waiting[0]); err != nil {
				return err
			}
			waiting = waiting[1:]
		}
		count++
	}
	for _, confirm := range waiting {
		if err := confirmed(confirm); err != nil {
			return err
		}
	}
	took := time.Since(began)
	after, err := b.Usage()
	if err != nil {
		return err
	}
	note("classic, a stream, CPU s per million", (after.CPU-before.CPU).Seconds()*million/float64(count))
	note("classic, a stream, messages/s", float64(count)/took.Seconds())
	return nil
}

func open(b *process.Broker, kind string) (*amqp.Connection, *amqp.Channel, error) {
	connection, err := amqp.Dial("amqp://guest:guest@" + b.Address())
	if err != nil {
		return nil, nil, err
	}
	channel, err := connection.Channel()
	if err == nil {
		_, err = channel.QueueDeclare(kind, true, false, false, false, amqp.Table{"x-queue-type": kind})
	}
	if err == nil {
		err = channel.Confirm(false)
	}
	return connection, channel, err
}

func send(channel *amqp.Channel, queue string) (*amqp.DeferredConfirmation, error) {
	message := amqp.Publishing{DeliveryMode: amqp.Persistent, Body: body}
	return channel.PublishWithDeferredConfirm("", queue, false, false, message)
}

func confirmed(confirm *amqp.DeferredConfirmation) error {
	if !confirm.Wait() {
		return fmt.Errorf("message %d was refused", confirm.DeliveryTag)
	}
	return nil
}

// declare declares a number of classic queues.
func declare(b *process.Broker, count int) error {
	type queue struct {
		Name       string         `json:"name"`
		Vhost      string         `json:"vhost"`
		Durable    bool           `json:"durable"`
		AutoDelete bool           `json:"auto_delete"`
		Arguments  map[string]any `json:"arguments"`
	}
	const part = 500 // A request is answered within some seconds.
	for from := 0; from < count; from += part {
		var queues []queue
		for n := from; n < min(from+part, count); n++ {
			queues = append(queues, queue{Name: fmt.Sprint("listed-", n), Vhost: "/", Durable: true, Arguments: map[string]any{}})
		}
		text, err := json.Marshal(map[string]any{"queues": queues})
		if err != nil {
			return err
		}
		if err := request(context.Background(), "POST", b.URL("/api/definitions"), text); err != nil {
			return err
		}
	}
	return nil
}

type listing struct {
	count int
	err   error
}

// list lists all queues until the context ends.
func list(ctx context.Context, b *process.Broker) (l listing) {
	for {
		err := request(ctx, "GET", b.URL("/api/queues"), nil)
		if ctx.Err() != nil {
			return l
		}
		if err != nil {
			return listing{err: err}
		}
		l.count++
	}
}

func request(ctx context.Context, method, url string, text []byte) error {
	request, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(text))
	if err != nil {
		return err
	}
	request.SetBasicAuth("guest", "guest")
	request.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return err
	}
	if answer.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("%s %s: %s", method, url, answer.Status)
	}
	return nil
}
