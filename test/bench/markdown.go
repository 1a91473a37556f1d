package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// markdown writes a table for each workload, with a column for each broker.
func (r run) markdown(to io.Writer) {
	all := r.figures()
	for _, w := range workloads {
		var of []figure
		for _, f := range all {
			if f.workload == w.name {
				of = append(of, f)
			}
		}
		if len(of) > 0 {
			section(to, w, of, r.Versions)
		}
	}
}

func section(to io.Writer, w workload, of []figure, versions map[string]string) {
	fmt.Fprintf(to, "**%s**: %s%s\n\n", w.name, w.about, pace(of[0]))
	fmt.Fprintln(to, "| | CPU s per million | of ours | messages/s | latency, median and p99, ms | bytes written each | syncs per 1,000 | peak MB | client's CPU | confirmed when |")
	fmt.Fprintln(to, "|---|---:|---:|---:|---:|---:|---:|---:|---:|---|")
	for _, f := range beside(of) {
		median, least, most := f.spread(cpu)
		ours := of[slices.IndexFunc(of, func(o figure) bool { return o.step == f.step })].median(cpu)
		times := ""
		if f.broker != "posthorn" {
			times = significant(median/ours) + " x"
		}
		fmt.Fprintf(to, "| %s %s%s | **%s** (%s to %s) | %s | %s%s | %s | %s | %s | %.0f | %s | %s |\n", f.broker, versions[f.broker], stepName(w, f.step),
			significant(median), significant(least), significant(most), times, thousands(f.median(speed)), f.lost(), f.latency(),
			thousands(f.written()), f.syncs(), f.peak(), significant(f.median(client)), w.kept[f.broker])
	}
	fmt.Fprintln(to)
}

func pace(f figure) string {
	if f.rounds[0].Wanted == 0 {
		return ""
	}
	return fmt.Sprintf(": %s messages/s", thousands(f.rounds[0].Wanted))
}

func stepName(w workload, step string) string {
	if len(w.steps) == 1 {
		return ""
	}
	return ", " + step
}

// significant formats a number with three digits.
func significant(n float64) string {
	switch {
	case n >= 100:
		return fmt.Sprintf("%.0f", n)
	case n >= 10:
		return fmt.Sprintf("%.1f", n)
	default:
		return fmt.Sprintf("%.2f", n)
	}
}

// thousands formats a number with three significant digits and commas.
func thousands(n float64) string {
	unit := 1
	for n/float64(unit) >= 1000 {
		unit *= 10
	}
	whole := int(n/float64(unit)+0.5) * unit
	text := fmt.Sprint(whole)
	var parts []string
	for len(text) > 3 {
		parts = append([]string{text[len(text)-3:]}, parts...)
		text = text[:len(text)-3]
	}
	return strings.Join(append([]string{text}, parts...), ",")
}
