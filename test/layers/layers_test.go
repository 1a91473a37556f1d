// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package layers

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"sort"
	"strings"
	"testing"
)

const (
	root = "../.."
	page = root + "/docs/architecture.md"
	// modulePath begins the import paths of the operator's packages.
	modulePath = "posthorn.io/posthorn/"
)

// order is the position of each unit (a crate or package) in the page's table. A unit may depend on those before it.
type order map[string]int

var inCode = regexp.MustCompile("`([^`]+)`")

// readOrder reads the first column of the table whose heading begins with first.
func readOrder(text, first string) (order, error) {
	found := order{}
	inTable := false
	for line := range strings.Lines(text) {
		switch {
		case strings.HasPrefix(line, "| "+first):
			inTable = true
		case inTable && !strings.HasPrefix(line, "|"):
			return found, nil
		case inTable && strings.HasPrefix(line, "|--"):
		case inTable:
			for _, unit := range inCode.FindAllStringSubmatch(strings.Split(line, "|")[1], -1) {
				if _, twice := found[unit[1]]; twice {
					return nil, fmt.Errorf("%s is listed twice", unit[1])
				}
				found[unit[1]] = len(found)
			}
		}
	}
	return found, nil
}

// violations lists units that the table lacks, or has although they do not exist, and dependencies that point upward.
func violations(allowed order, uses map[string][]string) []string {
	var out []string
	for unit, targets := range uses {
		position, listed := allowed[unit]
		if !listed {
			out = append(out, unit+" is not listed")
			continue
		}
		for _, target := range targets {
			if other, listed := allowed[target]; listed && other >= position {
				out = append(out, fmt.Sprintf("%s must not depend on %s", unit, target))
			}
		}
	}
	for unit := range allowed {
		if _, exists := uses[unit]; !exists {
			out = append(out, unit+" is listed and does not exist")
		}
	}
	sort.Strings(out)
	return out
}

func output(t *testing.T, name string, args ...string) []byte {
	t.Helper()
	command := exec.Command(name, args...)
	command.Dir = root
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		t.Fatalf("%s: %v", strings.Join(command.Args, " "), err)
	}
	return out
}

func check(t *testing.T, first string, uses map[string][]string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	allowed, err := readOrder(string(text), first)
	if err != nil {
		t.Fatal(err)
	}
	if len(allowed) == 0 {
		t.Fatalf("docs/architecture.md has no table that begins with %q", first)
	}
	for _, violation := range violations(allowed, uses) {
		t.Errorf("docs/architecture.md: %s", violation)
	}
}

// TestCratesDependDownward ignores dependencies of tests and build scripts.
func TestCratesDependDownward(t *testing.T) {
	var workspace struct {
		Packages []struct {
			Name         string
			ManifestPath string `json:"manifest_path"`
			Dependencies []struct {
				Name, Kind, Path string
			}
		}
	}
	metadata := output(t, "cargo", "metadata", "--no-deps", "--format-version", "1", "--manifest-path", "broker/Cargo.toml")
	if err := json.Unmarshal(metadata, &workspace); err != nil {
		t.Fatal(err)
	}
	uses := map[string][]string{}
	for _, crate := range workspace.Packages {
		if !strings.Contains(crate.ManifestPath, "/broker/crates/") {
			continue
		}
		uses[crate.Name] = nil
		for _, dependency := range crate.Dependencies {
			if dependency.Path != "" && dependency.Kind == "" {
				uses[crate.Name] = append(uses[crate.Name], dependency.Name)
			}
		}
	}
	check(t, "crate", uses)
}

func TestPackagesDependDownward(t *testing.T) {
	listed := output(t, "go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "./api/...", "./cmd/...", "./controllers/...", "./internal/...")
	uses := map[string][]string{}
	for line := range strings.Lines(string(listed)) {
		words := strings.Fields(strings.ReplaceAll(line, modulePath, ""))
		if strings.HasSuffix(words[0], "test") {
			// Packages of tests only.
			continue
		}
		uses[words[0]] = words[1:]
	}
	check(t, "package", uses)
}

func TestUpwardDependencyIsReported(t *testing.T) {
	const text = "text\n\n| crate | job |\n|---|---|\n| `a`, `b` | first |\n| `c` | second |\n\n| other | table |\n|---|---|\n| `x` | |\n"
	allowed, err := readOrder(text, "crate")
	if err != nil {
		t.Fatal(err)
	}
	good := map[string][]string{"a": nil, "b": {"a", "outside"}, "c": {"a", "b"}}
	if got := violations(allowed, good); len(got) != 0 {
		t.Errorf("downward only: %v", got)
	}
	bad := map[string][]string{"a": {"b"}, "b": {"c"}, "d": {"a"}}
	want := []string{"a must not depend on b", "b must not depend on c", "c is listed and does not exist", "d is not listed"}
	if got := violations(allowed, bad); strings.Join(got, ";") != strings.Join(want, ";") {
		t.Errorf("got %v, want %v", got, want)
	}
}
