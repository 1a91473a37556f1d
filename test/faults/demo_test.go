package main

import "testing"

func TestBarShowsConfirms(t *testing.T) {
	for confirms, want := range map[int]string{0: ".", 1: "#", 100: "#", 101: "##", 1200: "############", 90_000: "############"} {
		if got := bar(confirms); got != want {
			t.Errorf("%d confirms are shown as %q", confirms, got)
		}
	}
}
