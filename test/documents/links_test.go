// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package documents

import (
	"io/fs"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

const root = "../.."

// repositoryFiles returns the files that are in the repository or would be added to it.
func repositoryFiles(t *testing.T, tree fs.FS) []string {
	t.Helper()
	command := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	command.Dir = root
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	var names []string
	for name := range strings.SplitSeq(string(out), "\x00") {
		// A link to a directory, and a file deleted from the working tree, are no files to read.
		if info, err := fs.Stat(tree, name); name != "" && err == nil && info.Mode().IsRegular() {
			names = append(names, name)
		}
	}
	return names
}

func TestLinksResolve(t *testing.T) {
	tree := os.DirFS(root)
	names := repositoryFiles(t, tree)
	if !slices.Contains(names, "docs/README.md") {
		t.Fatal("docs/README.md is not among the files of the repository")
	}
	broken, err := brokenLinks(tree, names)
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range broken {
		t.Error(problem)
	}
}

func TestMentionedPagesExist(t *testing.T) {
	tree := os.DirFS(root)
	var names []string
	for _, name := range repositoryFiles(t, tree) {
		switch path.Ext(name) {
		case ".md", ".rs", ".go", ".toml", ".py", ".js", ".yaml", ".yml", "":
			// The tests of these packages name pages that do not exist.
			if dir := path.Dir(name); dir != "test/documents" && dir != "hack/prose" {
				names = append(names, name)
			}
		}
	}
	missing, err := missingPages(tree, names)
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range missing {
		t.Error(problem)
	}
}

func TestBrokenLinksAreReported(t *testing.T) {
	tree := fstest.MapFS{
		"README.md": {Data: []byte(strings.Join([]string{
			"# Top",
			"[page](docs/a.md), [heading](docs/a.md#one-two), [same heading](docs/a.md#one-two-1), [here](#top), [web](https://example.com/x)",
			"[gone](docs/gone.md) and [`code`](docs/a.md#three)",
			"![image](docs/gone.png) [above](../secret.md) [not Markdown](docs/data.json#x)",
			"`[in code](nowhere.md)`",
			"```",
			"[in a block](nowhere.md)",
			"```",
			"[name]: docs/b.md",
			"[directory](docs/) [escaped](docs/with%20space.md) [id](docs/a.md#marked)",
		}, "\n"))},
		"docs/a.md":          {Data: []byte("# One, two!\n\n## `One` [two](../README.md#nothing)\n\n<a id=\"marked\"></a>\n")},
		"docs/data.json":     {Data: []byte("{}")},
		"docs/with space.md": {Data: []byte("# With space\n")},
	}
	got, err := brokenLinks(tree, []string{"README.md", "docs/a.md", "docs/data.json"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"README.md:3: link to docs/gone.md: the target does not exist",
		"README.md:3: link to docs/a.md#three: docs/a.md has no such heading",
		"README.md:4: link to docs/gone.png: the target does not exist",
		"README.md:4: link to ../secret.md: the target is outside the repository",
		"README.md:4: link to docs/data.json#x: only Markdown files have anchors",
		"README.md:9: link to docs/b.md: the target does not exist",
		"docs/a.md:3: link to ../README.md#nothing: README.md has no such heading",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestMissingPagesAreReported(t *testing.T) {
	tree := fstest.MapFS{
		"a.rs": {Data: []byte("//! See docs/a.md, `docs/sub/b.svg`.\n" +
			"const X: &str = \"../../docs/gone.md\"; // https://example.com/docs/other.md\n")},
		"docs/a.md":      {Data: []byte("")},
		"docs/sub/b.svg": {Data: []byte("")},
	}
	got, err := missingPages(tree, []string{"a.rs"})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"a.rs:2: docs/gone.md does not exist"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
