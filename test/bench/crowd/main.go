// Command crowd measures a node under very many MQTT clients that act at once: they connect, they reconnect after all
// of them were cut off, they receive one message.
package main

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"posthorn.io/posthorn/test/bench/mqtt"
	"posthorn.io/posthorn/test/bench/process"
)

// A scenario, with the broker's settings for it.
type scenario struct {
	name, about string
	settings    []string
	run         func(c *crowd) error
}

var scenarios = []scenario{
	{"storm", "all connect, 512 at a time, to a node that takes in as many as it can", []string{"accepts_per_second=0"}, (*crowd).storm},
	{"return", "all have a subscription, are cut off in the same moment and come back at once; the node paces them as it does by itself", nil, (*crowd).comeBack},
	{"fan-out", "one message for all of them, of QoS 0 and of QoS 1", nil, (*crowd).fanOut},
}

// Connections opened at a time when that is not measured. The kernel's backlog holds 4,096.
const together = 512

// The topic that all clients subscribe to, and the content of a message.
const (
	topic = "all"
	size  = 256
	// Messages of a fan-out, one after the other.
	rounds = 5
)

func main() {
	clients := flag.Int("clients", 19_000, "how many; a process has 20,000 descriptors on many machines")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: crowd [FLAGS] [SCENARIO...]   all of them when none is named; scenarios:")
		for _, s := range scenarios {
			fmt.Fprintf(os.Stderr, "  %-8s %s\n", s.name, s.about)
		}
		flag.PrintDefaults()
	}
	flag.Parse()
	if err := run(flag.Args(), *clients); err != nil {
		fmt.Fprintln(os.Stderr, "crowd:", err)
		os.Exit(1)
	}
}

func run(names []string, clients int) error {
	program := os.Getenv("POSTHORN")
	if program == "" {
		return errors.New("POSTHORN (the program) is not set")
	}
	wanted := map[string]bool{}
	for _, name := range names {
		wanted[name] = true
	}
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(out, "scenario\tclients\tall after, s\tclients/s\tmedian, ms\t99 %\tlongest\tbroker's CPU, us each\tours\tMB before\tmost\tafter")
	for _, s := range scenarios {
		if len(names) > 0 && !wanted[s.name] {
			continue
		}
		delete(wanted, s.name)
		if err := s.measure(program, clients, out); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	for name := range wanted {
		if len(names) > 0 {
			return fmt.Errorf("there is no scenario %q", name)
		}
	}
	return out.Flush()
}

func (s scenario) measure(program string, clients int, out *tabwriter.Writer) error {
	settings := []string{"--set", "mqtt.listeners.tcp.default=127.0.0.1:0"}
	for _, setting := range s.settings {
		settings = append(settings, "--set", setting)
	}
	b, err := process.Start(program, settings...)
	if err != nil {
		return err
	}
	defer b.Remove()
	c := &crowd{
		broker:  b,
		address: fmt.Sprintf("127.0.0.1:%d", b.Ports["mqtt"]),
		clients: make([]*mqtt.Client, clients),
		out:     out,
	}
	defer c.drop()
	err = s.run(c)
	return errors.Join(err, out.Flush())
}

// A crowd has the clients of one broker. One goroutine at a time uses client n.
type crowd struct {
	broker  *process.Broker
	address string
	clients []*mqtt.Client
	out     *tabwriter.Writer
}

// addresses of the clients: with a single one the kernel would search for a free port most of the time.
const addresses = 32

func (c *crowd) connect(n int) error {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(2+n%addresses))}}
	conn, err := dialer.Dial("tcp", c.address)
	if err != nil {
		return err
	}
	c.clients[n], err = mqtt.Over(conn, fmt.Sprintf("c%d", n), true)
	return err
}

func (c *crowd) drop() {
	for _, client := range c.clients {
		if client != nil {
			client.Drop()
		}
	}
}

