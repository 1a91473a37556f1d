// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"html"
	"io/fs"
	"net/url"
	"os"
	"path"
	"regexp"
)

var (
	reference = regexp.MustCompile(`<(?:a|img|script|link)\s[^>]*?(?:href|src)="([^"]*)"`)
	anchor    = regexp.MustCompile(`\sid="([^"]+)"`)
)

// check returns an error that names every link of a site without its file or anchor.
func check(site string) error {
	tree := os.DirFS(site)
	pages := map[string]string{}
	err := fs.WalkDir(tree, ".", func(name string, _ fs.DirEntry, err error) error {
		if err == nil && path.Ext(name) == ".html" && name != "404.html" && path.Base(name) != "print.html" {
			var text []byte
			if text, err = fs.ReadFile(tree, name); err == nil {
				pages[name] = string(text)
			}
		}
		return err
	})
	if err != nil {
		return err
	}
	if len(pages) < 2 {
		return fmt.Errorf("%s has %d pages", site, len(pages))
	}
	anchors := map[string]map[string]bool{}
	var broken []error
	for name, text := range pages {
		for _, match := range reference.FindAllStringSubmatch(text, -1) {
			link, err := url.Parse(html.UnescapeString(match[1]))
			if err != nil {
				broken = append(broken, fmt.Errorf("%s: link %s: %w", name, match[1], err))
				continue
			}
			if link.Scheme != "" || link.Host != "" {
				continue
			}
			file := name
			if link.Path != "" {
				file = path.Join(path.Dir(name), link.Path)
			}
			if info, err := fs.Stat(tree, file); err != nil || info.IsDir() {
				broken = append(broken, fmt.Errorf("%s: link to %s: the file does not exist", name, match[1]))
				continue
			}
			if _, isPage := pages[file]; link.Fragment == "" || !isPage {
				continue
			}
			if anchors[file] == nil {
				anchors[file] = map[string]bool{}
				for _, id := range anchor.FindAllStringSubmatch(pages[file], -1) {
					anchors[file][html.UnescapeString(id[1])] = true
				}
			}
			if !anchors[file][link.Fragment] {
				broken = append(broken, fmt.Errorf("%s: link to %s: %s has no such anchor", name, match[1], file))
			}
		}
	}
	return errors.Join(broken...)
}
