// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/bmatcuk/doublestar/v4"
	"go.yaml.in/yaml/v3"
)

// rules is the content of rules.yaml.
type rules struct {
	// LineLength is the longest line of a Markdown file, in characters.
	LineLength int `yaml:"line-length"`
	// SentenceWords is the number of words above which a sentence gives a warning.
	SentenceWords int `yaml:"sentence-words"`
	// Sentence has the rules that apply to each sentence.
	Sentence []*sentenceRule `yaml:"sentence"`
	// Sources maps a kind of text (markdown, descriptions, help, strings) to globs of the files that contain it.
	Sources map[string][]string `yaml:"sources"`
	// Clean has globs of the files that are checked.
	Clean []string `yaml:"clean"`
	// FeatureIDs configures the search for feature ids.
	FeatureIDs featureIDs `yaml:"feature-ids"`

	featureIDs *featureIDs
}

// sentenceRule matches words that a sentence must not have.
type sentenceRule struct {
	Name    string `yaml:"name"`
	Message string `yaml:"message"`
	Warning bool   `yaml:"warning"`
	// Pattern is a regular expression; Except exempts sentences that it matches.
	Pattern string `yaml:"pattern"`
	Except  string `yaml:"except"`
	// Words maps a word or phrase to its replacement.
	Words map[string]string `yaml:"words"`

	pattern, except *regexp.Regexp
}

// featureIDs searches files for identifiers of an internal feature list, such as "(X1, X2)".
type featureIDs struct {
	// Pattern matches in comments and in Markdown, CodePattern in all of a source file.
	Pattern     string   `yaml:"pattern"`
	CodePattern string   `yaml:"code-pattern"`
	Files       []string `yaml:"files"`
	// Pending has the files that still contain some; an entry without any is an error, so that the list shrinks.
	Pending []string `yaml:"pending"`

	pattern, codePattern *regexp.Regexp
}

// finding is one violation of a rule.
type finding struct {
	path    string
	line    int
	rule    string
	message string
	warning bool
}

