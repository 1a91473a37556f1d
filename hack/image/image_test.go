package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func build(t *testing.T, binary string) (string, []file) {
	t.Helper()
	s := spec{ref: "posthorn.local/x:dev", out: filepath.Join(t.TempDir(), "out", "x.tar"), binary: binary, entrypoint: "/x", uid: 10001}
	files, arch, err := collect(s)
	if err != nil {
		t.Fatal(err)
	}
	if err := write(s, files, arch); err != nil {
		t.Fatal(err)
	}
	return s.out, files
}

func paths(files []file) (p []string) {
	for _, f := range files {
		p = append(p, f.path)
	}
	return p
}

func TestDynamicProgramIncludesItsLibraries(t *testing.T) {
	const program = "/bin/ls"
	p, err := inspect(program)
	if err != nil || p.loader == "" {
		t.Skipf("%s is not a dynamic program here: %v", program, err)
	}
	out, files := build(t, program)
	got := paths(files)
	for _, want := range append([]string{"/x", "/etc/passwd", p.loader}, p.libraries...) {
		if !slices.Contains(got, want) {
			t.Errorf("%s is missing from %v", want, got)
		}
	}
	if !slices.ContainsFunc(got, func(s string) bool { return strings.HasSuffix(s, "/libc.so.6") }) {
		t.Errorf("no C library in %v", got)
	}
	img, err := tarball.ImageFromPath(out, nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := img.ConfigFile()
	if err != nil || c.Config.User != "10001:10001" || c.Config.Entrypoint[0] != "/x" || c.Architecture != p.arch {
		t.Errorf("config %+v, %v", c, err)
	}
}

func TestSameInputBuildsTheSameImage(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	a, _ := build(t, self)
	b, _ := build(t, self)
	x, err := os.ReadFile(a)
	if err != nil {
		t.Fatal(err)
	}
	y, err := os.ReadFile(b)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(x, y) {
		t.Error("two builds of the same file differ")
	}
}

func TestFileThatIsNoProgramIsRefused(t *testing.T) {
	f := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(f, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"-ref", "a:b", "-out", f + ".tar", "-binary", f, "-entrypoint", "/x"},
		{"-ref", "a:b", "-out", f + ".tar", "-binary", f + ".absent", "-entrypoint", "/x"},
		{"-ref", "a:b", "-out", f + ".tar", "-binary", os.Args[0], "-entrypoint", "x"},
		{"-ref", "NOT VALID", "-out", f + ".tar", "-binary", os.Args[0], "-entrypoint", "/x"},
	} {
		if err := run(args); err == nil {
			t.Errorf("%v was accepted", args)
		}
	}
	if exists(f + ".tar") {
		t.Error("a refused image was written")
	}
}
