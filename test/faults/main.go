// Faults runs clusters of real broker processes, each in a network namespace of its own, under traffic of real
// clients, injects faults, and checks the broker's guarantees.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

const usage = `usage: run [flags] [SCENARIO...]

Without names: all scenarios but the long ones. Needs root, for namespaces and /dev/net/tun.
Exit status: 0 all passed, 1 some failed, 2 it could not be run.

scenarios:
`

func main() {
	if os.Getenv(sandboxed) == "" {
		os.Exit(enterSandbox())
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	code := run(ctx)
	stop()
	os.Exit(code)
}

func run(ctx context.Context) int {
	o, chosen, keep, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err == nil {
		err = prepareSandbox()
	}
	if err == nil && o.dir == "" {
		o.dir, err = os.MkdirTemp("", "posthorn-faults.")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "faults:", err)
		return 2
	}
	fmt.Printf("seed %d, data and logs in %s\n", o.seed, o.dir)
	passed := 0
	var failed []string
	for _, s := range chosen {
		if ctx.Err() != nil {
			failed = append(failed, s.name+": interrupted")
			break
		}
		if problem := perform(ctx, o, s); problem == "" {
			passed++
		} else {
			failed = append(failed, s.name+": "+problem)
		}
	}
	if len(failed) == 0 && !keep {
		_ = os.RemoveAll(o.dir)
	}
	fmt.Printf("%d passed, %d failed\n", passed, len(failed))
	if len(failed) > 0 {
		fmt.Printf("failed: %s\n", strings.Join(failed, "\nfailed: "))
		return 1
	}
	return 0
}

func parse(args []string) (o options, chosen []scenario, keep bool, err error) {
	fs := flag.NewFlagSet("faults", flag.ContinueOnError)
	fs.Usage = func() {
		fmt.Fprint(fs.Output(), usage)
		for _, s := range all() {
			fmt.Fprintf(fs.Output(), "  %-14s %s\n", s.name, s.about)
		}
		fmt.Fprintln(fs.Output(), "\nflags:")
		fs.PrintDefaults()
	}
	rate := 0
	fs.StringVar(&o.binary, "binary", "", "the broker")
	fs.StringVar(&o.dir, "dir", "", "directory for data and logs; a temporary one, removed unless something fails")
	fs.Uint64Var(&o.seed, "seed", 1, "what happens, and which packets are lost, follows from it; when it happens does not")
	fs.IntVar(&rate, "rate", 100, "messages a second of each of the ten publishers, at most")
	fs.IntVar(&o.confirms, "confirms", 4000, "confirms that a fault lasts")
	fs.DurationVar(&o.longest, "longest", 12*time.Second, "how long a fault lasts when they do not come")
	fs.DurationVar(&o.duration, "duration", time.Minute, "how long the mixed scenario goes on")
	fs.IntVar(&o.shards, "shards", 1, "shards of each node")
	fs.StringVar(&o.storeServer, "store-server", "", "versitygw, the S3 server of the scenario object-store")
	fs.BoolVar(&keep, "keep", false, "keep data and logs")
	if err = fs.Parse(args); err != nil {
		return o, nil, keep, err
	}
	if rate < 1 || rate > 10_000 || o.confirms < 1 {
		return o, nil, keep, errors.New("-rate must be 1 to 10000, -confirms at least 1")
	}
	o.interval = time.Second / time.Duration(rate)
	if o.binary, err = filepath.Abs(o.binary); err != nil {
		return o, nil, keep, err
	}
	if _, err = os.Stat(o.binary); err != nil {
		return o, nil, keep, fmt.Errorf("-binary: %w", err)
	}
	chosen, err = choose(fs.Args())
	return o, chosen, keep, err
}

func choose(names []string) (chosen []scenario, err error) {
	known := all()
	if len(names) == 0 {
		return slices.DeleteFunc(known, func(s scenario) bool { return s.long }), nil
	}
	for _, name := range names {
		at := slices.IndexFunc(known, func(s scenario) bool { return s.name == name })
		if at < 0 {
			return nil, fmt.Errorf("no scenario %q; -help lists them", name)
		}
		chosen = append(chosen, known[at])
	}
	return chosen, nil
}

// perform runs one scenario, prints its result, and returns the first problem, which is empty if there is none.
func perform(ctx context.Context, o options, s scenario) (problem string) {
	fmt.Printf("== %s: %s\n", s.name, s.about)
	began := time.Now()
	if s.alone != nil {
		if err := s.alone(ctx, o, os.Stdout); err != nil {
			fmt.Printf("   FAIL %s: %v\n", s.name, err)
			return err.Error()
		}
		fmt.Printf("   PASS %s (%.1f s)\n", s.name, time.Since(began).Seconds())
		return ""
	}
	w, err := build(ctx, o, s, os.Stdout)
	if err != nil {
		fmt.Printf("   FAIL %s: %v\n", s.name, err)
		return err.Error()
	}
	if err = s.run(w); err == nil {
		err = w.afterlife()
	}
	r := w.judge(err)
	v := r.verdict
	fmt.Printf("   %d sent, %d confirmed, %d arrived, %d redelivered, %d reconnects\n", v.Sent, v.Confirmed, v.Arrived, v.Redelivered, r.reconnects)
	in := r.stream
	fmt.Printf("   stream: %d sent, %d confirmed, %d at their offsets, %d reconnects\n", in.Sent, in.Confirmed, in.Arrived, r.streamReconnects)
	if len(r.problems) == 0 {
		fmt.Printf("   PASS %s (%.1f s)\n", s.name, time.Since(began).Seconds())
		return ""
	}
	fmt.Printf("   FAIL %s: lost %d, missing %d, reordered %d, resurrected %d, doubled %d, invented %d, corrupted %d, unroutable %d\n",
		s.name, v.Lost, v.Missing, v.Reordered, v.Resurrected, v.Doubled, v.Invented, v.Corrupted, v.Unroutable)
	fmt.Printf("   stream: lost %d, changed %d, doubled %d, reordered %d, skipped %d, forgotten %d, invented %d, corrupted %d\n",
		in.Lost, in.Changed, in.Doubled, in.Reordered, in.Skipped, in.Forgotten, in.Invented, in.Corrupted)
	for _, p := range r.problems {
		fmt.Printf("   | %s\n", p)
	}
	return r.problems[0]
}
