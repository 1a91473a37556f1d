package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// layer packs files and their directories as an uncompressed tar without times or owners.
func layer(files []file) ([]byte, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	made := map[string]bool{"/": true}
	var mkdir func(dir string) error
	mkdir = func(dir string) error {
		if made[dir] {
			return nil
		}
		if err := mkdir(path.Dir(dir)); err != nil {
			return err
		}
		made[dir] = true
		return w.WriteHeader(&tar.Header{Name: strings.TrimPrefix(dir, "/") + "/", Typeflag: tar.TypeDir, Mode: 0o755})
	}
	for _, f := range files {
		if err := mkdir(path.Dir(f.path)); err != nil {
			return nil, err
		}
		h := &tar.Header{Name: strings.TrimPrefix(f.path, "/"), Typeflag: tar.TypeReg, Mode: f.mode, Size: int64(len(f.data))}
		if f.link != "" {
			h.Typeflag, h.Linkname = tar.TypeSymlink, f.link
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

// assemble builds the image in memory.
func assemble(s spec, files []file, arch string, layerType types.MediaType) (v1.Image, error) {
	packed, err := layer(files)
	if err != nil {
		return nil, err
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(packed)), nil
	}, tarball.WithMediaType(layerType))
	if err != nil {
		return nil, err
	}
	img, err := mutate.AppendLayers(empty.Image, l)
	if err != nil {
		return nil, err
	}
	return mutate.ConfigFile(img, config(img, s, arch))
}

// write builds the image and renames the tarball into place, so that a reader never sees a partial file.
func write(s spec, files []file, arch string) error {
	ref, err := name.NewTag(s.ref)
	if err != nil {
		return err
	}
	img, err := assemble(s, files, arch, types.DockerLayer)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(s.out), 0o755); err != nil {
		return err
	}
	partial := s.out + ".partial"
	if err := tarball.WriteToFile(partial, ref, img); err != nil {
		return fmt.Errorf("write %s: %w", partial, err)
	}
	return os.Rename(partial, s.out)
}

func config(img v1.Image, s spec, arch string) *v1.ConfigFile {
	c, err := img.ConfigFile()
	if err != nil { // an image in memory always has one
		c = &v1.ConfigFile{}
	}
	c = c.DeepCopy()
	c.OS, c.Architecture = "linux", arch
	c.Config.Entrypoint = []string{s.entrypoint}
	c.Config.User = fmt.Sprintf("%d:%d", s.uid, s.uid)
	c.Config.Env = []string{"PATH=/"}
	c.Config.Labels = s.labels
	if !s.created.IsZero() {
		c.Created = v1.Time{Time: s.created}
	}
	return c
}
