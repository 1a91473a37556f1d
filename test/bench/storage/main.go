// Command storage measures the cost of a broker's storage in whole processes, from outside: processor time, ratios,
// bytes and times to a first answer. docs/explanation/performance.md has the results.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"posthorn.io/posthorn/test/bench/peers"
	"posthorn.io/posthorn/test/bench/process"
)

// A scenario is a function that adds rows.
type scenario struct {
	name  string
	about string
	run   func(*report) error
	// Only when it is named: too long, or too much disk, for every run.
	byName bool
}

var scenarios = []scenario{
	{"restart", "1 M messages of 12 B in a quorum queue, kill -9, start: time to the first message", restart1M, false},
	{"memory", "a quorum queue filled to 5 M messages: bytes of memory for each", memory, false},
	{"depth", "a quorum queue filled to 5 M messages and emptied: CPU against depth; kill -9 when it is full", depth5M, false},
	{"depth10m", "the same with 10 M", depth10M, true},
	{"oldest", "one old message that nobody acknowledges, and traffic: does the disk plateau?", oldest, false},
	{"churn", "consumers come and go: does the log grow?", churn, false},
	{"classic", "100,000 classic queues: start", classic, false},
	{"idle", "10,000 quorum queues on three nodes: what they cost idle, and leaders after a node's death", idle, false},
	{"stream-replay", "1 M messages of 1 KiB of a stream, read from the disk, against cat of its files to a socket", replay, false},
	{"stream-filter", "a stream with 50 filter values: bytes of a consumer of one value against a consumer of all", filtered, false},
	{"stream-start", "10,000 streams: start", streamsStart, false},
	{"stream-idle", "1,000 streams: what they cost idle", streamsIdle, false},
	{"stream-backlog", "10 M messages behind a slow consumer: the traffic of another stream", streamsBacklog, false},
	{"catchup", "a node away while 3 M messages are queued: time and rate until it has them", catchUp, false},
}

// row is one figure.
type row struct {
	Scenario string  `json:"scenario"`
	What     string  `json:"what"`
	Value    float64 `json:"value"`
	Unit     string  `json:"unit"`
	// The goal is at most this; 0 for no goal.
	Goal float64 `json:"goal,omitempty"`
}

// missed reports by how much a goal is missed, if there is one.
func (r row) missed() string {
	if r.Goal == 0 || r.Value <= r.Goal {
		return ""
	}
	return fmt.Sprintf("missed, %.1f times", r.Value/r.Goal)
}

// report collects the measurements.
type report struct {
	program  string
	scale    float64
	scenario string
	// Other brokers, for the scenarios of streams.
	peers    []peers.Peer
	peersDir string
	Rows     []row   `json:"rows"`
	Points   []point `json:"points,omitempty"`
}

func (r *report) add(what string, value float64, unit string, goal float64) {
	r.Rows = append(r.Rows, row{r.scenario, what, value, unit, goal})
	fmt.Fprintf(os.Stderr, "  %s: %.4g %s\n", what, value, unit)
}

// times scales a number of messages or queues.
func (r *report) times(n int) int { return max(1, int(float64(n)*r.scale)) }

func (r *report) start(settings ...string) (*process.Broker, error) {
	return process.Start(r.program, sets(settings)...)
}

func sets(settings []string) []string {
	var arguments []string
	for _, s := range settings {
		arguments = append(arguments, "--set", s)
	}
	return arguments
}

func main() {
	scale := flag.Float64("scale", 1, "of the number of messages and queues")
	file := flag.String("json", "", "file for all figures, as JSON")
	svg := flag.String("svg", "", "file for the plot of depth, as SVG")
	others := flag.String("peers", "", "other brokers for the scenarios of streams, as make bench-peers installs them")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: test/bench/storage/run [FLAGS] [SCENARIO...]   those without * when none is named:")
		for _, s := range scenarios {
			mark := " "
			if s.byName {
				mark = "*"
			}
			fmt.Fprintf(os.Stderr, " %s%-10s %s\n", mark, s.name, s.about)
		}
		flag.PrintDefaults()
	}
	flag.Parse()
	r := &report{program: os.Getenv("POSTHORN"), scale: *scale, peersDir: os.Getenv("PEERS_DIR")}
	if *others != "" {
		var err error
		if r.peers, err = peers.Choose(strings.Split(*others, ","), r.peersDir); err != nil {
			fmt.Fprintln(os.Stderr, "storage:", err)
			os.Exit(1)
		}
	}
	if err := r.run(flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "storage:", err)
		os.Exit(1)
	}
	r.table()
	if err := r.write(*file, *svg); err != nil {
		fmt.Fprintln(os.Stderr, "storage:", err)
		os.Exit(1)
	}
}

func (r *report) run(names []string) error {
	if r.program == "" {
		return fmt.Errorf("POSTHORN (the program) is not set: use test/bench/storage/run")
	}
	for _, name := range names {
		if !slices.ContainsFunc(scenarios, func(s scenario) bool { return s.name == name }) {
			return fmt.Errorf("no scenario %q; -help lists them", name)
		}
	}
	for _, s := range scenarios {
		if slices.Contains(names, s.name) || len(names) == 0 && !s.byName {
			fmt.Fprintf(os.Stderr, "%s\n", s.name)
			r.scenario = s.name
			if err := s.run(r); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
	}
	return nil
}

func (r *report) table() {
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(out, "scenario\tfigure\tvalue\tunit\tgoal\t")
	for _, row := range r.Rows {
		goal := ""
		if row.Goal > 0 {
			goal = fmt.Sprintf("<= %.4g", row.Goal)
		}
		fmt.Fprintf(out, "%s\t%s\t%.4g\t%s\t%s\t%s\n", row.Scenario, row.What, row.Value, row.Unit, goal, row.missed())
	}
	out.Flush()
}

func (r *report) write(file, svg string) error {
	if file != "" {
		text, err := json.MarshalIndent(r, "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(file, append(text, '\n'), 0o644); err != nil {
			return err
		}
	}
	if svg == "" || len(r.Points) == 0 {
		return nil
	}
	return os.WriteFile(svg, plot(r.Points), 0o644)
}

// until polls a condition, and returns the time until it holds.
func until(limit time.Duration, pause time.Duration, so func() (bool, error)) (time.Duration, error) {
	for began := time.Now(); ; time.Sleep(pause) {
		ok, err := so()
		took := time.Since(began)
		switch {
		case ok && err == nil:
			return took, nil
		case took > limit:
			return took, notReachedError(limit, err)
		}
	}
}

// notReachedError: a condition did not hold within the limit; cause is nil if no poll failed.
func notReachedError(limit time.Duration, cause error) error {
	if cause == nil {
		return fmt.Errorf("not so after %s", limit)
	}
	return fmt.Errorf("not so after %s: %w", limit, cause)
}