// loadRules reads and compiles rules.yaml.
func loadRules(path string) (*rules, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r, err := parseRules(content)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

func parseRules(content []byte) (*rules, error) {
	r := &rules{}
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	decoder.KnownFields(true)
	if err := decoder.Decode(r); err != nil {
		return nil, err
	}
	for _, rule := range r.Sentence {
		if err := rule.compile(); err != nil {
			return nil, fmt.Errorf("rule %s: %w", rule.Name, err)
		}
	}
	r.featureIDs = &r.FeatureIDs
	var err error
	if r.featureIDs.pattern, err = regexp.Compile(r.FeatureIDs.Pattern); err != nil {
		return nil, fmt.Errorf("feature-ids: %w", err)
	}
	if r.featureIDs.codePattern, err = regexp.Compile(r.FeatureIDs.CodePattern); err != nil {
		return nil, fmt.Errorf("feature-ids: %w", err)
	}
	for kind := range r.Sources {
		if !slices.Contains([]string{"markdown", "descriptions", "help", "strings"}, kind) {
			return nil, fmt.Errorf("sources: unknown kind %q", kind)
		}
	}
	return r, nil
}

func (rule *sentenceRule) compile() (err error) {
	if (rule.Pattern == "") == (len(rule.Words) == 0) {
		return fmt.Errorf("needs either a pattern or words")
	}
	pattern := rule.Pattern
	if len(rule.Words) > 0 {
		words := make([]string, 0, len(rule.Words))
		for word := range rule.Words {
			words = append(words, regexp.QuoteMeta(word))
		}
		// The longest phrase first: an alternation takes the first that matches.
		slices.SortFunc(words, func(a, b string) int { return len(b) - len(a) })
		pattern = `(?i)\b(?:` + strings.Join(words, "|") + `)\b`
	}
	if rule.pattern, err = regexp.Compile(pattern); err != nil {
		return err
	}
	if rule.Except != "" {
		rule.except, err = regexp.Compile(rule.Except)
	}
	return err
}

// message returns the message for a match of the rule.
func (rule *sentenceRule) message(match string) string {
	if replacement, ok := rule.Words[strings.ToLower(match)]; ok {
		return fmt.Sprintf("%q: say %q", match, replacement)
	}
	return fmt.Sprintf("%q: %s", match, rule.Message)
}

// cleanFiles returns the files that the list of clean files names. An entry that names no file is an error.
func (r *rules) cleanFiles(tracked []string) ([]string, error) {
	var files []string
	for _, glob := range r.Clean {
		found := false
		for _, path := range tracked {
			if doublestar.MatchUnvalidated(glob, path) {
				found = true
				if !slices.Contains(files, path) {
					files = append(files, path)
				}
			}
		}
		if !found {
			return nil, fmt.Errorf("rules.yaml: clean: no file matches %q", glob)
		}
	}
	return files, nil
}

func matchesAny(globs []string, path string) bool {
	return slices.ContainsFunc(globs, func(glob string) bool { return doublestar.MatchUnvalidated(glob, path) })
}

// check applies all rules to a file.
func (r *rules) check(path string, source []byte) ([]finding, error) {
	var passages []*passage
	known := false
	if matchesAny(r.Sources["markdown"], path) {
		known, passages = true, append(passages, markdownPassages(source)...)
	}
	if matchesAny(r.Sources["descriptions"], path) {
		found, err := descriptionPassages(source)
		if err != nil {
			return nil, err
		}
		known, passages = true, append(passages, found...)
	}
	if matchesAny(r.Sources["help"], path) {
		known, passages = true, append(passages, helpPassages(string(source))...)
	}
	if matchesAny(r.Sources["strings"], path) {
		known, passages = true, append(passages, stringPassages(string(source))...)
	}
	if !known {
		return nil, fmt.Errorf("rules.yaml: sources: no kind of text names this file")
	}
	var findings []finding
	if matchesAny(r.Sources["markdown"], path) {
		findings = r.checkLines(string(source))
	}
	for _, p := range passages {
		findings = append(findings, r.checkPassage(p)...)
	}
	for at := range findings {
		findings[at].path = path
	}
	slices.SortStableFunc(findings, func(a, b finding) int { return a.line - b.line })
	return findings, nil
}

// checkLines reports long lines, except where Markdown cannot wrap: in tables, code and links.
func (r *rules) checkLines(source string) []finding {
	var findings []finding
	fence := ""
	number := 0
	for line := range strings.Lines(source) {
		number++
		line = strings.TrimRight(line, "\r\n")
		trimmed := strings.TrimLeft(line, " ")
		for _, marker := range []string{"```", "~~~"} {
			switch {
			case !strings.HasPrefix(trimmed, marker):
			case fence == "":
				fence = marker
			case fence == marker:
				fence = ""
			}
		}
		length := utf8.RuneCountInString(line)
		if fence != "" || strings.HasPrefix(trimmed, "|") || strings.HasPrefix(line, "    ") || length <= r.LineLength {
			continue
		}
		// A line of one word, such as a link, is as long as it is.
		if len(strings.Fields(line)) > 1 {
			findings = append(findings, finding{line: number, rule: "line-length", message: fmt.Sprintf("%d characters, at most %d", length, r.LineLength)})
		}
	}
	return findings
}

// checkPassage applies the rules for sentences and table cells.
func (r *rules) checkPassage(p *passage) []finding {
	var findings []finding
	sentences := splitSentences(p.text.String())
	if p.isCell && len(sentences) > 1 {
		findings = append(findings, finding{line: p.lines[0], rule: "table-cell", message: fmt.Sprintf("%d sentences, at most one", len(sentences))})
	}
	for _, s := range sentences {
		line := p.lines[s.start]
		if words := len(strings.Fields(s.text)); words > r.SentenceWords {
			findings = append(findings, finding{line: line, rule: "sentence-length", warning: true,
				message: fmt.Sprintf("%d words, at most %d", words, r.SentenceWords)})
		}
		for _, rule := range r.Sentence {
			if rule.except != nil && rule.except.MatchString(s.text) {
				continue
			}
			for _, match := range rule.pattern.FindAllStringIndex(s.text, -1) {
				findings = append(findings, finding{line: p.lines[s.start+match[0]], rule: rule.Name, warning: rule.Warning,
					message: rule.message(s.text[match[0]:match[1]])})
			}
		}
	}
	return findings
}

type sentence struct {
	// start is the offset in the passage, in bytes.
	start int
	text  string
}

var (
	sentenceEnd = regexp.MustCompile(`[.!?]["')\]*_]*\s+`)
	// abbreviation matches the end of a text whose last period ends no sentence.
	abbreviation = regexp.MustCompile(`(?:^|[\s(])(?:e\.g|i\.e|etc|vs|cf|approx|No|[A-Z])\.\s+$`)
	// sentenceStart matches the first characters of a sentence.
	sentenceStart = regexp.MustCompile("^[\"'(*_\\[]*(?:[A-Z0-9]|`)")
)

// splitSentences splits at periods, exclamation and question marks that a capital letter, a number or code follows.
func splitSentences(text string) []sentence {
	var sentences []sentence
	start := 0
	cut := func(end int) {
		trimmed := strings.TrimLeft(text[start:end], " \t\n")
		if from := end - len(trimmed); strings.TrimSpace(trimmed) != "" {
			sentences = append(sentences, sentence{start: from, text: strings.TrimRight(trimmed, " \t\n")})
		}
		start = end
	}
	for _, match := range sentenceEnd.FindAllStringIndex(text, -1) {
		if sentenceStart.MatchString(text[match[1]:]) && !abbreviation.MatchString(text[start:match[1]]) {
			cut(match[1])
		}
	}
	cut(len(text))
	return sentences
}

// searchFiles reports feature ids in all configured files, and pending files that have none any more.
func (ids *featureIDs) searchFiles(root string, tracked []string) ([]finding, error) {
	var findings []finding
	pending := map[string]bool{}
	for _, path := range ids.Pending {
		pending[path] = true
	}
	for _, path := range tracked {
		if !matchesAny(ids.Files, path) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			return nil, err
		}
		found := ids.search(path, string(text))
		if !pending[path] {
			findings = append(findings, found...)
		} else if len(found) > 0 {
			delete(pending, path)
		}
	}
	for _, path := range ids.Pending {
		if pending[path] {
			findings = append(findings, finding{path: "hack/prose/rules.yaml", line: 1, rule: "feature-id",
				message: path + " has no feature id any more; remove it from feature-ids.pending"})
		}
	}
	return findings, nil
}

// search reports the feature ids of a file, at most one for each line.
func (ids *featureIDs) search(path, text string) []finding {
	marker := ""
	switch filepath.Ext(path) {
	case ".rs", ".go", ".proto", ".js":
		marker = "//"
	case ".yaml", ".yml", ".toml", ".sh", "":
		marker = "#"
	}
	var findings []finding
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimRight(line, "\n")
		match := ids.codePattern.FindString(line)
		if at := strings.Index(line, marker); at >= 0 && match == "" {
			match = ids.pattern.FindString(line[at:])
		}
		if match != "" {
			findings = append(findings, finding{path: path, line: number, rule: "feature-id",
				message: fmt.Sprintf("%q: name the behaviour; readers cannot look up the id", strings.TrimSpace(match))})
		}
	}
	return findings
}
