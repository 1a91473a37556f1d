// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package envtest

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

// kubectl runs the API server's kubectl as an administrator in a namespace (empty for none), and returns its output.
func kubectl(namespace string, args ...string) string {
	GinkgoHelper()
	config := filepath.Join(GinkgoT().TempDir(), "kubeconfig")
	Expect(os.WriteFile(config, kubeconfig, 0o600)).To(Succeed())
	args = append([]string{"--kubeconfig", config}, args...)
	if namespace != "" {
		args = append([]string{"--namespace", namespace}, args...)
	}
	output, err := exec.Command(filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kubectl"), args...).CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "%s", output)
	return string(output)
}

// samples reads the objects in a folder, and sets the namespace of those without one.
func samples(namespace, folder string) []client.Object {
	GinkgoHelper()
	files, err := filepath.Glob(filepath.Join("..", "..", "config", "samples", folder, "*.yaml"))
	Expect(err).NotTo(HaveOccurred())
	var out []client.Object
	for _, file := range files {
		if filepath.Base(file) == "kustomization.yaml" {
			continue
		}
		for _, read := range manifests(file) {
			if read.GetKind() == "Namespace" {
				continue
			}
			Expect(kinds).To(HaveKey(read.GetKind()), file)
			object := kinds[read.GetKind()]()
			Expect(runtime.DefaultUnstructuredConverter.FromUnstructured(read.Object, object)).To(Succeed())
			if object.GetNamespace() == "" {
				object.SetNamespace(namespace)
			}
			out = append(out, object)
		}
	}
	Expect(out).NotTo(BeEmpty())
	return out
}

// becomeReady starts the broker of each cluster among the objects, and waits until all are ready.
func becomeReady(objects []client.Object) {
	GinkgoHelper()
	for _, object := range objects {
		if cluster, is := object.(*posthornv1.BrokerCluster); is {
			startBroker(client.ObjectKeyFromObject(cluster), cluster.Spec.Replicas, cmp.Or(cluster.Spec.Version, "1.0.0"))
		}
	}
	for _, object := range objects {
		DeferCleanup(func() { Expect(client.IgnoreNotFound(k8s.Delete(ctx, object))).To(Succeed()) })
		Eventually(ready(object)).Should(HavePrefix("True"), "%T %s", object, object.GetName())
	}
}

var _ = Describe("samples", func() {
	It("of a cluster and its objects become Ready", func() {
		namespace := newNamespace(nil)
		objects := samples(namespace, ".")
		kubectl(namespace, "apply", "-k", filepath.Join("..", "..", "config", "samples"))
		becomeReady(objects)
		Expect(objects).To(HaveLen(len(kinds)))
	})

	for _, folder := range []string{"dead-letters", "mqtt", "streams", "tenancy"} {
		It("of "+folder+" become Ready", func() {
			namespace := newNamespace(nil)
			objects := samples(namespace, folder)
			kubectl(namespace, "apply", "-f", filepath.Join("..", "..", "config", "samples", folder))
			becomeReady(objects)
		})
	}

	It("of tls is accepted", func() {
		namespace := newNamespace(nil)
		kubectl(namespace, "apply", "--dry-run=server", "-f", filepath.Join("..", "..", "config", "samples", "tls"))
	})

	It("of backup is accepted", func() {
		namespace := newNamespace(nil)
		kubectl(namespace, "apply", "--dry-run=server", "-f", filepath.Join("..", "..", "config", "samples", "backup"))
	})

	It("of the demo become Ready", func() {
		objects := samples("", "demo")
		kubectl("", "apply", "-f", filepath.Join("..", "..", "config", "samples", "demo"))
		becomeReady(objects)
		Expect(objects).To(HaveLen(4))
	})
})

// productionSample needs cert-manager's kinds.
func productionSample() {
	namespace := newNamespace(nil)
	objects := samples(namespace, "production")
	kubectl(namespace, "apply", "-f", filepath.Join("..", "..", "config", "samples", "production"))
	// Like cert-manager once the issuer exists.
	certificate := optional("cert-manager.io", "Certificate", namespace, "production-tls")
	Eventually(func() error { return k8s.Get(ctx, client.ObjectKeyFromObject(certificate), certificate) }).Should(Succeed())
	create(tlsSecret(namespace, "production-tls", 1000*time.Hour, "production."+namespace+".svc", "mq.example.com"))
	becomeReady(objects)
	var service corev1.Service
	Expect(k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "production"}, &service)).To(Succeed())
	Expect(service.Spec.Type).To(Equal(corev1.ServiceTypeLoadBalancer))
}
