// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

// Package packaging compares what the Helm chart installs with what kustomize does. It is a module of its
// own, so that the operator does not get Helm's dependencies.
package packaging
