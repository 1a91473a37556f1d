// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func repositoryRules(t *testing.T) *rules {
	t.Helper()
	r, err := loadRules("rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// found returns the rule and line of each finding of a file, as "rule:line".
func found(t *testing.T, r *rules, path, text string) []string {
	t.Helper()
	findings, err := r.check(path, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	out := []string{}
	for _, f := range findings {
		out = append(out, f.rule+":"+string(rune('0'+f.line)))
	}
	return out
}

func TestMarkdownRulesReportTheirLine(t *testing.T) {
	r := repositoryRules(t)
	long := strings.Repeat("word ", 20) + "end"
	for _, test := range []struct {
		name, text string
		want       []string
	}{
		{"sentence opener", "The queue.\nFine. Whoever reads\nis late.\n", []string{"sentence-opener:2", "relative-clause:2"}},
		{"question", "## What is a queue?\n", nil},
		{"opener in a list", "- One.\n- What the node logs.\n", []string{"sentence-opener:2"}},
		{"coined word", "A queue\nhas tallies.\n", []string{"coined-word:2"}},
		{"word inside another word", "The shopkeeper waits.\n", nil},
		{"code is not prose", "The field `tallies` is a number.\n\n    Whoever tallies.\n\n```\nWhoever tallies.\n```\n", nil},
		{"long line", "Short.\n" + long + "\n", []string{"line-length:2"}},
		{"long link", "[" + strings.Repeat("x", 120) + "](y)\n", nil},
		{"long code", "```\n" + long + "\n```\n", nil},
		{"table cell", "| a | b |\n|---|---|\n| One. Two. | 0.9.1 e.g. A. |\n", []string{"table-cell:3"}},
		{"wide table", "| a |\n|---|\n| " + long + " |\n", nil},
		{"long sentence", "One " + strings.Repeat("a ", 20) + "\n" + strings.Repeat("b ", 5) + ".\n", []string{"sentence-length:1"}},
		{"passive voice", "The queue is quickly deleted by the node.\n", []string{"passive-voice:1"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := found(t, r, "docs/page.md", test.text); !slices.Equal(got, test.want) {
				t.Errorf("found %v, want %v", got, test.want)
			}
		})
	}
}

func TestOtherSourcesAreExtracted(t *testing.T) {
	r := repositoryRules(t)
	for _, test := range []struct {
		name, path, text string
		want             []string
	}{
		{"description", "config/crd/bases/x.yaml", "spec:\n  description: |-\n    Whoever asks.\n  type: Whoever tallies\n", []string{"sentence-opener:2", "relative-clause:2"}},
		{"doc comment of a command", "broker/crates/posthorn/src/ctl/x.rs", "// Whoever.\n/// Lists\n/// tallies\nFoo,\n", []string{"coined-word:3"}},
		{"attribute of a command", "broker/crates/posthorn/src/ctl/x.rs", "#[arg(\n  help = \"What is \\\"x\\\"\")]\n", []string{"sentence-opener:2"}},
		{"metric", "broker/crates/management/src/metrics/x.rs", "page.head(\"tallies\", GAUGE,\n \"Number of tallies\");\n", []string{"coined-word:2"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := found(t, r, test.path, test.text); !slices.Equal(got, test.want) {
				t.Errorf("found %v, want %v", got, test.want)
			}
		})
	}
}

// withIDs removes the marks that keep the ids of these tests from being found by the check itself.
func withIDs(text string) string { return strings.ReplaceAll(text, "~", "") }

func TestFeatureIDsInCommentsAndMarkdown(t *testing.T) {
	ids := repositoryRules(t).featureIDs
	for _, test := range []struct {
		path, line string
		want       bool
	}{
		{"a.rs", "//! The web UI (O~2): files.", true},
		{"a.rs", "/// Refuses links (C~5, M~2).", true},
		{"a.rs", "let x = 1; // M~8: quiet", true},
		{"a.rs", "// Publishers wait (A9~-4).", true},
		{"a.rs", "call(Q1);", false},
		{"a.go", "It(\"rolls (K~2, C~4)\", func() {", true},
		{"a.go", "// percentile (P99) of S3, R1CS", false},
		{"a.proto", "// Field (R~1, R~4).", true},
		{"a.yaml", "# Limits (O~5)", true},
		{"a.yaml", "key: (O~5)", false},
		{"a.md", "A slow queue (A9~-4) waits.", true},
		{"a.md", "The S3 bucket, and MQTT (QoS 1).", false},
	} {
		if got := len(ids.search(test.path, withIDs(test.line))) > 0; got != test.want {
			t.Errorf("%s %q: found %v, want %v", test.path, test.line, got, test.want)
		}
	}
}

func TestPendingFileWithoutFeatureIDIsReported(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{"old.rs": "// Limits (O~5).\n", "mended.rs": "// Limits.\n", "new.rs": "// Limits (O~5).\n"} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(withIDs(text)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ids := repositoryRules(t).featureIDs
	ids.Pending = []string{"old.rs", "mended.rs"}
	findings, err := ids.searchFiles(root, []string{"old.rs", "mended.rs", "new.rs"})
	if err != nil {
		t.Fatal(err)
	}
	if len(findings) != 2 || findings[0].path != "new.rs" || !strings.HasPrefix(findings[1].message, "mended.rs ") {
		t.Errorf("found %+v, want one in new.rs and one about mended.rs", findings)
	}
}

func TestEntryOfCleanFilesMustMatch(t *testing.T) {
	r := repositoryRules(t)
	r.Clean = []string{"docs/*.md", "docs/absent.md"}
	if _, err := r.cleanFiles([]string{"docs/a.md"}); err == nil || !strings.Contains(err.Error(), "docs/absent.md") {
		t.Errorf("got %v, want an error that names docs/absent.md", err)
	}
	r.Clean = []string{"docs/*.md", "docs/a.md"}
	files, err := r.cleanFiles([]string{"docs/a.md", "docs/sub/b.md"})
	if err != nil || !slices.Equal(files, []string{"docs/a.md"}) {
		t.Errorf("got %v, %v, want docs/a.md once", files, err)
	}
}

func TestRulesWithMistakesAreRefused(t *testing.T) {
	for _, text := range []string{
		"sentence: [{name: x}]",
		"sentence: [{name: x, pattern: '('}]",
		"unknown: 1",
		"sources: {poems: [x]}",
	} {
		if _, err := parseRules([]byte(text)); err == nil {
			t.Errorf("%q was accepted", text)
		}
	}
}
