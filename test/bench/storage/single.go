package main

import (
	"fmt"
	"time"

	"posthorn.io/posthorn/test/bench/process"
	"posthorn.io/posthorn/test/bench/wire"
)

const (
	// bytes of a message's body
	small = 12
	// limit of unconfirmed messages
	window = 10_000
	// messages for each acknowledgement
	together = 500
	million  = 1_000_000
)

// with runs a function with a connection of its own.
func with(b *process.Broker, do func(*wire.Conn) error) error {
	c, err := wire.Dial(b.Address())
	if err != nil {
		return err
	}
	defer c.Close()
	return do(c)
}

func publish(b *process.Broker, queue string, messages, size int) error {
	return with(b, func(c *wire.Conn) error {
		if err := c.Confirms(); err != nil {
			return err
		}
		return c.Publish(wire.NewMessage(queue, size), messages, window)
	})
}

func declare(b *process.Broker, queue, kind string) error {
	return with(b, func(c *wire.Conn) error { return c.Declare(queue, kind) })
}

func take(b *process.Broker, queue string, messages int) error {
	return with(b, func(c *wire.Conn) error {
		if err := c.Consume(queue, "taker", 4*together); err != nil {
			return err
		}
		return c.Take(messages, together)
	})
}

// cpu returns the broker's processor time during a function.
func cpu(b *process.Broker, do func() error) (time.Duration, error) {
	before, err := b.Usage()
	if err != nil {
		return 0, err
	}
	if err := do(); err != nil {
		return 0, err
	}
	after, err := b.Usage()
	return after.CPU - before.CPU, err
}

// crashed kills the broker and starts it again: the time from the start to the first message, and the processor time
// during it.
func crashed(b *process.Broker, queue string) (took, used time.Duration, err error) {
	b.Kill()
	began := time.Now()
	if err := b.Launch(); err != nil {
		return 0, 0, err
	}
	c, err := dialEagerly(b)
	if err != nil {
		return 0, 0, err
	}
	defer c.Close()
	if err := c.Consume(queue, "first", 1); err != nil {
		return 0, 0, err
	}
	if c.Delivered == 0 {
		if err := c.Next(); err != nil {
			return 0, 0, err
		}
	}
	took = time.Since(began)
	usage, err := b.Usage()
	if err != nil {
		return 0, 0, err
	}
	return took, usage.CPU, b.Wait()
}

// dialEagerly connects as soon as possible.
func dialEagerly(b *process.Broker) (*wire.Conn, error) {
	var c *wire.Conn
	_, err := until(process.Patience, time.Millisecond, func() (bool, error) {
		select {
		case <-b.Over():
			return false, fmt.Errorf("the broker has ended; its log is %s", b.Log())
		default:
		}
		var err error
		c, err = wire.Dial(b.Address())
		return err == nil, err
	})
	return c, err
}

func restart1M(r *report) error {
	b, err := r.start()
	if err != nil {
		return err
	}
	defer b.Remove()
	if err := declare(b, "q", "quorum"); err != nil {
		return err
	}
	if err := publish(b, "q", r.times(million), small); err != nil {
		return err
	}
	for n := range 3 {
		if err := r.crash(b, fmt.Sprintf("start %d after kill -9", n+1), 0.3); err != nil {
			return err
		}
	}
	return nil
}

func (r *report) crash(b *process.Broker, what string, goal float64) error {
	r.add(what+", files before", float64(b.DiskBytes())/1e6, "MB", 0)
	took, used, err := crashed(b, "q")
	if err != nil {
		return err
	}
	r.add(what+", to the first message", took.Seconds(), "s", goal)
	r.add(what+", CPU until then", used.Seconds(), "s", 0)
	return nil
}

// point is the result of one piece of filling or emptying a queue.
type point struct {
	Step     string  `json:"step"` // publish or consume
	Depth    float64 `json:"depth"`
	CPU      float64 `json:"cpu_seconds_per_million"`
	Resident float64 `json:"resident_bytes"`
}