// each calls a function for every client, a number of them at a time.
func (c *crowd) each(atOnce int, do func(n int) error) error {
	var next atomic.Int64
	var wait sync.WaitGroup
	failures := make(chan error, atOnce)
	for range min(atOnce, len(c.clients)) {
		wait.Go(func() {
			for n := int(next.Add(1)) - 1; n < len(c.clients); n = int(next.Add(1)) - 1 {
				if err := do(n); err != nil {
					failures <- fmt.Errorf("client %d: %w", n, err)
					return
				}
			}
		})
	}
	wait.Wait()
	close(failures)
	return <-failures
}

// measured returns the time of each client and the broker's usage. The function returns when its client is done; all
// begin at the same time.
func (c *crowd) measured(what string, atOnce int, do func(n int) error) error {
	before, err := c.broker.Settled()
	if err != nil {
		return err
	}
	c.broker.ResetPeak()
	waits := hdrhistogram.New(1, (5 * time.Minute).Microseconds(), 3)
	var lock sync.Mutex
	own := ownCPU()
	began := time.Now()
	err = c.each(atOnce, func(n int) error {
		began := began
		if atOnce < len(c.clients) {
			began = time.Now()
		}
		if err := do(n); err != nil {
			return err
		}
		lock.Lock()
		defer lock.Unlock()
		return waits.RecordValue(time.Since(began).Microseconds())
	})
	took := time.Since(began)
	own = ownCPU() - own
	if err != nil {
		return err
	}
	at, err := c.broker.Usage()
	if err != nil {
		return err
	}
	after, err := c.broker.Settled()
	if err != nil {
		return err
	}
	count := float64(len(c.clients))
	ms := func(us int64) float64 { return float64(us) / 1e3 }
	fmt.Fprintf(c.out, "%s\t%.0f\t%.2f\t%.0f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\n", what, count, took.Seconds(), count/took.Seconds(),
		ms(waits.ValueAtQuantile(50)), ms(waits.ValueAtQuantile(99)), ms(waits.Max()),
		(at.CPU-before.CPU).Seconds()*1e6/count, own.Seconds()*1e6/count,
		float64(before.Resident)/1e6, float64(after.Peak)/1e6, float64(after.Resident)/1e6)
	return nil
}

// ownCPU returns the processor time of this process.
func ownCPU() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		return 0
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

func (c *crowd) storm() error {
	return c.measured("storm", together, c.connect)
}

// enter connects and subscribes.
func (c *crowd) enter(n int, filter string, qos byte) error {
	if err := c.connect(n); err != nil {
		return err
	}
	return c.clients[n].Subscribe(filter, qos)
}

func (c *crowd) comeBack() error {
	own := func(n int) string { return fmt.Sprintf("devices/%d/in", n) }
	if err := c.each(together, func(n int) error { return c.enter(n, own(n), 1) }); err != nil {
		return err
	}
	var again atomic.Int64
	err := c.measured("return", len(c.clients), func(n int) error {
		c.clients[n].Drop()
		for {
			err := c.enter(n, own(n), 1)
			if err == nil {
				return nil
			}
			if again.Add(1) > 100*int64(len(c.clients)) {
				return err
			}
			if c.clients[n] != nil {
				c.clients[n].Drop()
			}
			time.Sleep(100 * time.Millisecond)
		}
	})
	if tries := again.Load(); tries > 0 {
		fmt.Fprintf(c.out, "  (attempts that failed and were made again: %d)\n", tries)
	}
	return err
}

func (c *crowd) fanOut() error {
	publisher, err := mqtt.Dial(c.address, "publisher", true)
	if err != nil {
		return err
	}
	defer publisher.Drop()
	for qos := range byte(2) {
		if err := c.each(together, func(n int) error {
			if c.clients[n] == nil {
				return c.enter(n, topic, qos)
			}
			return c.clients[n].Subscribe(topic, qos)
		}); err != nil {
			return err
		}
		for round := range rounds {
			what := fmt.Sprintf("fan-out, QoS %d, %d", qos, round+1)
			var once sync.Once
			err := c.measured(what, len(c.clients), func(n int) error {
				var failure error
				once.Do(func() { failure = publisher.Send(mqtt.NewMessage(topic, qos, size)) })
				if failure != nil {
					return failure
				}
				_, err := c.clients[n].Take()
				return err
			})
			if err != nil {
				return err
			}
			if qos > 0 {
				if _, err := publisher.Acknowledged(); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
