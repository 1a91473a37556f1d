package main

import "testing"

func TestProcessorTimeOfOthersIsWhatNeitherNodeNorTestUsed(t *testing.T) {
	before, err := parseMachine("cpu  100 10 50 800 40 1 2 3 0 0\ncpu0 1 2 3\n")
	if err != nil || before.all != 1006 || before.busy != 166 {
		t.Fatalf("%+v, %v", before, err)
	}
	after := cpuTimes{all: before.all + 200, busy: before.busy + 90, own: 50}
	if others := othersBetween(before, after); others != 0.2 {
		t.Fatalf("others used %v", others)
	}
	if others := othersBetween(before, before); others != 0 {
		t.Fatalf("others used %v in no time", others)
	}
	used, err := parseProcess("7 (a (b) c) S 1 7 7 0 -1 4194560 1 0 0 0 30 12 9 9 20 0 5 0 100 1 1")
	if err != nil || used != 42 {
		t.Fatalf("%d, %v", used, err)
	}
	for _, stat := range []string{"", "cpu 1 2", "intr 1 2 3 4 5 6 7 8", "cpu a b c d e f g h"} {
		if _, err := parseMachine(stat); err == nil {
			t.Fatalf("%q was accepted", stat)
		}
	}
	if _, err := parseProcess("7 (x) S 1"); err == nil {
		t.Fatal("a short line was accepted")
	}
}
