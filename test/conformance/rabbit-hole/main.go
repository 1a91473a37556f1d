// Command rabbit-hole compares the report (Ginkgo's JSON) of a suite with its list of exceptions: a listed test must
// fail, and every other test must pass or be skipped by its authors.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	// Pins the client whose own tests run here.
	_ "github.com/michaelklishin/rabbit-hole/v3"
)

type spec struct {
	Containers []string `json:"ContainerHierarchyTexts"`
	Leaf       string   `json:"LeafNodeText"`
	Type       string   `json:"LeafNodeType"`
	State      string   `json:"State"`
	Failure    struct {
		Message  string
		Location struct{ LineNumber int }
	}
}

func (s spec) name() string {
	return strings.Join(append(slices.Clone(s.Containers), s.Leaf), " / ")
}

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: rabbit-hole SUITE REPORT EXCEPTIONS")
		os.Exit(2)
	}
	suite := os.Args[1]
	specs, err := read(os.Args[2])
	if err != nil {
		fmt.Fprintln(os.Stderr, suite+":", err)
		os.Exit(1)
	}
	expected, err := exceptions(os.Args[3])
	if err != nil {
		fmt.Fprintln(os.Stderr, suite+":", err)
		os.Exit(1)
	}
	passed, wrong := 0, 0
	for _, s := range specs {
		_, listed := expected[s.name()]
		delete(expected, s.name())
		switch {
		case s.State == "passed" && !listed:
			passed++
		case s.State == "passed":
			wrong++
			fmt.Printf("%s: listed in exceptions, and passed: %s\n", suite, s.name())
		case s.State == "skipped" || s.State == "pending" || listed:
		default:
			wrong++
			fmt.Printf("%s: %s: %s\n  line %d: %.1000s\n", suite, s.State, s.name(), s.Failure.Location.LineNumber, s.Failure.Message)
		}
	}
	for name := range expected {
		wrong++
		fmt.Printf("%s: listed in exceptions, and there is no such test: %s\n", suite, name)
	}
	if wrong > 0 || passed == 0 {
		fmt.Printf("%s: %d passed, %d not as expected\n", suite, passed, wrong)
		os.Exit(1)
	}
	fmt.Printf("%s: %d passed\n", suite, passed)
}

func read(path string) ([]spec, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var suites []struct{ SpecReports []spec }
	if err := json.Unmarshal(raw, &suites); err != nil {
		return nil, err
	}
	var tests []spec
	for _, suite := range suites {
		for _, s := range suite.SpecReports {
			if s.Type == "It" {
				tests = append(tests, s)
			}
		}
	}
	return tests, nil
}

// exceptions reads lines "name # reason".
func exceptions(path string) (map[string]string, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	all := map[string]string{}
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		name, reason, _ := strings.Cut(lines.Text(), " # ")
		if name = strings.TrimSpace(name); name != "" && !strings.HasPrefix(name, "#") {
			all[name] = reason
		}
	}
	return all, lines.Err()
}
