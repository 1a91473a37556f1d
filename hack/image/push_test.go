package main

import (
	"context"
	"io"
	"log"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

func TestPushedImagesAreInTheRegistry(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	tarball, _ := build(t, "/bin/sh")
	reference, err := push(context.Background(), tarball, host+"/team/", "1.2.3")
	if err != nil {
		t.Fatal(err)
	}
	if want := host + "/team/x:1.2.3"; reference != want {
		t.Errorf("pushed %s, want %s", reference, want)
	}
	tag, err := name.NewTag(reference)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := remote.Image(tag); err != nil {
		t.Errorf("not in the registry: %v", err)
	}
}

func TestPushErrorNamesTheFileOrTheRegistry(t *testing.T) {
	tarball, _ := build(t, "/bin/sh")
	if _, err := push(context.Background(), "nowhere.tar", "127.0.0.1:1", "1"); err == nil || !strings.Contains(err.Error(), "nowhere.tar") {
		t.Errorf("a file that does not exist: %v", err)
	}
	if _, err := push(context.Background(), tarball, "not a registry", "1"); err == nil || !strings.Contains(err.Error(), `"not a registry"`) {
		t.Errorf("a name that is not a registry: %v", err)
	}
}
