package main

import (
	"errors"
	"slices"
	"testing"
)

func TestScenariosAreChosenByName(t *testing.T) {
	bounded, err := choose(nil)
	if err != nil || slices.ContainsFunc(bounded, func(s scenario) bool { return s.long }) || len(bounded) != len(all())-2 {
		t.Errorf("%d scenarios, %v", len(bounded), err)
	}
	if got, err := choose([]string{"mixed", "kill"}); err != nil || len(got) != 2 || got[0].name != "mixed" || got[1].name != "kill" {
		t.Error(got, err)
	}
	if _, err := choose([]string{"kill", "killl"}); err == nil {
		t.Error("an unknown name was accepted")
	}
}

func TestEveryScenarioIsComplete(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range all() {
		if seen[s.name] || s.about == "" || s.nodes < 1 || s.home >= s.nodes || (s.run == nil) == (s.alone == nil) {
			t.Errorf("%+v", s)
		}
		seen[s.name] = true
	}
}

// Of two faults at once, each started fault ends, in reverse order, and one that could not start does not end.
func TestBothFaultsEndInReverseOrder(t *testing.T) {
	var done []string
	note := func(what string, err error) func() error {
		return func() error { done = append(done, what); return err }
	}
	broken := errors.New("broken")
	a := fault{"a", note("begin a", nil), note("end a", nil)}
	b := fault{"b", note("begin b", nil), note("end b", nil)}
	impossible := fault{"c", note("begin c", broken), note("end c", nil)}
	cases := []struct {
		first, second fault
		fails         bool
		want          []string
	}{
		{a, b, false, []string{"begin a", "begin b", "end b", "end a"}},
		{a, impossible, false, []string{"begin a", "begin c", "end a"}},
		{impossible, b, true, []string{"begin c"}},
	}
	for _, c := range cases {
		done = nil
		f := both(c.first, c.second)
		err := f.begin()
		if err == nil {
			err = f.end()
		}
		if (err != nil) != c.fails || !slices.Equal(done, c.want) {
			t.Errorf("%s: %v, %v", f.what, done, err)
		}
	}
}
