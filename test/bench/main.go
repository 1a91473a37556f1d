// Command bench measures the broker under other people's load generators. What it prints holds on a noisy machine as far as
// it can: broker processor time per million messages, medians over interleaved rounds.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"text/tabwriter"
)

func main() {
	rounds := flag.Int("rounds", 3, "rounds; every workload once in each")
	scale := flag.Float64("scale", 1, "of the number of messages")
	file := flag.String("json", "", "file for all results, as JSON")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: test/bench/run [FLAGS] [WORKLOAD...]   all of them when none is named; workloads:")
		for _, w := range workloads {
			fmt.Fprintf(os.Stderr, "  %-24s %s\n", w.name, w.about)
		}
		flag.PrintDefaults()
	}
	flag.Parse()
	chosen, err := choose(flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	if err := measure(chosen, *rounds, *scale, *file); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func choose(names []string) ([]workload, error) {
	if len(names) == 0 {
		return workloads, nil
	}
	var chosen []workload
	for _, name := range names {
		at := slices.IndexFunc(workloads, func(w workload) bool { return w.name == name })
		if at < 0 {
			return nil, fmt.Errorf("no workload %q; -help lists them", name)
		}
		chosen = append(chosen, workloads[at])
	}
	return chosen, nil
}

func measure(chosen []workload, rounds int, scale float64, file string) error {
	program, perfTest := os.Getenv("POSTHORN"), os.Getenv("PERF_TEST")
	if program == "" || perfTest == "" {
		return fmt.Errorf("POSTHORN (the program) and PERF_TEST (its libraries) are not set: use test/bench/run")
	}
	var all []result
	for round := range rounds {
		for _, w := range chosen {
			fmt.Fprintf(os.Stderr, "round %d of %d: %s\n", round+1, rounds, w.name)
			results, err := w.run(program, perfTest, scale)
			if err != nil {
				return err
			}
			all = append(all, results...)
		}
	}
	table(all)
	if file == "" {
		return nil
	}
	text, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}

// Medians, and the least and the most of what decides.
func table(all []result) {
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(out, "workload\tstep\tbroker\tCPU s per million (least to most)\tclient's\tmessages/s\tp99 ms\tMB written\tpeak MB")
	type key struct{ workload, step, broker string }
	var keys []key
	groups := map[key][]result{}
	for _, r := range all {
		k := key{r.Workload, r.Step, r.Broker}
		if groups[k] == nil {
			keys = append(keys, k)
		}
		groups[k] = append(groups[k], r)
	}
	for _, k := range keys {
		g := groups[k]
		cpu := sorted(g, func(r result) float64 { return r.CPU })
		fmt.Fprintf(out, "%s\t%s\t%s\t%.2f (%.2f to %.2f)\t%.1f\t%.0f\t%.1f\t%.0f\t%.0f\n", k.workload, k.step, k.broker,
			median(cpu), cpu[0], cpu[len(cpu)-1],
			median(sorted(g, func(r result) float64 { return r.Client })),
			median(sorted(g, func(r result) float64 { return r.Rate })),
			median(sorted(g, func(r result) float64 { return r.P99 / 1000 })),
			median(sorted(g, func(r result) float64 { return float64(r.Written) / 1e6 })),
			median(sorted(g, func(r result) float64 { return float64(r.Peak) / 1e6 })))
	}
	out.Flush()
}

func sorted(results []result, of func(result) float64) []float64 {
	var values []float64
	for _, r := range results {
		values = append(values, of(r))
	}
	slices.Sort(values)
	return values
}

func median(sorted []float64) float64 {
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}
