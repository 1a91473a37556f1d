// Command bench measures the broker under foreign load generators, and other brokers next to it. It reports figures
// that are stable on a noisy machine: the broker's processor time per million messages, as medians over rounds in
// which the brokers take turns.
package main

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"

	"posthorn.io/posthorn/test/bench/peers"
)

func main() {
	rounds := flag.Int("rounds", 0, "rounds; every broker once in each (3, with peers 5)")
	seconds := flag.Float64("seconds", 5, "how long a step is to take; the first trial of each broker tells how many messages that is")
	rate := flag.Float64("rate", 0, "messages a second in workloads with a pace (half of what the slowest broker can)")
	names := flag.String("peers", "", "other brokers, as make bench-peers installs them: "+strings.Join(peers.Names(), ",")+", or all that are installed")
	file := flag.String("json", "", "file for all results, as JSON")
	against := flag.String("against", "", "file of a run before, to compare with")
	markdown := flag.String("markdown", "", "file for the tables, as Markdown")
	svg := flag.String("svg", "", "file for a plot, as SVG")
	note := flag.String("note", "", "what else the machine did, for the files")
	show := flag.String("show", "", "measure nothing; show the results of this file")
	flag.Usage = usage
	flag.Parse()
	out := outputs{json: *file, against: *against, markdown: *markdown, svg: *svg}
	var err error
	if *show != "" {
		var r run
		if r, err = read(*show); err == nil {
			err = out.write(r)
		}
	} else {
		err = all(flag.Args(), plan{rounds: *rounds, seconds: *seconds, rate: *rate}, *names, *note, out)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func usage() {
	fmt.Fprintln(os.Stderr, "usage: test/bench/run [FLAGS] [WORKLOAD...]   those without * when none is named; workloads:")
	for _, w := range workloads {
		mark := " "
		if w.byName {
			mark = "*"
		}
		fmt.Fprintf(os.Stderr, " %s%-24s %s\n", mark, w.name, w.about)
	}
	flag.PrintDefaults()
}

func choose(names []string) ([]workload, error) {
	var chosen []workload
	for _, w := range workloads {
		if slices.Contains(names, w.name) || len(names) == 0 && !w.byName {
			chosen = append(chosen, w)
		}
	}
	for _, name := range names {
		if !slices.ContainsFunc(workloads, func(w workload) bool { return w.name == name }) {
			return nil, fmt.Errorf("no workload %q; -help lists them", name)
		}
	}
	return chosen, nil
}

func all(workloads []string, p plan, others, note string, out outputs) error {
	chosen, err := choose(workloads)
	if err != nil {
		return err
	}
	p.program, p.tools = os.Getenv("POSTHORN"), tools{perfTest: os.Getenv("PERF_TEST"), peers: os.Getenv("PEERS_DIR")}
	if p.program == "" || p.tools.perfTest == "" || p.tools.peers == "" {
		return fmt.Errorf("POSTHORN (the program), PERF_TEST (its libraries) and PEERS_DIR are not set: use test/bench/run")
	}
	if others != "" {
		if p.peers, err = peers.Choose(strings.Split(others, ","), p.tools.peers); err != nil {
			return err
		}
	}
	switch {
	case p.rounds > 0:
	case len(p.peers) > 0:
		p.rounds = 5
	default:
		p.rounds = 3
	}
	r := newRun(note)
	for _, w := range chosen {
		fmt.Fprintf(os.Stderr, "%s\n", w.name)
		results, versions, err := p.measure(w)
		if err != nil {
			return err
		}
		r.add(results, versions)
		if err := out.keep(r); err != nil {
			return err
		}
	}
	return out.write(r)
}
