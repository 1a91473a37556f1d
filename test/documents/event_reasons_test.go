// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package documents

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	// eventCall matches the calls that add an Event, with its reason: a literal or the name of a constant.
	eventCall = regexp.MustCompile(`(?:\.warn|\.warnOfChange|\.note|\.noteOfChange|\.Tell)\((?:"([A-Z][A-Za-z]+)"|([a-zA-Z]+)),|Eventf\([^"\n]*(?:warning|normal), "([A-Z][A-Za-z]+)"`)
	// reasonConstant matches a constant of a reason.
	reasonConstant = regexp.MustCompile(`(?m)^\s*(?:const\s+)?(reason[A-Za-z]+|trouble[A-Za-z]+)\s*=\s*"([A-Za-z]+)"`)
	eventTable     = regexp.MustCompile(`(?ms)^\| Event of .*?\n\n`)
	tableCell      = regexp.MustCompile("(?m)^\\| (`[^|]+`) \\|")
	code           = regexp.MustCompile("`([^`]+)`")
)

// eventReasons returns the reasons of the Events in the Go files of a tree.
func eventReasons(tree fs.FS) ([]string, error) {
	var reasons, identifiers []string
	constants := map[string]string{}
	err := fs.WalkDir(tree, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return err
		}
		text, err := fs.ReadFile(tree, name)
		if err != nil {
			return err
		}
		for _, match := range reasonConstant.FindAllStringSubmatch(string(text), -1) {
			constants[match[1]] = match[2]
		}
		for _, match := range eventCall.FindAllStringSubmatch(string(text), -1) {
			switch {
			case match[2] != "":
				identifiers = append(identifiers, match[2])
			default:
				reasons = append(reasons, match[1]+match[3])
			}
		}
		return nil
	})
	for _, name := range identifiers {
		if reason, is := constants[name]; is {
			reasons = append(reasons, reason)
		} else {
			reasons = append(reasons, "unknown constant "+name)
		}
	}
	slices.Sort(reasons)
	return slices.Compact(reasons), err
}

func TestEventReasonsAreDocumented(t *testing.T) {
	var inCode []string
	for _, folder := range []string{"controllers", "internal"} {
		found, err := eventReasons(os.DirFS(filepath.Join("../..", folder)))
		if err != nil {
			t.Fatal(err)
		}
		inCode = append(inCode, found...)
	}
	slices.Sort(inCode)
	inCode = slices.Compact(inCode)
	page, err := os.ReadFile("../../docs/reference/custom-resources.md")
	if err != nil {
		t.Fatal(err)
	}
	var documented []string
	for _, table := range eventTable.FindAllString(string(page), -1) {
		for _, cell := range tableCell.FindAllStringSubmatch(table, -1) {
			for _, name := range code.FindAllStringSubmatch(cell[1], -1) {
				documented = append(documented, name[1])
			}
		}
	}
	slices.Sort(documented)
	if len(inCode) == 0 || !slices.Equal(inCode, documented) {
		t.Errorf("the operator records Events with the reasons\n%v\nand docs/reference/custom-resources.md lists\n%v", inCode, documented)
	}
}