func depth5M(r *report) error  { return r.depth(r.times(5*million), 0.65) }
func depth10M(r *report) error { return r.depth(r.times(10*million), 1) }

// memory fills a queue while the log keeps little in memory, so that the rest is the queue's.
func memory(r *report) error {
	b, err := r.start(compressed)
	if err != nil {
		return err
	}
	defer b.Remove()
	if err := declare(b, "q", "quorum"); err != nil {
		return err
	}
	const pieces = 20
	piece := r.times(5*million) / pieces
	var points []point
	for n := range pieces {
		if err := publish(b, "q", piece, small); err != nil {
			return err
		}
		usage, err := b.Usage()
		if err != nil {
			return err
		}
		points = append(points, point{Depth: float64((n + 1) * piece), Resident: float64(usage.Resident)})
	}
	r.add("memory per ready message, slope of resident bytes", slope(points), "B", 16)
	r.add("resident bytes when full", points[pieces-1].Resident/1e6, "MB", 0)
	return nil
}

// depth fills a queue piece by piece, kills the broker, and empties the queue.
func (r *report) depth(messages int, goal float64) error {
	b, err := r.start()
	if err != nil {
		return err
	}
	defer b.Remove()
	if err := declare(b, "q", "quorum"); err != nil {
		return err
	}
	const pieces = 20
	piece := messages / pieces
	filling, err := r.pieces(b, "publish", pieces, piece, func(n int) int { return (n + 1) * piece },
		func() error { return publish(b, "q", piece, small) })
	if err != nil {
		return err
	}
	r.add("resident bytes when full, log in memory included", filling[pieces-1].Resident/1e6, "MB", 0)
	if err := r.crash(b, fmt.Sprintf("%d M, kill -9", messages/million), goal); err != nil {
		return err
	}
	_, err = r.pieces(b, "consume", pieces, piece, func(n int) int { return (pieces - n - 1) * piece },
		func() error { return take(b, "q", piece) })
	return err
}

// pieces runs a function piece by piece and records the result of each; depth is the depth after it.
func (r *report) pieces(b *process.Broker, step string, count, piece int, depth func(n int) int, do func() error) ([]point, error) {
	var points []point
	for n := range count {
		used, err := cpu(b, do)
		if err != nil {
			return nil, err
		}
		usage, err := b.Usage()
		if err != nil {
			return nil, err
		}
		points = append(points, point{
			Step: step, Depth: float64(depth(n)), CPU: used.Seconds() / float64(piece) * million, Resident: float64(usage.Resident),
		})
	}
	r.Points = append(r.Points, points...)
	r.add(step+", first quarter, CPU per million", mean(points[:count/4]), "s", 0)
	r.add(step+", last quarter, CPU per million", mean(points[count-count/4:]), "s", 0)
	return points, nil
}

func mean(points []point) float64 {
	sum := 0.0
	for _, p := range points {
		sum += p.CPU
	}
	return sum / float64(len(points))
}

// slope is the slope of resident bytes against depth, by least squares.
func slope(points []point) float64 {
	var x, y, xx, xy float64
	n := float64(len(points))
	for _, p := range points {
		x += p.Depth
		y += p.Resident
		xx += p.Depth * p.Depth
		xy += p.Depth * p.Resident
	}
	return (n*xy - x*y) / (n*xx - x*x)
}

// compressed makes the log start a new file earlier, which replaces hours of measurement.
const compressed = "wal.file_size=8MiB"

