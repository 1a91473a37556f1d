package main

import (
	"archive/tar"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// refName is the annotation by which tools select an image of a layout.
const refName = "org.opencontainers.image.ref.name"

// writeLayout writes an OCI image layout, as one tar archive, with an image for each binary. An index under the tag of
// the reference names them, so that a registry serves each machine its own architecture.
func writeLayout(s spec, binaries []string) error {
	ref, err := name.NewTag(s.ref)
	if err != nil {
		return err
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	seen := map[string]string{}
	for _, binary := range binaries {
		s.binary = binary
		files, arch, err := collect(s)
		if err != nil {
			return err
		}
		if other := seen[arch]; other != "" {
			return fmt.Errorf("%s and %s are both for %s", other, binary, arch)
		}
		seen[arch] = binary
		img, err := assemble(s, files, arch, types.OCILayer)
		if err != nil {
			return err
		}
		img = mutate.ConfigMediaType(mutate.MediaType(img, types.OCIManifestSchema1), types.OCIConfigJSON)
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
		})
	}
	scratch, err := os.MkdirTemp("", "layout")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	written, err := layout.Write(scratch, empty.Index)
	if err != nil {
		return err
	}
	annotations := map[string]string{refName: ref.TagStr()}
	if err := written.AppendIndex(index, layout.WithAnnotations(annotations)); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(s.out), 0o755); err != nil {
		return err
	}
	partial := s.out + ".partial"
	if err := archive(partial, scratch); err != nil {
		return fmt.Errorf("write %s: %w", partial, err)
	}
	return os.Rename(partial, s.out)
}

// archive packs a directory in the order of its names, without times or owners.
func archive(to, directory string) error {
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	defer out.Close()
	w := tar.NewWriter(out)
	err = fs.WalkDir(os.DirFS(directory), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == "." {
			return err
		}
		if entry.IsDir() {
			return w.WriteHeader(&tar.Header{Name: path + "/", Typeflag: tar.TypeDir, Mode: 0o755})
		}
		data, err := os.ReadFile(filepath.Join(directory, path))
		if err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{Name: path, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(data))}); err != nil {
			return err
		}
		_, err = w.Write(data)
		return err
	})
	if err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return out.Close()
}
