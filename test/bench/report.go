package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// A run is the content of a result file.
type run struct {
	Date    string   `json:"date"`
	Machine string   `json:"machine"`
	Note    string   `json:"note,omitempty"`
	Command []string `json:"command"`
	// Of brokers, by name.
	Versions map[string]string `json:"versions"`
	Results  []result          `json:"results"`
}

func newRun(note string) run {
	return run{
		Date: time.Now().UTC().Format(time.DateOnly), Machine: machine(), Note: note,
		Command: command(flag.CommandLine), Versions: map[string]string{},
	}
}

// command returns the command line that repeats the measurement, without the paths of result files.
func command(flags *flag.FlagSet) []string {
	out := []string{"test/bench/run"}
	flags.Visit(func(f *flag.Flag) {
		switch f.Name {
		case "json", "against", "markdown", "svg":
		default:
			out = append(out, "-"+f.Name, f.Value.String())
		}
	})
	return append(out, flags.Args()...)
}

func (r *run) add(results []result, versions map[string]string) {
	r.Results = append(r.Results, results...)
	maps.Copy(r.Versions, versions)
}

func machine() string {
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	cpus, _ := os.ReadFile("/proc/cpuinfo")
	model := "?"
	for line := range strings.Lines(string(cpus)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			model = strings.TrimSpace(value)
			break
		}
	}
	return fmt.Sprintf("%d processors, %s, Linux %s", runtime.NumCPU(), model, strings.TrimSpace(string(kernel)))
}

func read(file string) (run, error) {
	var r run
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", file, err)
	}
	return r, err
}

// A figure combines all rounds of a step and a broker.
type figure struct {
	key
	rounds []result
}

type key struct{ workload, step, broker string }

// figures are in the order of their first rounds.
func (r run) figures() []figure {
	var all []figure
	at := map[key]int{}
	for _, one := range r.Results {
		k := key{one.Workload, one.Step, one.Broker}
		if _, ok := at[k]; !ok {
			at[k] = len(all)
			all = append(all, figure{key: k})
		}
		all[at[k]].rounds = append(all[at[k]].rounds, one)
	}
	return all
}

// spread has the median, the least and the most of all rounds.
func (f figure) spread(of func(result) float64) (median, least, most float64) {
	var values []float64
	for _, r := range f.rounds {
		values = append(values, of(r))
	}
	slices.Sort(values)
	return middle(values), values[0], values[len(values)-1]
}

func (f figure) median(of func(result) float64) float64 {
	m, _, _ := f.spread(of)
	return m
}

func middle(sorted []float64) float64 {
	at := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[at]
	}
	return (sorted[at-1] + sorted[at]) / 2
}

func cpu(r result) float64    { return r.CPU }
func speed(r result) float64  { return r.Rate }
func client(r result) float64 { return r.Client }

// outputs are files; empty for none.
type outputs struct{ json, against, markdown, svg string }

// keep writes the results so far, because a run is long.
func (o outputs) keep(r run) error {
	if o.json == "" {
		return nil
	}
	text, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(o.json, append(text, '\n'), 0o644)
}

func (o outputs) write(r run) error {
	r.table(os.Stdout)
	if err := o.keep(r); err != nil {
		return err
	}
	if o.against != "" {
		before, err := read(o.against)
		if err != nil {
			return err
		}
		fmt.Println()
		compare(os.Stdout, before, r)
	}
	if o.markdown != "" {
		var text bytes.Buffer
		r.markdown(&text)
		if err := os.WriteFile(o.markdown, text.Bytes(), 0o644); err != nil {
			return err
		}
	}
	if o.svg != "" {
		return os.WriteFile(o.svg, plot(r.figures()), 0o644)
	}
	return nil
}

// Medians, and the least and the most of the decisive figures.
func (r run) table(to io.Writer) {
	out := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(out, "workload\tstep\tbroker\tCPU s per million (least to most)\tclient's\tmessages/s\tlatency ms, median and p99\tbytes written each\tpeak MB\tsyncs per thousand")
	for _, f := range r.figures() {
		median, least, most := f.spread(cpu)
		fmt.Fprintf(out, "%s\t%s\t%s\t%.2f (%.2f to %.2f)\t%.1f\t%.0f\t%s\t%.0f\t%.0f\t%s\n", f.workload, f.step, f.broker,
			median, least, most, f.median(client), f.median(speed), f.latency(), f.written(), f.peak(), f.syncs())
	}
	out.Flush()
}

func (f figure) written() float64 {
	return f.median(func(r result) float64 { return float64(r.Written) / float64(r.Messages) })
}

func (f figure) peak() float64 {
	return f.median(func(r result) float64 { return float64(r.Peak) / 1e6 })
}

func (f figure) latency() string {
	p99 := f.median(func(r result) float64 { return r.P99 })
	if p99 == 0 {
		return ""
	}
	return short(f.median(func(r result) float64 { return r.Median })/1000) + ", " + short(p99/1000)
}

func (f figure) syncs() string {
	if f.rounds[0].Syncs == nil {
		return ""
	}
	return short(*f.rounds[0].Syncs)
}

// short formats a number with two digits or as a whole number.
func short(n float64) string {
	switch {
	case n >= 10:
		return fmt.Sprintf("%.0f", n)
	case n >= 1 || n == 0:
		return fmt.Sprintf("%.2g", n)
	default:
		return fmt.Sprintf("%.2f", n)
	}
}

// The share of the sent messages that arrived, if it is not all.
func (f figure) lost() string {
	arrived := f.median(func(r result) float64 { return float64(r.Messages) / float64(max(1, r.Sent)) })
	if arrived > 0.9995 {
		return ""
	}
	return fmt.Sprintf("; %.1f %% arrived", arrived*100)
}

// compare shows the changes of the figures that both runs have.
func compare(to io.Writer, before, now run) {
	out := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(out, "workload\tstep\tbroker\tCPU s per million before\tnow\tchange\tmessages/s before\tnow\tchange")
	old := before.figures()
	for _, f := range now.figures() {
		at := slices.IndexFunc(old, func(o figure) bool { return o.key == f.key })
		if at < 0 {
			continue
		}
		cpuBefore, cpuNow := old[at].median(cpu), f.median(cpu)
		rateBefore, rateNow := old[at].median(speed), f.median(speed)
		fmt.Fprintf(out, "%s\t%s\t%s\t%.2f\t%.2f\t%s\t%.0f\t%.0f\t%s\n", f.workload, f.step, f.broker,
			cpuBefore, cpuNow, change(cpuBefore, cpuNow), rateBefore, rateNow, change(rateBefore, rateNow))
	}
	out.Flush()
}

func change(before, now float64) string {
	if before == 0 {
		return ""
	}
	return fmt.Sprintf("%+.1f %%", (now-before)/before*100)
}
