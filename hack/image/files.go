package main

import (
	"fmt"
	"os"
	"path"
	"sort"
)

// file is one file of an image.
type file struct {
	path string // absolute, in the image
	mode int64
	data []byte
	link string // target of a symbolic link; empty for a regular file
}

// glibcExtras are opened by name at run time and so do not appear in a header: name lookups in C libraries older than
// 2.34. Missing ones are skipped.
var glibcExtras = []string{"libnss_files.so.2", "libnss_dns.so.2", "libresolv.so.2"}

// collect reads all files of the image, sorted by path, and the architecture of the program.
func collect(s spec) ([]file, string, error) {
	p, err := inspect(s.binary)
	if err != nil {
		return nil, "", err
	}
	files := []file{
		{path: "/etc/passwd", mode: 0o644, data: fmt.Appendf(nil, "root:x:0:0:root:/:/sbin/nologin\nposthorn:x:%d:%d:posthorn:/:/sbin/nologin\n", s.uid, s.uid)},
		{path: "/etc/group", mode: 0o644, data: fmt.Appendf(nil, "root:x:0:\nposthorn:x:%d:\n", s.uid)},
		{path: "/etc/nsswitch.conf", mode: 0o644, data: []byte("passwd: files\ngroup: files\nhosts: files dns\n")},
	}
	for _, each := range s.links {
		files = append(files, file{path: each, mode: 0o777, link: s.entrypoint})
	}
	sources := map[string]string{s.entrypoint: s.binary}
	if s.caBundle != "" {
		sources["/etc/ssl/certs/ca-certificates.crt"] = s.caBundle
	}
	if p.loader != "" {
		sources[p.loader] = p.loader
		for _, lib := range p.libraries {
			sources[lib] = lib
			for _, extra := range glibcExtras {
				if e := path.Join(path.Dir(lib), extra); path.Base(lib) == "libc.so.6" && exists(e) {
					sources[e] = e
				}
			}
		}
	}
	for to, from := range sources {
		data, err := os.ReadFile(from)
		if err != nil {
			return nil, "", err
		}
		mode := int64(0o755)
		if from == s.caBundle {
			mode = 0o644
		}
		files = append(files, file{path: to, mode: mode, data: data})
	}
	sort.Slice(files, func(i, j int) bool { return files[i].path < files[j].path })
	return files, p.arch, nil
}

func exists(p string) bool {
	_, err := os.Stat(p)
	return err == nil
}
