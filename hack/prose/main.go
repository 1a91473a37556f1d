// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

// Command prose checks the language of documentation, help texts and descriptions against rules.yaml.
//
//	prose [-root DIR] [-warnings] [PATH...]
//
// Without a path it checks the files that rules.yaml lists as clean, and searches every tracked file for
// feature ids. With paths it checks those files, whether they are listed or not.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

func main() {
	root := flag.String("root", "../..", "root of the repository")
	warnings := flag.Bool("warnings", false, "print warnings too; they never fail the run")
	flag.Parse()
	failed, err := run(*root, *warnings, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "prose:", err)
		os.Exit(2)
	}
	if failed > 0 {
		fmt.Fprintf(os.Stderr, "%d findings; the rules and the list of checked files are in hack/prose/rules.yaml\n", failed)
		os.Exit(1)
	}
}

// run prints the findings of the given files and returns the number of errors among them.
func run(root string, warnings bool, paths []string) (int, error) {
	rules, err := loadRules(filepath.Join(root, "hack/prose/rules.yaml"))
	if err != nil {
		return 0, err
	}
	var findings []finding
	if len(paths) == 0 {
		tracked, err := trackedFiles(root)
		if err != nil {
			return 0, err
		}
		if paths, err = rules.cleanFiles(tracked); err != nil {
			return 0, err
		}
		if findings, err = rules.featureIDs.searchFiles(root, tracked); err != nil {
			return 0, err
		}
	}
	for _, path := range paths {
		text, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			return 0, err
		}
		found, err := rules.check(path, text)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", path, err)
		}
		findings = append(findings, found...)
	}
	failed := 0
	for _, f := range findings {
		switch {
		case !f.warning:
			failed++
			fmt.Printf("%s:%d: %s: %s\n", f.path, f.line, f.rule, f.message)
		case warnings:
			fmt.Printf("%s:%d: warning: %s: %s\n", f.path, f.line, f.rule, f.message)
		}
	}
	return failed, nil
}

// trackedFiles returns the paths of all files that git tracks and that exist.
func trackedFiles(root string) ([]string, error) {
	command := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	command.Dir = root
	out, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("git ls-files in %s: %w", root, err)
	}
	var files []string
	for name := range bytes.SplitSeq(out, []byte{0}) {
		path := string(name)
		if path == "" || strings.HasSuffix(path, ".sum") {
			continue
		}
		if info, err := os.Lstat(filepath.Join(root, path)); err == nil && info.Mode().IsRegular() {
			files = append(files, path)
		}
	}
	return files, nil
}
