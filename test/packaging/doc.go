// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

// Package packaging compares the objects of the Helm chart with those of kustomize. It is a module of its own, so
// that the operator does not depend on Helm.
package packaging
