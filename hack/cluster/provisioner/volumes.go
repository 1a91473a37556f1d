package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// volumeRoot is the directory of all volumes, one directory each.
type volumeRoot struct{ dir string }

func openRoot(dir string) (volumeRoot, error) {
	if !filepath.IsAbs(dir) || filepath.Clean(dir) == "/" {
		return volumeRoot{}, fmt.Errorf("-root %q: an absolute directory other than / is needed", dir)
	}
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return volumeRoot{}, err
	}
	return volumeRoot{filepath.Clean(dir)}, nil
}

// path returns the directory of a volume. Names come from the API, so it refuses names that are not a single plain
// path element.
func (r volumeRoot) path(name string) (string, error) {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
		return "", fmt.Errorf("volume name %q is not a directory name", name)
	}
	return filepath.Join(r.dir, name), nil
}

// create creates the directory of a volume, owned by root and closed to others, like a newly formatted disk: the
// kubelet gives it to the pod's fsGroup.
func (r volumeRoot) create(name string) (string, error) {
	p, err := r.path(name)
	if err != nil {
		return "", err
	}
	if err := os.Mkdir(p, 0o770); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	// The umask has reduced Mkdir's mode.
	return p, os.Chmod(p, 0o770)
}

func (r volumeRoot) remove(name string) error {
	p, err := r.path(name)
	if err != nil {
		return err
	}
	return os.RemoveAll(p)
}
