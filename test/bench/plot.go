package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// One colour for each broker.
var colours = map[string]string{
	"posthorn": "#c0392b", "rabbitmq": "#e67e22", "mosquitto": "#2471a3", "nats": "#1e8449", "hivemq": "#b7950b", "artemis": "#7d3c98",
}

// plot draws a bar for each broker in each workload: processor time per million messages, on a logarithmic scale.
func plot(figures []figure) []byte {
	const width, left, right, top, bar, gap = 780, 230, 60, 40, 13, 10
	least, most := 0.1, 10.0
	for _, f := range figures {
		for least > f.median(cpu) {
			least /= 10
		}
		for most < f.median(cpu) {
			most *= 10
		}
	}
	x := func(n float64) float64 {
		return left + math.Log10(n/least)/math.Log10(most/least)*(width-left-right)
	}
	var bars strings.Builder
	y, before := top, ""
	for _, f := range beside(figures) {
		if group := f.workload + f.step; group != before {
			before = group
			y += gap
			fmt.Fprintf(&bars, `<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", left-8, y+bar-2, label(f))
		}
		n := f.median(cpu)
		fmt.Fprintf(&bars, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>`, left, y, max(1, x(n)-left), bar-2, colours[f.broker])
		fmt.Fprintf(&bars, `<text x="%.1f" y="%d" font-size="10">%s</text>`+"\n", x(n)+4, y+bar-3, significant(n))
		y += bar
	}
	height := y + gap
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", width, height)
	fmt.Fprintf(&b, `<text x="8" y="18">broker CPU s per million messages, logarithmic: `)
	for _, name := range present(figures) {
		fmt.Fprintf(&b, `<tspan dx="8" fill="%s" font-weight="bold">%s</tspan>`, colours[name], name)
	}
	fmt.Fprintf(&b, "</text>\n")
	for n := least; n <= most*1.01; n *= 10 {
		fmt.Fprintf(&b, `<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="#ddd"/>`, x(n), x(n), top, height-gap)
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="middle" font-size="10">%s</text>`+"\n", x(n), top-6, strconv.FormatFloat(n, 'f', -1, 64))
	}
	b.WriteString(bars.String())
	b.WriteString("</svg>\n")
	return []byte(b.String())
}

// beside groups the brokers of each step.
func beside(figures []figure) []figure {
	var all []figure
	for _, f := range figures {
		last := len(all)
		for at, other := range slices.Backward(all) {
			if other.workload == f.workload && other.step == f.step {
				last = at + 1
				break
			}
		}
		all = slices.Insert(all, last, f)
	}
	return all
}

func label(f figure) string {
	if strings.HasPrefix(f.step, "1:1") {
		return f.workload
	}
	return f.workload + ", " + f.step
}

func present(figures []figure) []string {
	var names []string
	for _, name := range []string{"posthorn", "rabbitmq", "mosquitto", "nats", "hivemq", "artemis"} {
		for _, f := range figures {
			if f.broker == name {
				names = append(names, name)
				break
			}
		}
	}
	return names
}
