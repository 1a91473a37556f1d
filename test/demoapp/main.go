// Demo-client publishes numbered messages to a queue with confirms, consumes them, and checks that none was lost. It
// handles lost connections like a careful application: it reconnects, publishes unconfirmed messages again, and
// accepts redeliveries of unacknowledged ones.
package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"posthorn.io/posthorn/test/demoapp/history"
)

const usage = `usage: demo-client publish|consume|run [flags]

publish   sends the messages and writes what was confirmed to the --ledger
consume   takes messages off the queue and judges them against the --ledger
run       both in one process, one after the other (or together: --overlap)

On SIGUSR1 it publishes no more, and goes on as if all messages were published.

Output, a line each: PROGRESS {json} every second, RECONNECT {json}, HALFWAY when half
of the messages are confirmed, and at the end RESULT {json}.
Exit status: 0 all is well; 1 messages were lost, changed, invented or out of order, or
the time ran out; 2 wrong usage; 3 the broker refused us.

flags:
`

// maxBody bounds the size of a message's content in bytes.
const maxBody = 16 << 20

const (
	exitFault   = 1
	exitUsage   = 2
	exitRefused = 3
)

// options are the flags of the command line.
type options struct {
	command    string
	binding    string
	queue      string
	ledger     string
	publishers int
	messages   int
	window     int
	prefetch   int
	size       int
	rate       float64
	timeout    time.Duration
	settle     time.Duration
	overlap    bool
	declare    bool
	// enough is closed to stop publishing.
	enough <-chan struct{}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	enough, heard := signal.NotifyContext(ctx, syscall.SIGUSR1)
	code := run(ctx, enough.Done(), os.Args[1:], os.Stdout, os.Stderr)
	heard()
	stop()
	os.Exit(code)
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	fs := flag.NewFlagSet("demo-client", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() { fmt.Fprint(stderr, usage); fs.PrintDefaults() }
	fs.StringVar(&o.binding, "binding", "", "directory with the entries of a service binding; else AMQP_HOST etc. in the environment")
	fs.StringVar(&o.queue, "queue", "orders", "queue to use")
	fs.StringVar(&o.ledger, "ledger", "", "file that carries the history from publish to consume")
	fs.IntVar(&o.publishers, "publishers", 4, "number of publishers, each on its own connection")
	fs.IntVar(&o.messages, "messages", 10000, "messages of all publishers together")
	fs.IntVar(&o.window, "window", 50, "messages of one publisher that may wait for a confirm")
	fs.IntVar(&o.prefetch, "prefetch", 200, "messages the consumer may hold unacknowledged")
	fs.IntVar(&o.size, "size", 200, "bytes of content in a message, about")
	fs.Float64Var(&o.rate, "rate", 0, "messages a second of all publishers together; 0: as fast as they are confirmed")
	fs.DurationVar(&o.timeout, "timeout", 5*time.Minute, "give up after this time")
	fs.DurationVar(&o.settle, "settle", time.Second, "how long the queue must be silent before the judgement")
	fs.BoolVar(&o.overlap, "overlap", false, "run: consume while publishing")
	fs.BoolVar(&o.declare, "declare", false, "declare the queue, as a durable quorum queue")
	if len(args) == 0 {
		fs.Usage()
		return o, errors.New("a command is needed")
	}
	o.command = args[0]
	if err := fs.Parse(args[1:]); err != nil {
		return o, err
	}
	return o, o.check(fs.NArg())
}

func (o options) check(rest int) error {
	switch {
	case o.command != "publish" && o.command != "consume" && o.command != "run":
		return fmt.Errorf("unknown command %q: publish, consume or run", o.command)
	case rest > 0:
		return errors.New("flags only after the command")
	case o.command != "run" && o.ledger == "":
		return fmt.Errorf("%s needs --ledger", o.command)
	case o.publishers < 1 || o.messages < o.publishers || o.window < 1 || o.window > 65535 || o.prefetch < 1 || o.prefetch > 65535:
		return errors.New("--publishers, --window and --prefetch must be at least 1 (the last two at most 65535), --messages at least --publishers")
	case o.size < 0 || o.size > maxBody || o.rate < 0:
		return fmt.Errorf("--size must be 0 to %d, --rate not negative", maxBody)
	}
	return nil
}

func run(ctx context.Context, enough <-chan struct{}, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	o.enough = enough
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	var b binding
	if err == nil {
		b, err = readBinding(o.binding, os.Getenv)
	}
	if err != nil {
		fmt.Fprintln(stderr, "demo-client:", err)
		return exitUsage
	}
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	code, err := execute(ctx, o, b, stdout)
	if err != nil {
		fmt.Fprintln(stderr, "demo-client:", err)
	}
	return code
}

// execute runs the command and returns the exit status.
func execute(ctx context.Context, o options, b binding, stdout io.Writer) (int, error) {
	h, runID := history.New(), newRunID()
	if o.command == "consume" {
		var err error
		if h, runID, err = loadLedger(o.ledger); err != nil {
			return exitUsage, err
		}
	}
	s := newStats(stdout, o.messages)
	reporting, stop := context.WithCancel(ctx)
	var reporter sync.WaitGroup
	reporter.Go(func() { s.report(reporting) })
	c := &consumer{queue: o.queue, run: runID, prefetch: o.prefetch, settle: o.settle, history: h, stats: s}
	err := perform(ctx, o, b, h, runID, s, c)
	stop()
	reporter.Wait()
	v := h.Judge()
	if o.command == "publish" {
		if e := saveLedger(o.ledger, h, runID); e != nil {
			return exitUsage, e
		}
		// Nothing can have arrived yet; consume checks that.
		v.Lost, v.Examples, v.OK = 0, nil, v.Unconfirmed == 0
	}
	v.OK = v.OK && err == nil
	s.line("RESULT", result{Verdict: v, counters: s.now(), Run: runID, Strangers: c.strangers, Error: text(err)})
	switch {
	case err != nil && hopeless(err):
		return exitRefused, err
	case !v.OK:
		return exitFault, err
	}
	return 0, nil
}

// result is the content of the last line.
type result struct {
	Run string `json:"run"`
	history.Verdict
	counters
	Strangers int    `json:"strangers"`
	Error     string `json:"error,omitempty"`
}

// perform publishes and consumes. After an error the recorded part can still be checked.
func perform(ctx context.Context, o options, b binding, h *history.History, runID string, s *stats, c *consumer) error {
	name := hostname()
	if o.declare {
		err := keepConnected(ctx, b, name+" declare", s, func(_ context.Context, s session) error {
			_, err := s.channel.QueueDeclare(o.queue, true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
			return err
		})
		if err != nil {
			return err
		}
	}
	published := make(chan struct{})
	c.finished = published
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	consume := func() {
		if err := keepConnected(ctx, b, name+" consumer", s, c.consume); err != nil {
			cancel(err)
		}
	}
	var consuming sync.WaitGroup
	if o.overlap && o.command == "run" {
		consuming.Go(consume)
	}
	if o.command != "consume" {
		publishAll(ctx, cancel, o, b, h, runID, s, name)
	}
	close(published)
	if o.command == "consume" || (o.command == "run" && !o.overlap) {
		consuming.Go(consume)
	}
	consuming.Wait()
	return context.Cause(ctx)
}

func publishAll(ctx context.Context, cancel context.CancelCauseFunc, o options, b binding, h *history.History, runID string, s *stats, name string) {
	var publishing sync.WaitGroup
	for i := range o.publishers {
		p := &publisher{id: i, count: share(o.messages, o.publishers, i), window: o.window, size: o.size,
			queue: o.queue, run: runID, history: h, stats: s, enough: o.enough}
		if o.rate > 0 {
			p.interval = time.Duration(float64(o.publishers) / o.rate * float64(time.Second))
		}
		publishing.Go(func() {
			if err := keepConnected(ctx, b, fmt.Sprintf("%s publisher %d", name, i), s, p.publish); err != nil {
				cancel(err)
			}
		})
	}
	publishing.Wait()
}

// share returns the number of messages, of n, that publisher i of p sends.
func share(n, p, i int) int {
	if i < n%p {
		return n/p + 1
	}
	return n / p
}

func newRunID() string {
	var b [6]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

func loadLedger(path string) (*history.History, string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, "", err
	}
	defer f.Close()
	return history.Load(f)
}

func saveLedger(path string, h *history.History, run string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := h.Save(f, run); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
