// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// contents is the page whose groups and tables become the table of contents.
const contents = "docs/README.md"

var (
	group      = regexp.MustCompile(`(?m)^## (.+)$`)
	tableEntry = regexp.MustCompile(`(?m)^\| ([^|]+?) \| \[[^\]]+\]\(([^)#\s]+)\) \|$`)
	title      = regexp.MustCompile(`(?m)^# (.+)$`)
	// target matches the file of a relative link.
	target = regexp.MustCompile(`\]\(([^)#\s:]+)(#[^)\s]*)?\)`)
)

// book collects the files of the site. Their paths are those in the repository, so that relative links stay correct.
type book struct {
	repository fs.FS
	to         string
	summary    strings.Builder
	listed     map[string]bool // pages of the table of contents
	copied     map[string]bool
}

// sources writes the pages, the files that they link to, and SUMMARY.md into the folder src of a book.
func sources(repository, to string) error {
	b := book{repository: os.DirFS(repository), to: filepath.Join(to, "src"), listed: map[string]bool{}, copied: map[string]bool{}}
	text, err := fs.ReadFile(b.repository, contents)
	if err != nil {
		return err
	}
	b.summary.WriteString("# Summary\n\n[Posthorn](README.md)\n[Contents](" + contents + ")\n")
	b.listed["README.md"], b.listed[contents] = true, true
	headings := group.FindAllStringSubmatchIndex(string(text), -1)
	for i, at := range headings {
		end := len(text)
		if i+1 < len(headings) {
			end = headings[i+1][0]
		}
		name, _, _ := strings.Cut(string(text[at[2]:at[3]]), ":")
		fmt.Fprintf(&b.summary, "\n# %s\n\n", name)
		for _, entry := range tableEntry.FindAllStringSubmatch(string(text[at[0]:end]), -1) {
			if err := b.list(entry[1], path.Join(path.Dir(contents), entry[2])); err != nil {
				return err
			}
		}
	}
	for _, each := range []string{"CHANGELOG.md", "SECURITY.md"} {
		if err := b.list(strings.ToUpper(each[:1])+strings.ToLower(strings.TrimSuffix(each[1:], ".md")), each); err != nil {
			return err
		}
	}
	if err := b.everyPageIsListed(); err != nil {
		return err
	}
	for _, page := range slices.Sorted(mapKeys(b.listed)) {
		if err := b.add(page); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(b.to, "SUMMARY.md"), []byte(b.summary.String()), 0o644)
}

func mapKeys(m map[string]bool) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for key := range m {
			if !yield(key) {
				return
			}
		}
	}
}

// list adds a page, or the pages of a directory, to the table of contents.
func (b *book) list(text, page string) error {
	info, err := fs.Stat(b.repository, page)
	if err != nil {
		return fmt.Errorf("%s names %s: %w", contents, page, err)
	}
	if !info.IsDir() {
		if b.listed[page] {
			return nil
		}
		b.listed[page] = true
		fmt.Fprintf(&b.summary, "- [%s](%s)\n", text, page)
		return nil
	}
	fmt.Fprintf(&b.summary, "- [%s](%s)\n", text, path.Join(page, "index.md"))
	pages, err := fs.Glob(b.repository, path.Join(page, "*.md"))
	if err != nil {
		return err
	}
	for _, each := range pages {
		content, err := fs.ReadFile(b.repository, each)
		if err != nil {
			return err
		}
		name := title.FindStringSubmatch(string(content))
		if name == nil {
			return fmt.Errorf("%s has no title", each)
		}
		b.listed[each] = true
		fmt.Fprintf(&b.summary, "  - [%s](%s)\n", name[1], each)
	}
	return nil
}

// everyPageIsListed fails if a page below docs/ is not in the table of contents.
func (b *book) everyPageIsListed() error {
	return fs.WalkDir(b.repository, path.Dir(contents), func(page string, _ fs.DirEntry, err error) error {
		if err == nil && path.Ext(page) == ".md" && !b.listed[page] {
			return fmt.Errorf("%s does not list %s", contents, page)
		}
		return err
	})
}

// add copies a page and the files that it links to.
func (b *book) add(name string) error {
	if b.copied[name] {
		return nil
	}
	b.copied[name] = true
	info, err := fs.Stat(b.repository, name)
	if err != nil {
		return err
	}
	if info.IsDir() {
		return b.addIndex(name)
	}
	content, err := fs.ReadFile(b.repository, name)
	if err != nil {
		return err
	}
	if path.Ext(name) != ".md" {
		return b.write(name, content)
	}
	var failure error
	text := target.ReplaceAllStringFunc(string(content), func(link string) string {
		parts := target.FindStringSubmatch(link)
		file := path.Join(path.Dir(name), parts[1])
		info, err := fs.Stat(b.repository, file)
		if err != nil {
			failure = fmt.Errorf("%s links to %s: %w", name, parts[1], err)
			return link
		}
		switch {
		case info.IsDir():
			link = "](" + path.Join(parts[1], "index.md") + ")"
		case path.Ext(file) == ".md" && !b.listed[file]:
			// mdBook renders only pages of the table of contents.
			failure = fmt.Errorf("%s links to %s, which %s does not list", name, file, contents)
		}
		if err := b.add(file); err != nil && failure == nil {
			failure = err
		}
		return link
	})
	if failure != nil {
		return failure
	}
	return b.write(name, []byte(text))
}

// addIndex writes a page with the files of a directory.
func (b *book) addIndex(directory string) error {
	var text strings.Builder
	fmt.Fprintf(&text, "# %s\n\n", directory)
	entries, err := fs.ReadDir(b.repository, directory)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		name := path.Join(directory, entry.Name())
		if entry.IsDir() || path.Ext(name) == ".md" && !b.listed[name] {
			fmt.Fprintf(&text, "- `%s`\n", entry.Name())
			continue
		}
		fmt.Fprintf(&text, "- [%s](%s)\n", entry.Name(), entry.Name())
		if err := b.add(name); err != nil {
			return err
		}
	}
	index := path.Join(directory, "index.md")
	if !strings.Contains(b.summary.String(), "("+index+")") {
		// Without a place in the table of contents, mdBook does not render the page.
		fmt.Fprintf(&b.summary, "- [%s](%s)\n", directory, index)
	}
	return b.write(index, []byte(text.String()))
}

func (b *book) write(name string, content []byte) error {
	to := filepath.Join(b.to, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, content, 0o644)
}
