package main

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
)

func line(perMessage, start float64) []point {
	var points []point
	for n := range 10 {
		depth := float64(n) * 1000
		points = append(points, point{Step: "publish", Depth: depth, CPU: float64(n + 1), Resident: start + perMessage*depth})
	}
	return points
}

func TestSlopeFitsTheLine(t *testing.T) {
	if got := slope(line(12.5, 1e8)); math.Abs(got-12.5) > 1e-6 {
		t.Errorf("slope %v", got)
	}
}

func TestPlotIsXML(t *testing.T) {
	text := string(plot(line(12, 0)))
	for d := xml.NewDecoder(strings.NewReader(text)); ; {
		_, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if strings.Count(text, "<polyline") != 2 || strings.Contains(text, "NaN") {
		t.Error(text)
	}
}

func TestMissedGoalsAreReported(t *testing.T) {
	r := &report{scenario: "s"}
	r.add("kept", 1, "s", 2)
	r.add("missed", 3, "s", 2)
	if r.Rows[0].missed() != "" || r.Rows[1].missed() != "missed, 1.5 times" {
		t.Errorf("%q %q", r.Rows[0].missed(), r.Rows[1].missed())
	}
}
