package main

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
)

// program has the dependencies in the headers of an executable.
type program struct {
	arch      string   // as Go names it
	loader    string   // dynamic loader, empty for a static program
	libraries []string // absolute paths of all libraries, also indirect ones, sorted
}

// architectures are the supported machines, with the directories of their libraries beside the common ones.
var architectures = map[elf.Machine]struct{ name, triplet string }{
	elf.EM_X86_64:  {"amd64", "x86_64-linux-gnu"},
	elf.EM_AARCH64: {"arm64", "aarch64-linux-gnu"},
}

// inspect reads an executable's headers. It does not run the program, so a foreign or broken one does no harm.
func inspect(path string) (program, error) {
	f, err := elf.Open(path)
	if err != nil {
		return program{}, fmt.Errorf("%s is not a Linux program: %w", path, err)
	}
	defer f.Close()
	arch, ok := architectures[f.Machine]
	if !ok {
		return program{}, fmt.Errorf("%s is for %v, which is not supported", path, f.Machine)
	}
	p := program{arch: arch.name}
	for _, h := range f.Progs {
		if h.Type != elf.PT_INTERP {
			continue
		}
		b := make([]byte, min(h.Filesz, 4096))
		if _, err := h.ReadAt(b, 0); err != nil {
			return program{}, fmt.Errorf("%s: read the loader's name: %w", path, err)
		}
		p.loader = string(b[:max(len(b)-1, 0)])
	}
	if p.loader == "" {
		return p, nil
	}
	p.libraries, err = closure(path, searchPath(arch.triplet))
	return p, err
}

func searchPath(triplet string) []string {
	return []string{
		"/lib/" + triplet, "/usr/lib/" + triplet, "/lib64", "/usr/lib64",
		"/lib", "/usr/lib", "/usr/local/lib/" + triplet, "/usr/local/lib",
	}
}

// closure returns the libraries of a program and their own libraries.
func closure(path string, dirs []string) ([]string, error) {
	found := map[string]string{}
	for todo := []string{path}; len(todo) > 0; todo = todo[1:] {
		f, err := elf.Open(todo[0])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", todo[0], err)
		}
		needed, err := f.ImportedLibraries()
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", todo[0], err)
		}
		for _, name := range needed {
			if found[name] != "" {
				continue
			}
			lib, err := find(name, dirs)
			if err != nil {
				return nil, fmt.Errorf("%s needs %s: %w", todo[0], name, err)
			}
			found[name] = lib
			todo = append(todo, lib)
		}
	}
	libs := make([]string, 0, len(found))
	for _, lib := range found {
		libs = append(libs, lib)
	}
	sort.Strings(libs)
	return libs, nil
}

func find(name string, dirs []string) (string, error) {
	for _, d := range dirs {
		p := filepath.Join(d, name)
		if _, err := os.Stat(p); err == nil {
			return p, nil
		} else if !errors.Is(err, os.ErrNotExist) {
			return "", err
		}
	}
	return "", fmt.Errorf("not found in %v", dirs)
}
