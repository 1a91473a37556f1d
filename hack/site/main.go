// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

// Site prepares the sources of the documentation site for mdBook, and checks the links of the result.
//
//	site sources REPOSITORY BOOK_DIR
//	site check SITE_DIR
package main

import (
	"fmt"
	"os"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "site:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 3 && args[0] == "sources":
		return sources(args[1], args[2])
	case len(args) == 2 && args[0] == "check":
		return check(args[1])
	}
	return fmt.Errorf("usage: site sources REPOSITORY BOOK_DIR | site check SITE_DIR")
}
