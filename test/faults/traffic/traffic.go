// Package traffic is the load on a cluster: publishers and consumers that handle lost connections like careful
// applications, and record all their actions and observations.
package traffic

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"posthorn.io/posthorn/test/faults/record"
)

const (
	// patience is how long a client waits for an expected confirm or delivery before it tries another node.
	patience = 3 * time.Second
	// pause is the time between two attempts of a client to connect.
	pause = 100 * time.Millisecond
	// heartbeat makes a client notice a dead connection.
	heartbeat = 2 * time.Second
	dialling  = 1500 * time.Millisecond
	// answering bounds how long a broker may take to answer a client's request, with success or with an error.
	answering = 30 * time.Second
)

// Queue describes a queue of the load.
type Queue struct {
	Name         string
	Quorum       bool
	SingleActive bool
	Replicas     int // of a quorum queue; 0 leaves it to the broker
	Home         int // of a classic queue: the node on which it is declared
}

// Options describe the load.
type Options struct {
	Addresses  []string // of all nodes
	User       string
	Password   string
	Queues     []Queue
	Publishers int // of each queue
	Consumers  int // of each queue
	Interval   time.Duration
	Window     int // limit of one publisher's unconfirmed messages
	Prefetch   int
	Seed       uint64
}

// Load is running traffic. It starts paused.
type Load struct {
	o       Options
	History *record.History
	meters  map[string]*meter
	gate    gate
	cancel  context.CancelFunc
	clients sync.WaitGroup

	mu         sync.Mutex
	busy       int // publishers that still wait for confirms
	reconnects int
	strange    []string // answers that no fault explains
}

// Start declares the queues and starts all clients.
func Start(ctx context.Context, o Options) (*Load, error) {
	ctx, cancel := context.WithCancel(ctx)
	l := &Load{o: o, History: record.New(), meters: map[string]*meter{}, cancel: cancel, gate: gate{opened: make(chan struct{})}}
	for _, q := range o.Queues {
		if err := l.declare(o.Addresses[q.Home], q); err != nil {
			cancel()
			return nil, err
		}
		order := record.PerConsumer
		if q.SingleActive {
			order = record.Strict
		}
		l.History.Queue(q.Name, order)
		l.meters[q.Name] = &meter{}
	}
	for _, address := range o.Addresses {
		if err := l.knows(ctx, address); err != nil {
			cancel()
			return nil, err
		}
	}
	number := 0
	random := func() *rand.Rand { number++; return rand.New(rand.NewPCG(o.Seed, uint64(number))) }
	for _, q := range o.Queues {
		for range o.Publishers {
			p := &publisher{load: l, queue: q.Name, meter: l.meters[q.Name]}
			l.run(ctx, q, random(), p.publish)
		}
		for range o.Consumers {
			r := random()
			c := &consumer{load: l, queue: q.Name, meter: l.meters[q.Name], random: r}
			l.run(ctx, q, r, c.consume)
		}
	}
	return l, nil
}

func (l *Load) declare(address string, q Queue) error {
	connection, err := l.dial(address)
	if err != nil {
		return err
	}
	defer connection.Close()
	channel, err := connection.Channel()
	if err != nil {
		return err
	}
	arguments := amqp.Table{"x-queue-type": "classic"}
	if q.Quorum {
		// Messages that are requeued again and again must not be dropped.
		arguments = amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int32(-1)}
		if q.Replicas > 0 {
			arguments["x-quorum-initial-group-size"] = int32(q.Replicas)
		}
	}
	if q.SingleActive {
		arguments["x-single-active-consumer"] = true
	}
	if _, err = channel.QueueDeclare(q.Name, true, false, false, false, arguments); err != nil {
		return fmt.Errorf("declare %s: %w", q.Name, err)
	}
	return nil
}

