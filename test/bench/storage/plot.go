package main

import (
	"fmt"
	"strings"
)

// plot draws CPU per million against depth.
func plot(points []point) []byte {
	const width, height, left, bottom, top, right = 720, 360, 60, 50, 30, 20
	var depth, most float64
	for _, p := range points {
		depth, most = max(depth, p.Depth), max(most, p.CPU)
	}
	most *= 1.15
	x := func(d float64) float64 { return left + d/depth*(width-left-right) }
	y := func(c float64) float64 { return height - bottom - c/most*(height-bottom-top) }
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", width, height)
	for n := range 6 {
		c, d := most*float64(n)/5, depth*float64(n)/5
		fmt.Fprintf(&b, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#ddd"/>`, left, width-right, y(c), y(c))
		fmt.Fprintf(&b, `<text x="%d" y="%.1f" text-anchor="end">%.1f</text>`, left-6, y(c)+4, c)
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="middle">%.1f M</text>`+"\n", x(d), height-bottom+18, d/million)
	}
	for _, line := range []struct{ step, colour string }{{"publish", "#c0392b"}, {"consume", "#2471a3"}} {
		var path []string
		for _, p := range points {
			if p.Step == line.step {
				path = append(path, fmt.Sprintf("%.1f,%.1f", x(p.Depth), y(p.CPU)))
			}
		}
		fmt.Fprintf(&b, `<polyline fill="none" stroke="%s" stroke-width="2" points="%s"/>`+"\n", line.colour, strings.Join(path, " "))
	}
	fmt.Fprintf(&b, `<text x="%d" y="18">broker CPU s per million messages of 12 B (quorum queue): <tspan fill="#c0392b">publish</tspan>, <tspan fill="#2471a3">consume</tspan></text>`+"\n", left)
	fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle">messages in the queue</text>`+"\n</svg>\n", (left+width)/2, height-12)
	return []byte(b.String())
}
