// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package envtest

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// manifests reads the objects in a file.
func manifests(file string) []*unstructured.Unstructured {
	GinkgoHelper()
	data, err := os.ReadFile(file)
	Expect(err).NotTo(HaveOccurred())
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096)
	var out []*unstructured.Unstructured
	for {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(object)
		if errors.Is(err, io.EOF) {
			return out
		}
		Expect(err).NotTo(HaveOccurred(), file)
		if len(object.Object) > 0 {
			out = append(out, object)
		}
	}
}

func applyManifests(file string) {
	GinkgoHelper()
	for _, object := range manifests(file) {
		Expect(k8s.Create(ctx, object)).To(Succeed(), file)
	}
}

var _ = Describe("manifests", func() {
	It("are accepted by the API server without an unknown field", func() {
		strict := client.WithFieldValidation(k8s, metav1.FieldValidationStrict)
		taken := 0
		for _, folder := range []string{"samples", "manager"} {
			root := filepath.Join("..", "..", "config", folder)
			Expect(filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
				if err != nil || entry.IsDir() || !strings.HasSuffix(file, ".yaml") || entry.Name() == "kustomization.yaml" {
					return err
				}
				for _, object := range manifests(file) {
					// Argo CD and Flux are not installed here.
					group := object.GroupVersionKind().Group
					isForeign := group == "argoproj.io" || strings.HasSuffix(group, ".fluxcd.io")
					if object.GetKind() == "Namespace" || isForeign {
						continue
					}
					object.SetNamespace("default")
					Expect(strict.Create(ctx, object, client.DryRunAll)).To(Succeed(), file)
					taken++
				}
				return nil
			})).To(Succeed())
		}
		Expect(taken).To(BeNumerically(">=", 5))
	})
})
