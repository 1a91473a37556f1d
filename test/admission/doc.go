// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

// Package admission compares the lists in the admission policies of config/admission with the broker's own settings,
// policy keys and arguments.
package admission
