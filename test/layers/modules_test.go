// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package layers

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"testing"
)

// The modules that use packages of Kubernetes. Go compiles a package once for all of them if it and everything that it
// imports have the same version in each.
var kubernetesModules = []string{".", "hack/cluster", "hack/controller-gen", "test/certmanager", "test/packaging"}

// requirements returns the version of each module that a go.mod names, after its replacements.
func requirements(t *testing.T, dir string) map[string]string {
	t.Helper()
	command := exec.Command("go", "mod", "edit", "-json")
	command.Dir = filepath.Join(root, dir)
	output, err := command.Output()
	if err != nil {
		t.Fatalf("go mod edit -json in %s: %v", dir, err)
	}
	var file struct {
		Require []struct{ Path, Version string }
		Replace []struct {
			Old, New struct{ Path, Version string }
		}
	}
	if err := json.Unmarshal(output, &file); err != nil {
		t.Fatal(err)
	}
	versions := make(map[string]string, len(file.Require))
	for _, required := range file.Require {
		versions[required.Path] = required.Version
	}
	for _, replaced := range file.Replace {
		if _, ok := versions[replaced.Old.Path]; ok {
			versions[replaced.Old.Path] = replaced.New.Version
		}
	}
	return versions
}

func TestModulesWithKubernetesHaveTheSameVersions(t *testing.T) {
	type choice struct{ dir, version string }
	first := map[string]choice{}
	common := 0
	for _, dir := range kubernetesModules {
		for path, version := range requirements(t, dir) {
			known, ok := first[path]
			switch {
			case !ok:
				first[path] = choice{dir, version}
			case known.version != version:
				t.Errorf("%s is %s in %s/go.mod, and %s in %s/go.mod; raise one, or replace the version in a module that only tests",
					path, known.version, known.dir, version, dir)
			default:
				common++
			}
		}
	}
	if common < 100 {
		t.Errorf("only %d common requirements; are these the modules with Kubernetes?", common)
	}
}
