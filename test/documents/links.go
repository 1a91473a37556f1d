// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package documents

import (
	"fmt"
	"io/fs"
	"net/url"
	"path"
	"regexp"
	"strconv"
	"strings"
	"unicode"
)

var (
	codeSpan = regexp.MustCompile("`[^`]*`")
	// inlineLink matches the end of [text](target) or ![text](target), with or without a title.
	inlineLink = regexp.MustCompile(`\]\(\s*<?([^)\s>]+)>?(?:\s+"[^"]*")?\s*\)`)
	// linkDefinition matches a line such as [name]: target.
	linkDefinition = regexp.MustCompile(`^ {0,3}\[[^\]]+\]:\s+<?([^\s>]+)>?`)
	heading        = regexp.MustCompile(`^ {0,3}#{1,6}\s+(.*?)(?:\s+#+)?\s*$`)
	headingLink    = regexp.MustCompile(`!?\[([^\]]*)\]\([^)]*\)`)
	htmlAnchor     = regexp.MustCompile(`<a\s[^>]*(?:id|name)="([^"]+)"`)
	scheme         = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9+.-]*:`)
	// pageName matches the path of a documentation file as comments, scripts and tests write it.
	pageName = regexp.MustCompile(`(?:^|[^\w./-])(?:\.\./)*(docs/[\w./-]*\w\.(?:md|json|svg|png))\b`)
)

// link is a reference of a Markdown file to another file or to a heading.
type link struct {
	line   int
	target string
}

// visitProse calls visit with each line outside fenced code blocks.
func visitProse(text string, visit func(number int, line string)) {
	fence := ""
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimRight(line, "\r\n")
		marker := ""
		if trimmed := strings.TrimLeft(line, " "); strings.HasPrefix(trimmed, "```") || strings.HasPrefix(trimmed, "~~~") {
			marker = trimmed[:3]
		}
		switch {
		case fence == "" && marker != "":
			fence = marker
		case fence != "" && marker == fence:
			fence = ""
		case fence == "":
			visit(number, line)
		}
	}
}

func links(text string) []link {
	var found []link
	visitProse(text, func(number int, line string) {
		line = codeSpan.ReplaceAllString(line, "`")
		for _, match := range inlineLink.FindAllStringSubmatch(line, -1) {
			found = append(found, link{number, match[1]})
		}
		if match := linkDefinition.FindStringSubmatch(line); match != nil {
			found = append(found, link{number, match[1]})
		}
	})
	return found
}

// anchors returns the fragments that a Markdown text defines, by the rules of GitHub.
func anchors(text string) map[string]bool {
	found := map[string]bool{}
	visitProse(text, func(_ int, line string) {
		for _, match := range htmlAnchor.FindAllStringSubmatch(line, -1) {
			found[match[1]] = true
		}
		match := heading.FindStringSubmatch(line)
		if match == nil {
			return
		}
		base := slug(match[1])
		name := base
		for n := 1; found[name]; n++ {
			name = base + "-" + strconv.Itoa(n)
		}
		found[name] = true
	})
	return found
}

// slug keeps letters, digits, hyphens and underscores in lower case and turns each space into a hyphen.
func slug(title string) string {
	title = headingLink.ReplaceAllString(title, "$1")
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, title)
}

// brokenLinks checks the links of the Markdown files among names and describes those that do not resolve in tree.
func brokenLinks(tree fs.FS, names []string) ([]string, error) {
	var broken []string
	defined := map[string]map[string]bool{}
	for _, name := range names {
		if path.Ext(name) != ".md" {
			continue
		}
		text, err := fs.ReadFile(tree, name)
		if err != nil {
			return nil, err
		}
		for _, l := range links(string(text)) {
			if scheme.MatchString(l.target) {
				continue
			}
			reject := func(why string) {
				broken = append(broken, fmt.Sprintf("%s:%d: link to %s: %s", name, l.line, l.target, why))
			}
			file, fragment, _ := strings.Cut(l.target, "#")
			file, err := url.PathUnescape(file)
			if err != nil {
				reject(err.Error())
				continue
			}
			target := name
			if file != "" {
				target = path.Join(path.Dir(name), file)
			}
			if !fs.ValidPath(target) {
				reject("the target is outside the repository")
				continue
			}
			if _, err := fs.Stat(tree, target); err != nil {
				reject("the target does not exist")
				continue
			}
			if fragment == "" {
				continue
			}
			if path.Ext(target) != ".md" {
				reject("only Markdown files have anchors")
				continue
			}
			if defined[target] == nil {
				text, err := fs.ReadFile(tree, target)
				if err != nil {
					return nil, err
				}
				defined[target] = anchors(string(text))
			}
			if !defined[target][fragment] {
				reject(target + " has no such heading")
			}
		}
	}
	return broken, nil
}

// missingPages describes the paths below docs/ that the files of these names mention and that do not exist in tree.
func missingPages(tree fs.FS, names []string) ([]string, error) {
	var missing []string
	for _, name := range names {
		text, err := fs.ReadFile(tree, name)
		if err != nil {
			return nil, err
		}
		number := 0
		for line := range strings.Lines(string(text)) {
			number++
			for _, match := range pageName.FindAllStringSubmatch(line, -1) {
				if _, err := fs.Stat(tree, match[1]); err != nil {
					missing = append(missing, fmt.Sprintf("%s:%d: %s does not exist", name, number, match[1]))
				}
			}
		}
	}
	return missing, nil
}
