// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"bytes"
	"cmp"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

var update = flag.Bool("update", false, "write the golden files")

func TestManifestsAreConvertedAsTheGoldenFile(t *testing.T) {
	var all string
	for _, name := range []string{"all", "streams"} {
		all += convertedAsGolden(t, name)
	}
	fitTheTypes(t, all)
}

// convertedAsGolden compares the conversion of NAME.in.yaml with NAME.out.yaml, and returns it.
func convertedAsGolden(t *testing.T, name string) string {
	t.Helper()
	in, err := os.ReadFile(filepath.Join("testdata", name+".in.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if err := Manifests(bytes.NewReader(in), &got); err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", name+".out.yaml")
	if *update {
		if err := os.WriteFile(golden, got.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got.String() != string(want) {
		t.Errorf("%s: run with -update and compare:\n%s", name, got.String())
	}
	return got.String()
}

// fitTheTypes decodes converted manifests strictly: no field is unknown.
func fitTheTypes(t *testing.T, manifests string) {
	t.Helper()
	decoded := 0
	for _, document := range strings.Split(manifests, "---\n") {
		var head object
		if err := yaml.Unmarshal([]byte(document), &head); err != nil {
			t.Fatal(err)
		}
		into := map[string]any{
			"Vhost": &posthornv1.Vhost{}, "Queue": &posthornv1.Queue{}, "Exchange": &posthornv1.Exchange{}, "Binding": &posthornv1.Binding{},
			"User": &posthornv1.User{}, "Permission": &posthornv1.Permission{}, "TopicPermission": &posthornv1.TopicPermission{}, "Policy": &posthornv1.Policy{},
			"SuperStream": &posthornv1.SuperStream{},
		}[head.Kind]
		if head.Kind == "" {
			continue
		}
		if err := yaml.UnmarshalStrict([]byte(document), into); err != nil {
			t.Errorf("%s: %v", &head, err)
		}
		decoded++
	}
	if decoded < len(kinds) {
		t.Errorf("%d manifests for %d kinds", decoded, len(kinds))
	}
}

func TestHostileManifestsAreErrors(t *testing.T) {
	for name, in := range map[string]string{
		"no YAML":        "apiVersion: [",
		"no object":      "- a\n- b\n",
		"a wrong spec":   "apiVersion: rabbitmq.com/v1beta1\nkind: Queue\nspec: 7\n",
		"a second error": "apiVersion: v1\nkind: X\n---\nkind: {",
	} {
		if err := Manifests(strings.NewReader(in), io.Discard); err == nil || !strings.Contains(err.Error(), "document ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	endless := io.MultiReader(strings.NewReader("kind: "), io.LimitReader(zeros{}, maxInput+10))
	if err := Manifests(endless, io.Discard); err == nil || !strings.Contains(err.Error(), "longer than") {
		t.Errorf("endless input: %v", err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
		if i%80 == 79 {
			p[i] = '\n'
		}
	}
	return len(p), nil
}

func TestWrongValuesNeverPanic(t *testing.T) {
	for kind := range kinds {
		for _, value := range []any{nil, 7.0, "x", true, []any{1.0}, map[string]any{"name": []any{}}} {
			spec := map[string]any{}
			for _, field := range []string{
				"name", "vhost", "type", "durable", "arguments", "limits", "permissions", "userReference", "user", "importCredentialsSecret",
				"rabbitmqClusterReference", "deletionPolicy", "definition", "source",
				"partitions", "routingKeys",
			} {
				spec[field] = value
			}
			if converted, _ := convert(&object{APIVersion: cmp.Or(versions[kind], source), Kind: kind, Metadata: map[string]any{"name": value}, Spec: spec}); converted == nil {
				t.Errorf("%s was left out", kind)
			}
		}
	}
}
