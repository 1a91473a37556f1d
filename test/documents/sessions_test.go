// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package documents

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// sessionLine matches a line of a command in a recorded session; see hack/record-session.
var sessionLine = regexp.MustCompile(`^ *[0-9]+\.[0-9] \$ (.*)$|^ {9}> (.*)$`)

// pageCommands returns the lines of the commands of a page: those of blocks that are indented or fenced as sh.
func pageCommands(page string) []string {
	var lines []string
	fence := ""
	for line := range strings.Lines(page) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(line, "```") && fence == "":
			fence = line
		case strings.HasPrefix(line, "```"):
			fence = ""
		case fence == "```sh":
			lines = append(lines, line)
		case fence == "" && strings.HasPrefix(line, "    "):
			lines = append(lines, line[4:])
		}
	}
	return lines
}

// sessionCommands returns the lines of the commands of a recorded session.
func sessionCommands(session string) []string {
	var lines []string
	for line := range strings.Lines(session) {
		if found := sessionLine.FindStringSubmatch(strings.TrimSuffix(line, "\n")); found != nil {
			lines = append(lines, found[1]+found[2])
		}
	}
	return lines
}

// TestSessionsHaveTheCommandsOfTheirTutorials fails if a tutorial has no recorded session, or if its commands have changed
// since it was recorded.
func TestSessionsHaveTheCommandsOfTheirTutorials(t *testing.T) {
	tutorials := filepath.Join("..", "..", "docs", "tutorials")
	pages, err := filepath.Glob(filepath.Join(tutorials, "*.md"))
	if err != nil || len(pages) == 0 {
		t.Fatalf("%v (%v)", pages, err)
	}
	for _, file := range pages {
		name := strings.TrimSuffix(filepath.Base(file), ".md")
		page, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		session, err := os.ReadFile(filepath.Join(tutorials, "sessions", name+".txt"))
		if err != nil {
			t.Errorf("%s: %v; hack/record-session records one", name, err)
			continue
		}
		if want, got := pageCommands(string(page)), sessionCommands(string(session)); !slices.Equal(want, got) {
			t.Errorf("%s: the session has other commands than the page; record it again\npage:    %q\nsession: %q", name, want, got)
		}
		if !strings.Contains(string(page), "(sessions/"+name+".txt)") {
			t.Errorf("%s: the page has no link to its session", name)
		}
	}
}
