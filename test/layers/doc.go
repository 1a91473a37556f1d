// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

// Package layers holds a test that compares the dependencies of crates and packages with docs/architecture.md.
package layers
