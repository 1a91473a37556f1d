package main

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// content returns the file at path in an image.
func content(t *testing.T, image, path string) []byte {
	t.Helper()
	img, err := tarball.ImageFromPath(image, nil)
	if err != nil {
		t.Fatal(err)
	}
	layers := mutate.Extract(img)
	defer layers.Close()
	for files := tar.NewReader(layers); ; {
		header, err := files.Next()
		if err != nil {
			t.Fatalf("no %s in %s: %v", path, image, err)
		}
		if filepath.Join("/", header.Name) == path {
			found, err := io.ReadAll(files)
			if err != nil {
				t.Fatal(err)
			}
			return found
		}
	}
}

func symbols(t *testing.T, program []byte) *elf.Section {
	t.Helper()
	file, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		t.Fatal(err)
	}
	return file.Section(".symtab")
}

func TestProgramsInImagesAreStripped(t *testing.T) {
	bin, images := t.TempDir(), t.TempDir()
	built := filepath.Join(bin, "posthorn")
	if out, err := exec.Command("go", "build", "-o", built, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	before, err := os.ReadFile(built)
	if err != nil || symbols(t, before) == nil {
		t.Fatalf("the program to begin with has no symbols (%v)", err)
	}
	if out, err := exec.Command("./build", bin, images).CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	if symbols(t, content(t, filepath.Join(images, "posthorn.tar"), "/posthorn")) != nil {
		t.Error("the program in the image has symbols")
	}
	after, err := os.ReadFile(built)
	if err != nil || !bytes.Equal(before, after) {
		t.Errorf("the program in %s was changed (%v)", bin, err)
	}
}
