// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

// Package documents holds the tests of the repository's Markdown files.
package documents
