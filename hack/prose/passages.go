// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	extensionast "github.com/yuin/goldmark/extension/ast"
	"github.com/yuin/goldmark/text"
	"go.yaml.in/yaml/v3"
)

// passage is a piece of prose: a paragraph, a table cell, a help text or a description.
type passage struct {
	text strings.Builder
	// lines has the line in the file of each byte of text.
	lines []int
	// isCell is true for a table cell.
	isCell bool
}

func (p *passage) add(line int, piece string) {
	p.text.WriteString(piece)
	for range len(piece) {
		p.lines = append(p.lines, line)
	}
}

// codeWord stands for a code span: no rule applies to code, but it counts as a word.
const codeWord = "`code`"

var codeSpan = regexp.MustCompile("`[^`]+`")

// markdownPassages returns the paragraphs, headings, list items and table cells of a Markdown file.
func markdownPassages(source []byte) []*passage {
	lineOf := lineNumbers(source)
	document := goldmark.New(goldmark.WithExtensions(extension.Table)).Parser().Parse(text.NewReader(source))
	var passages []*passage
	// Walk fails only if its function does.
	_ = ast.Walk(document, func(node ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		_, isCell := node.(*extensionast.TableCell)
		switch node.(type) {
		case *ast.Paragraph, *ast.TextBlock, *ast.Heading, *extensionast.TableCell:
			p := &passage{isCell: isCell}
			addInlines(p, node, source, lineOf)
			passages = append(passages, p)
			return ast.WalkSkipChildren, nil
		case *ast.CodeBlock, *ast.FencedCodeBlock, *ast.HTMLBlock:
			return ast.WalkSkipChildren, nil
		}
		return ast.WalkContinue, nil
	})
	return passages
}

func addInlines(p *passage, node ast.Node, source []byte, lineOf func(offset int) int) {
	for child := node.FirstChild(); child != nil; child = child.NextSibling() {
		switch inline := child.(type) {
		case *ast.Text:
			line := lineOf(inline.Segment.Start)
			p.add(line, string(inline.Segment.Value(source)))
			if inline.SoftLineBreak() || inline.HardLineBreak() {
				p.add(line, " ")
			}
		case *ast.CodeSpan:
			if first, ok := inline.FirstChild().(*ast.Text); ok {
				p.add(lineOf(first.Segment.Start), codeWord)
			}
		case *ast.AutoLink:
			p.add(lineAtEnd(p), codeWord)
		default:
			addInlines(p, child, source, lineOf)
		}
	}
}

func lineAtEnd(p *passage) int {
	if len(p.lines) == 0 {
		return 1
	}
	return p.lines[len(p.lines)-1]
}

// lineNumbers returns a function from an offset to its line, counted from 1.
func lineNumbers(source []byte) func(offset int) int {
	lines := make([]int, len(source)+1)
	line := 1
	for at, char := range source {
		lines[at] = line
		if char == '\n' {
			line++
		}
	}
	lines[len(source)] = line
	return func(offset int) int { return lines[min(offset, len(source))] }
}

// descriptionPassages returns the value of every key "description" of a YAML file.
func descriptionPassages(source []byte) ([]*passage, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(source, &document); err != nil {
		return nil, fmt.Errorf("not valid YAML: %w", err)
	}
	var passages []*passage
	var visit func(node *yaml.Node)
	visit = func(node *yaml.Node) {
		for at, child := range node.Content {
			if node.Kind == yaml.MappingNode && at%2 == 1 && node.Content[at-1].Value == "description" && child.Kind == yaml.ScalarNode {
				for paragraph := range strings.SplitSeq(child.Value, "\n\n") {
					passages = append(passages, linePassage(child.Line, paragraph))
				}
			}
			visit(child)
		}
	}
	visit(&document)
	return passages, nil
}

func linePassage(line int, value string) *passage {
	p := &passage{}
	for piece := range strings.Lines(value) {
		p.add(line, codeSpan.ReplaceAllString(strings.TrimRight(piece, "\n"), codeWord)+" ")
	}
	return p
}

var (
	docComment = regexp.MustCompile(`^\s*///\s?(.*)$`)
	// helpAttribute matches the help text in an attribute of clap.
	helpAttribute = regexp.MustCompile(`\b(?:about|long_about|help|long_help|after_help|after_long_help)\s*=\s*("(?:[^"\\]|\\.)*")`)
)

// helpPassages returns the help texts of a command line that Rust code declares with clap: its doc comments and attributes.
func helpPassages(source string) []*passage {
	var passages []*passage
	var current *passage
	number := 0
	for line := range strings.Lines(source) {
		number++
		line = strings.TrimRight(line, "\n")
		if match := docComment.FindStringSubmatch(line); match != nil && match[1] != "" {
			if current == nil {
				current = &passage{}
				passages = append(passages, current)
			}
			current.add(number, codeSpan.ReplaceAllString(match[1], codeWord)+" ")
			continue
		}
		current = nil
	}
	return append(passages, literalPassages(source, helpAttribute)...)
}

// stringLiteral matches a string of Rust or Go on one line.
var stringLiteral = regexp.MustCompile(`("(?:[^"\\\n]|\\.)*")`)

// stringPassages returns the string literals of at least three words that begin with a capital letter.
func stringPassages(source string) []*passage {
	var passages []*passage
	for _, p := range literalPassages(source, stringLiteral) {
		value := p.text.String()
		if len(strings.Fields(value)) >= 3 && value[0] >= 'A' && value[0] <= 'Z' {
			passages = append(passages, p)
		}
	}
	return passages
}

func literalPassages(source string, pattern *regexp.Regexp) []*passage {
	lineOf := lineNumbers([]byte(source))
	var passages []*passage
	for _, match := range pattern.FindAllStringSubmatchIndex(source, -1) {
		literal := source[match[2]:match[3]]
		value, err := strconv.Unquote(literal)
		if err != nil {
			value = strings.Trim(literal, `"`)
		}
		passages = append(passages, linePassage(lineOf(match[2]), value))
	}
	return passages
}