// oldest keeps one message for ever while others pass.
func oldest(r *report) error {
	b, err := r.start(compressed)
	if err != nil {
		return err
	}
	defer b.Remove()
	if err := declare(b, "q", "quorum"); err != nil {
		return err
	}
	if err := publish(b, "q", 1, small); err != nil {
		return err
	}
	holder, err := wire.Dial(b.Address())
	if err != nil {
		return err
	}
	defer holder.Close()
	if err := holder.Consume("q", "holder", 1); err != nil {
		return err
	}
	if holder.Delivered == 0 {
		if err := holder.Next(); err != nil {
			return err
		}
	}
	const pieces = 24
	piece := r.times(2*million) / pieces
	return r.plateau(b, pieces, "M messages of 100 B", float64(piece)/million, func() error {
		if err := publish(b, "q", piece, 100); err != nil {
			return err
		}
		return take(b, "q", piece)
	})
}

// plateau reports the largest size of the files in the middle third and in the last third of a long run.
func (r *report) plateau(b *process.Broker, pieces int, what string, each float64, do func() error) error {
	var most [3]float64
	for n := range pieces {
		if err := do(); err != nil {
			return err
		}
		at := n * 3 / pieces
		most[at] = max(most[at], float64(b.DiskBytes())/1e6)
	}
	usage, err := b.Usage()
	if err != nil {
		return err
	}
	r.add(what+" that passed", each*float64(pieces), "", 0)
	r.add("written to disk", float64(usage.Written)/1e6, "MB", 0)
	r.add("most space of all files, first third", most[0], "MB", 0)
	r.add("most space of all files, second third", most[1], "MB", 0)
	r.add("most space of all files, last third", most[2], "MB", 0)
	r.add("last third over second third", most[2]/most[1], "times", 1.1)
	return nil
}

func churn(r *report) error {
	b, err := r.start(compressed)
	if err != nil {
		return err
	}
	defer b.Remove()
	if err := declare(b, "q", "quorum"); err != nil {
		return err
	}
	const pieces, connections = 24, 32
	each := r.times(480_000) / pieces / connections
	return r.plateau(b, pieces, "consumers, in thousands,", float64(each*connections)/1000, func() error {
		done := make(chan error, connections)
		for range connections {
			go func() { done <- with(b, func(c *wire.Conn) error { return c.Churn("q", each) }) }()
		}
		var failed error
		for range connections {
			if err := <-done; err != nil {
				failed = err
			}
		}
		return failed
	})
}

// classic restarts a node with many classic queues: empty ones, then with a message in each.
func classic(r *report) error {
	b, err := r.start()
	if err != nil {
		return err
	}
	defer b.Remove()
	queues := names(r.times(100_000))
	err = with(b, func(c *wire.Conn) error { return c.DeclareAll(queues, "classic") })
	if err != nil {
		return err
	}
	if err := r.starts(b, "empty queues"); err != nil {
		return err
	}
	err = with(b, func(c *wire.Conn) error {
		if err := c.Confirms(); err != nil {
			return err
		}
		for _, queue := range queues {
			if err := c.Send(wire.NewMessage(queue, small), 1000); err != nil {
				return err
			}
		}
		return c.Confirmed()
	})
	if err != nil {
		return err
	}
	return r.starts(b, "a message in each")
}

func names(count int) []string {
	var all []string
	for n := range count {
		all = append(all, fmt.Sprintf("q%d", n))
	}
	return all
}

func (r *report) starts(b *process.Broker, what string) error {
	for _, end := range []string{"kill -9", "SIGTERM"} {
		if end == "SIGTERM" {
			b.End()
		} else {
			b.Kill()
		}
		began := time.Now()
		if err := b.Launch(); err != nil {
			return err
		}
		if err := b.Wait(); err != nil {
			return err
		}
		took := time.Since(began)
		usage, err := b.Usage()
		if err != nil {
			return err
		}
		r.add(what+", after "+end+", ready after", took.Seconds(), "s", 5)
		r.add(what+", after "+end+", CPU until then", usage.CPU.Seconds(), "s", 0)
		r.add(what+", after "+end+", resident", float64(usage.Resident)/1e6, "MB", 0)
	}
	return nil
}
