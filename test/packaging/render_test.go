// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package packaging

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	helmchart "helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// object is a Kubernetes object.
type object = map[string]any

// at returns a nested object; nil when a step is missing.
func at(o any, path ...string) any {
	for _, step := range path {
		inner, isMap := o.(map[string]any)
		if !isMap {
			return nil
		}
		o = inner[step]
	}
	return o
}

// identity returns kind and name of an object, without its namespace.
func identity(o object) string { return fmt.Sprintf("%v %v", o["kind"], at(o, "metadata", "name")) }

// put stores an object under its identity.
func put(t *testing.T, all map[string]object, text string) {
	t.Helper()
	var o object
	if err := yaml.Unmarshal([]byte(text), &o); err != nil {
		t.Fatalf("%v in:\n%s", err, text)
	}
	if len(o) == 0 {
		return
	}
	if _, twice := all[identity(o)]; twice {
		t.Errorf("%s twice", identity(o))
	}
	all[identity(o)] = o
}

// kustomized builds a folder of config/.
func kustomized(t *testing.T, folder string) map[string]object {
	t.Helper()
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), filepath.Join("..", "..", "config", folder))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]object{}
	for _, resource := range built.Resources() {
		text, err := resource.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		put(t, all, string(text))
	}
	return all
}

const (
	release   = "release"
	namespace = "posthorn-system"
)

// rendered renders the chart with values (YAML).
func rendered(t *testing.T, values string) (map[string]object, error) {
	t.Helper()
	return renderedChart(t, loadedChart(t), values)
}

func loadedChart(t *testing.T) *helmchart.Chart {
	t.Helper()
	chart, err := loader.Load(filepath.Join("..", "..", "charts", "posthorn"))
	if err != nil {
		t.Fatal(err)
	}
	return chart
}

// renderedChart renders a chart with values (YAML).
func renderedChart(t *testing.T, chart *helmchart.Chart, values string) (map[string]object, error) {
	t.Helper()
	texts, err := renderedTexts(t, chart, values)
	objects := map[string]object{}
	for _, text := range texts {
		put(t, objects, text)
	}
	return objects, err
}

// renderedTexts renders a chart with values (YAML), and returns the text of each object.
func renderedTexts(t *testing.T, chart *helmchart.Chart, values string) ([]string, error) {
	t.Helper()
	given, err := chartutil.ReadValues([]byte(values))
	if err != nil {
		t.Fatal(err)
	}
	options := chartutil.ReleaseOptions{Name: release, Namespace: namespace, Revision: 1, IsInstall: true}
	all, err := chartutil.ToRenderValues(chart, given, options, chartutil.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	files, err := engine.Render(chart, all)
	if err != nil {
		return nil, err
	}
	var texts []string
	for name, text := range files {
		if strings.HasSuffix(name, ".yaml") {
			texts = append(texts, strings.Split("\n"+text, "\n---\n")...)
		}
	}
	return texts, nil
}

// install renders the chart and must succeed.
func install(t *testing.T, values string) map[string]object {
	t.Helper()
	objects, err := rendered(t, values)
	if err != nil {
		t.Fatal(err)
	}
	return objects
}
