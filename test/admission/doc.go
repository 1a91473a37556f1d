// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

// Package admission compares the lists in the admission policies of config/admission with the broker, which has the
// last word about its settings, policy keys and arguments.
package admission
