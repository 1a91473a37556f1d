// Image writes one container image as a tarball from files of this machine alone, without a registry, a base image or
// a container engine. The result depends only on the files and flags, so the same input produces the same image.
//
//	image -ref NAME:TAG -out FILE.tar -binary FILE -entrypoint /PATH [flags]
//	image push REGISTRY TAG FILE.tar...
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// spec describes an image.
type spec struct {
	ref        string // name:tag
	out        string // tarball to write
	binary     string // file of this machine that becomes the entrypoint
	entrypoint string // its path in the image
	uid        int    // user and group it runs as
	caBundle   string // file that becomes the image's CA certificates; empty for none
}

func run(args []string) error {
	if len(args) > 0 && args[0] == "push" {
		return pushAll(args[1:])
	}
	var s spec
	fs := flag.NewFlagSet("image", flag.ContinueOnError)
	fs.StringVar(&s.ref, "ref", "", "name and tag of the image")
	fs.StringVar(&s.out, "out", "", "tarball to write")
	fs.StringVar(&s.binary, "binary", "", "the program; the shared libraries it needs are added from this machine")
	fs.StringVar(&s.entrypoint, "entrypoint", "", "path of the program in the image, and its entry point")
	fs.IntVar(&s.uid, "uid", 10001, "user and group id the program runs as")
	fs.StringVar(&s.caBundle, "ca-bundle", "", "file to install as /etc/ssl/certs/ca-certificates.crt")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if s.ref == "" || s.out == "" || s.binary == "" || !strings.HasPrefix(s.entrypoint, "/") || fs.NArg() > 0 {
		return fmt.Errorf("-ref, -out, -binary and an absolute -entrypoint are needed, and nothing else (see -h)")
	}
	files, arch, err := collect(s)
	if err != nil {
		return err
	}
	return write(s, files, arch)
}
