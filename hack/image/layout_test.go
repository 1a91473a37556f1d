package main

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// programFor builds a static program for an architecture.
func programFor(t *testing.T, arch string) string {
	t.Helper()
	built := filepath.Join(t.TempDir(), arch)
	command := exec.Command("go", "build", "-o", built, ".")
	command.Dir = "../cluster/pause"
	command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return built
}

// unpack returns the index of the layout in an archive, which must be valid.
func unpack(t *testing.T, file string) v1.ImageIndex {
	t.Helper()
	into := t.TempDir()
	if out, err := exec.Command("tar", "-xf", file, "-C", into).CombinedOutput(); err != nil {
		t.Fatalf("tar: %v\n%s", err, out)
	}
	path, err := layout.FromPath(into)
	if err != nil {
		t.Fatal(err)
	}
	index, err := path.ImageIndex()
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Fatal(err)
	}
	return index
}

func TestLayoutHasAnImageForEachArchitecture(t *testing.T) {
	amd64, arm64 := programFor(t, "amd64"), programFor(t, "arm64")
	write := func() string {
		out := filepath.Join(t.TempDir(), "x-oci.tar")
		if err := run([]string{
			"layout", "-ref", "posthorn.local/x:1.2.3", "-out", out, "-binary", amd64 + "," + arm64, "-entrypoint", "/x",
			"-link", "/y", "-label", "org.opencontainers.image.version=1.2.3", "-created", "86400",
		}); err != nil {
			t.Fatal(err)
		}
		return out
	}
	out := write()
	top, err := unpack(t, out).IndexManifest()
	if err != nil || len(top.Manifests) != 1 || top.Manifests[0].Annotations[refName] != "1.2.3" {
		t.Fatalf("the layout has %+v (%v), want one index with the tag", top, err)
	}
	index, err := unpack(t, out).ImageIndex(top.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	var platforms []string
	for _, each := range manifest.Manifests {
		platforms = append(platforms, each.Platform.String())
		image, err := index.Image(each.Digest)
		if err != nil {
			t.Fatal(err)
		}
		config, err := image.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if config.Architecture != each.Platform.Architecture || config.Config.Labels["org.opencontainers.image.version"] != "1.2.3" || !config.Created.Equal(time.Unix(86400, 0)) {
			t.Errorf("config of %s: %+v", each.Platform, config)
		}
		content, err := image.Manifest()
		if err != nil {
			t.Fatal(err)
		}
		// Tools such as skopeo refuse an OCI manifest with layers of Docker's type.
		for _, layer := range append(content.Layers, content.Config) {
			if !strings.HasPrefix(string(layer.MediaType), "application/vnd.oci.") {
				t.Errorf("media type %s", layer.MediaType)
			}
		}
		if got := linkTarget(t, image, "y"); got != "/x" {
			t.Errorf("/y is a link to %q, want /x", got)
		}
	}
	if want := []string{"linux/amd64", "linux/arm64"}; !slices.Equal(platforms, want) {
		t.Errorf("platforms %v, want %v", platforms, want)
	}
	first, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	second, err := os.ReadFile(write())
	if err != nil || !bytes.Equal(first, second) {
		t.Errorf("two layouts of the same programs differ (%v)", err)
	}
}

// linkTarget returns the target of a symbolic link of an image.
func linkTarget(t *testing.T, image v1.Image, path string) string {
	t.Helper()
	layers := mutate.Extract(image)
	defer layers.Close()
	for files := tar.NewReader(layers); ; {
		header, err := files.Next()
		if err == io.EOF {
			return ""
		}
		if err != nil {
			t.Fatal(err)
		}
		if header.Name == path && header.Typeflag == tar.TypeSymlink {
			return header.Linkname
		}
	}
}

func TestTwoProgramsOfOneArchitectureAreRefused(t *testing.T) {
	program := programFor(t, "amd64")
	out := filepath.Join(t.TempDir(), "x.tar")
	if err := run([]string{"layout", "-ref", "x:1", "-out", out, "-binary", program + "," + program, "-entrypoint", "/x"}); err == nil {
		t.Error("accepted")
	}
}
