// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package layers

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	ofTest = regexp.MustCompile(`(?m)^path = "tests/(\w+)\.rs"$`)
	module = regexp.MustCompile(`(?m)^mod (\w+);$`)
)

// forgotten lists the test files of a crate that belong to none of its test programs. Cargo itself does not notice them where the
// manifest lists the programs.
func forgotten(manifest, program string, files []string) []string {
	if !strings.Contains(manifest, "\nautotests = false\n") {
		return nil
	}
	known := map[string]bool{}
	for _, of := range []*regexp.Regexp{ofTest, module} {
		for _, match := range of.FindAllStringSubmatch(manifest+"\n"+program, -1) {
			known[match[1]] = true
		}
	}
	var out []string
	for _, file := range files {
		if name := strings.TrimSuffix(filepath.Base(file), ".rs"); !known[name] {
			out = append(out, file)
		}
	}
	return out
}

func TestEveryTestFileBelongsToAProgram(t *testing.T) {
	manifests, err := filepath.Glob(root + "/broker/crates/*/Cargo.toml")
	if err != nil || len(manifests) == 0 {
		t.Fatalf("no crates: %v", err)
	}
	merged := 0
	for _, path := range manifests {
		manifest, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(filepath.Dir(path), "tests")
		program, err := os.ReadFile(filepath.Join(dir, "main.rs"))
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		merged++
		files, err := filepath.Glob(dir + "/*.rs")
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range forgotten(string(manifest), string(program), files) {
			t.Errorf("%s is in no test program: add it to main.rs beside it", file)
		}
	}
	if merged == 0 {
		t.Error("no crate has tests/main.rs")
	}
}

func TestForgottenFileIsFound(t *testing.T) {
	manifest := "[package]\nautotests = false\n\n[[test]]\nname = \"alone\"\npath = \"tests/alone.rs\"\n"
	files := []string{"tests/alone.rs", "tests/listed.rs", "tests/other.rs"}
	found := forgotten(manifest, "mod listed;\n", files)
	if len(found) != 1 || found[0] != "tests/other.rs" {
		t.Errorf("found %v", found)
	}
}
