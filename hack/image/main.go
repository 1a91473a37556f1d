// Image writes one container image as a tarball from files of this machine alone, without a registry, a base image or
// a container engine. The result depends only on the files and flags, so the same input produces the same image.
//
//	image -ref NAME:TAG -out FILE.tar -binary FILE -entrypoint /PATH [flags]
//	image layout -ref NAME:TAG -out FILE.tar -binary FILE,FILE... -entrypoint /PATH [flags]
//	image push REGISTRY TAG FILE.tar...
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"time"
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
	links      list   // paths of symbolic links to the entrypoint
	labels     labels
	created    time.Time // zero for none
}

// list is a flag that may be repeated.
type list []string

func (l *list) String() string { return strings.Join(*l, ",") }

func (l *list) Set(value string) error {
	if !strings.HasPrefix(value, "/") {
		return fmt.Errorf("%q is not an absolute path", value)
	}
	*l = append(*l, value)
	return nil
}

// labels is a flag NAME=VALUE that may be repeated.
type labels map[string]string

func (l *labels) String() string { return fmt.Sprint(map[string]string(*l)) }

func (l *labels) Set(pair string) error {
	name, value, found := strings.Cut(pair, "=")
	if !found || name == "" {
		return fmt.Errorf("%q has not the form NAME=VALUE", pair)
	}
	if *l == nil {
		*l = labels{}
	}
	(*l)[name] = value
	return nil
}

func run(args []string) error {
	if len(args) > 0 && args[0] == "push" {
		return pushAll(args[1:])
	}
	isLayout := len(args) > 0 && args[0] == "layout"
	if isLayout {
		args = args[1:]
	}
	var s spec
	var created int64
	fs := flag.NewFlagSet("image", flag.ContinueOnError)
	fs.StringVar(&s.ref, "ref", "", "name and tag of the image")
	fs.StringVar(&s.out, "out", "", "tarball to write")
	fs.StringVar(&s.binary, "binary", "", "the program; the shared libraries it needs are added from this machine")
	fs.StringVar(&s.entrypoint, "entrypoint", "", "path of the program in the image, and its entry point")
	fs.IntVar(&s.uid, "uid", 10001, "user and group id the program runs as")
	fs.StringVar(&s.caBundle, "ca-bundle", "", "file to install as /etc/ssl/certs/ca-certificates.crt")
	fs.Var(&s.links, "link", "path of a symbolic link to the entry point; may be repeated")
	fs.Var(&s.labels, "label", "label of the image, as NAME=VALUE; may be repeated")
	fs.Int64Var(&created, "created", 0, "time of creation in seconds since 1970, 0 for none")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if s.ref == "" || s.out == "" || s.binary == "" || !strings.HasPrefix(s.entrypoint, "/") || fs.NArg() > 0 {
		return fmt.Errorf("-ref, -out, -binary and an absolute -entrypoint are needed, and nothing else (see -h)")
	}
	if created != 0 {
		s.created = time.Unix(created, 0).UTC()
	}
	if isLayout {
		return writeLayout(s, strings.Split(s.binary, ","))
	}
	files, arch, err := collect(s)
	if err != nil {
		return err
	}
	return write(s, files, arch)
}
