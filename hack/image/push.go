package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// push copies the image in a tarball to a registry, under the last part of its own name, and returns its reference
// there. The credentials come from the user's Docker configuration file.
func push(ctx context.Context, file, registry, tag string) (string, error) {
	manifest, err := tarball.LoadManifest(func() (io.ReadCloser, error) { return os.Open(file) })
	if err != nil {
		return "", fmt.Errorf("%s: not an image tarball: %w", file, err)
	}
	if len(manifest) != 1 || len(manifest[0].RepoTags) != 1 {
		return "", fmt.Errorf("%s: must have one image with one name", file)
	}
	own, err := name.NewTag(manifest[0].RepoTags[0])
	if err != nil {
		return "", fmt.Errorf("%s: %w", file, err)
	}
	path := strings.Split(own.RepositoryStr(), "/")
	reference, err := name.NewTag(strings.TrimSuffix(registry, "/") + "/" + path[len(path)-1] + ":" + tag)
	if err != nil {
		return "", fmt.Errorf("registry %q: %w", registry, err)
	}
	image, err := tarball.ImageFromPath(file, nil)
	if err != nil {
		return "", fmt.Errorf("%s: %w", file, err)
	}
	if err := remote.Write(reference, image, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
		return "", fmt.Errorf("pushing %s: %w", reference, err)
	}
	return reference.String(), nil
}

// pushAll runs the command push with a registry, a tag and tarballs.
func pushAll(args []string) error {
	if len(args) < 3 {
		return fmt.Errorf("too few arguments; usage: image push REGISTRY TAG FILE.tar [FILE.tar ...]")
	}
	for _, file := range args[2:] {
		reference, err := push(context.Background(), file, args[0], args[1])
		if err != nil {
			return err
		}
		fmt.Println(reference)
	}
	return nil
}
