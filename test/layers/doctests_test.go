// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package layers

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	fence = regexp.MustCompile("^\\s*//[/!] ?```(.*)$")
	// An example without a word is Rust, too.
	rust = regexp.MustCompile(`^$|rust|no_run|should_panic|compile_fail|ignore|edition`)
)

// hasExample reports whether comments of a source file have an example in Rust, which rustdoc runs as a test.
func hasExample(source string) bool {
	inside := false
	for line := range strings.Lines(source) {
		match := fence.FindStringSubmatch(strings.TrimRight(line, "\r\n"))
		if match == nil {
			continue
		}
		if !inside && rust.MatchString(strings.TrimSpace(match[1])) {
			return true
		}
		inside = !inside
	}
	return false
}

// A crate without examples has `doctest = false`, because rustdoc needs a second to find none.
func TestExamplesOfACrateAreRun(t *testing.T) {
	manifests, err := filepath.Glob(root + "/broker/crates/*/Cargo.toml")
	if err != nil || len(manifests) == 0 {
		t.Fatalf("no crates: %v", err)
	}
	for _, path := range manifests {
		manifest, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		has := false
		err = filepath.WalkDir(filepath.Join(filepath.Dir(path), "src"), func(file string, _ fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(file) != ".rs" {
				return err
			}
			source, err := os.ReadFile(file)
			has = has || hasExample(string(source))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if isOff := strings.Contains(string(manifest), "\ndoctest = false\n"); isOff == has {
			t.Errorf("%s: examples in comments: %v, doctest = false: %v", path, has, isOff)
		}
	}
}

func TestExampleIsFound(t *testing.T) {
	for source, want := range map[string]bool{
		"/// ```\n/// let x = 1;\n/// ```\n":             true,
		"    //! ```no_run\n    //! f();\n    //! ```\n": true,
		"/// ```text\n/// a diagram\n/// ```\n":          false,
		"/// Text.\n":                                    false,
	} {
		if got := hasExample(source); got != want {
			t.Errorf("%q: %v", source, got)
		}
	}
}