// knows waits until a node knows all queues: a queue that was declared on another node appears there a moment later.
func (l *Load) knows(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	connection, err := l.dial(address)
	if err != nil {
		return err
	}
	defer connection.Close()
	for _, q := range l.o.Queues {
		for {
			// A refusal closes the channel.
			channel, err := connection.Channel()
			if err != nil {
				return err
			}
			if _, err = channel.QueueDeclarePassive(q.Name, true, false, false, false, nil); err == nil {
				_ = channel.Close()
				break
			}
			var e *amqp.Error
			if !errors.As(err, &e) || e.Code != amqp.NotFound {
				return fmt.Errorf("looking for %s: %w", q.Name, err)
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("%s does not know queue %s: %w", address, q.Name, err)
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
	return nil
}

func (l *Load) dial(address string) (*amqp.Connection, error) {
	u := url.URL{Scheme: "amqp", User: url.UserPassword(l.o.User, l.o.Password), Host: address}
	return amqp.DialConfig(u.String(), amqp.Config{Heartbeat: heartbeat, Dial: amqp.DefaultDial(dialling)})
}

// errImpatient: the connection works, but nothing happens on it.
var errImpatient = errors.New("nothing happens")

// errEnded: the connection ended.
var errEnded = errors.New("connection ended")

// run keeps a client connected to one node after another until ctx ends.
func (l *Load) run(ctx context.Context, q Queue, random *rand.Rand, work func(context.Context, client) error) {
	at := random.IntN(len(l.o.Addresses))
	l.clients.Go(func() {
		for ctx.Err() == nil {
			err := l.once(ctx, l.o.Addresses[at], q, work)
			l.unusual(q, err)
			at = (at + 1) % len(l.o.Addresses)
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		}
	})
}

func (l *Load) once(ctx context.Context, address string, q Queue, work func(context.Context, client) error) error {
	connection, err := l.dial(address)
	if err != nil {
		return err
	}
	// Closing waits for an answer that may never come, so it happens in the background.
	defer func() { go connection.CloseDeadline(time.Now().Add(time.Second)) }()
	silent := time.AfterFunc(answering, func() {
		l.note(fmt.Sprintf("a client of queue %s on %s had no answer to its first requests within %v", q.Name, address, answering))
		_ = connection.CloseDeadline(time.Now().Add(time.Second))
	})
	defer silent.Stop()
	channel, err := connection.Channel()
	if err != nil {
		return err
	}
	return work(ctx, client{channel, address, func() { silent.Stop() }})
}

// client is a connection with a channel.
type client struct {
	*amqp.Channel
	address string
	isSetUp func() // called when the first requests are answered
}

// unusual records answers that blame the client: even during a fault a broker must not report an existing object as
// missing, or a correct request as wrong.
func (l *Load) unusual(q Queue, err error) {
	l.mu.Lock()
	l.reconnects++
	l.mu.Unlock()
	var e *amqp.Error
	if !errors.As(err, &e) || !e.Server {
		return
	}
	switch e.Code {
	case amqp.NotFound:
		// RabbitMQ gives the same answer for a classic queue whose node is down.
		if !q.Quorum && strings.Contains(e.Reason, " is down or ") {
			return
		}
	case amqp.AccessRefused, amqp.PreconditionFailed, amqp.NotAllowed, amqp.CommandInvalid, amqp.SyntaxError, amqp.UnexpectedFrame, amqp.FrameError:
	default:
		return
	}
	l.note("a client of queue " + q.Name + " was told: " + e.Error())
}

func (l *Load) note(strange string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.strange) < 20 {
		l.strange = append(l.strange, strange)
	}
}

// Strange returns answers to clients that no fault explains.
func (l *Load) Strange() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.strange...)
}

// Reconnects returns how often a client has lost or left a connection.
func (l *Load) Reconnects() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reconnects
}

// Resume starts the publishers, and measures confirms from now on.
func (l *Load) Resume() {
	now := time.Now()
	for _, m := range l.meters {
		m.begin(now)
	}
	l.gate.open()
}

// Pause stops the publishers; Idle returns nil when all have stopped.
func (l *Load) Pause() { l.gate.shut() }

// Idle returns nil when no publisher waits for a confirm.
func (l *Load) Idle() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.busy > 0 {
		return fmt.Errorf("%d publishers wait for confirms", l.busy)
	}
	return nil
}

func (l *Load) setBusy(was, is bool) bool {
	if was != is {
		l.mu.Lock()
		defer l.mu.Unlock()
		if is {
			l.busy++
		} else {
			l.busy--
		}
	}
	return is
}

// Watch begins a new measurement of the time without confirms.
func (l *Load) Watch() {
	now := time.Now()
	for _, m := range l.meters {
		m.begin(now)
	}
}

// Longest returns the longest time since Watch without a confirm among queues of this type, and the name of the
// queue.
func (l *Load) Longest(quorum bool) (longest time.Duration, name string) {
	now := time.Now()
	for _, q := range l.o.Queues {
		if q.Quorum != quorum {
			continue
		}
		if d := l.meters[q.Name].longest(now); d >= longest {
			longest, name = d, q.Name
		}
	}
	return longest, name
}

// Confirms returns the number of a queue's confirms since Watch.
func (l *Load) Confirms(queue string) int { return l.meters[queue].confirms() }

// AllConfirms returns the sum over all queues.
func (l *Load) AllConfirms() (sum int) {
	for _, m := range l.meters {
		sum += m.confirms()
	}
	return sum
}

// Stop ends all clients.
func (l *Load) Stop() {
	l.cancel()
	l.clients.Wait()
}
