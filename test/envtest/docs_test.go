// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package envtest

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/names"
)

var shellBlock = regexp.MustCompile("(?s)```sh\n(.*?)```")

// startBrokersOf gives every cluster that appears in a namespace its broker, until it is stopped.
func startBrokersOf(namespace string) (stop func()) {
	running, cancel := context.WithCancel(ctx)
	var ended sync.WaitGroup
	ended.Go(func() {
		_ = wait.PollUntilContextCancel(running, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
			var list posthornv1.BrokerClusterList
			if err := k8s.List(ctx, &list, client.InNamespace(namespace)); err != nil {
				return false, nil
			}
			for i := range list.Items {
				cluster := client.ObjectKeyFromObject(&list.Items[i])
				var secret corev1.Secret
				key := client.ObjectKey{Namespace: namespace, Name: names.DefaultUserSecret(cluster.Name)}
				if brokers.get(cluster) == nil && k8s.Get(ctx, key, &secret) == nil {
					registerBroker(cluster, &secret, list.Items[i].Spec.Replicas, "1.0.0")
				}
			}
			return false, nil
		})
	})
	return func() { cancel(); ended.Wait() }
}

var _ = Describe("the user's guide", func() {
	DescribeTable("has commands that work", func(name string, changes ...func(*posthornv1.BrokerCluster)) {
		kubectl := filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kubectl")
		if _, err := os.Stat(kubectl); err != nil {
			Skip("there is no kubectl beside the API server")
		}
		text, err := os.ReadFile(filepath.Join("..", "..", "docs", name))
		Expect(err).NotTo(HaveOccurred())
		blocks := shellBlock.FindAllSubmatch(text, -1)
		Expect(blocks).NotTo(BeEmpty())
		w := newWorld(changes...)
		w.readyWorld()
		stop := startBrokersOf(w.namespace)
		defer stop()
		config := filepath.Join(GinkgoT().TempDir(), "kubeconfig")
		Expect(os.WriteFile(config, kubeconfig, 0o600)).To(Succeed())
		// One shell for the whole page, as a reader has.
		page := "kubectl config set-context --current --namespace " + w.namespace + "\n"
		for _, block := range blocks {
			page += string(block[1])
		}
		script := exec.Command("bash", "-euxc", page)
		script.Dir = filepath.Join("..", "..")
		script.Env = append(os.Environ(), "KUBECONFIG="+config, "PATH="+filepath.Dir(kubectl)+":"+os.Getenv("PATH"))
		output, err := script.CombinedOutput()
		Expect(err).NotTo(HaveOccurred(), "%s", output)
	},
		Entry("install", "install.md"),
		Entry("first cluster", "first-cluster.md"),
		Entry("rotating", "rotating.md"),
		Entry("recovering", "recovering.md"),
		Entry("bootstrap", "bootstrap.md"),
		Entry("scaling", "scaling.md"),
		Entry("upgrading", "upgrading.md"),
		Entry("tenants", "tenants.md"),
		Entry("TLS", "tls-on-kubernetes.md"),
		Entry("MQTT", "mqtt-on-kubernetes.md"),
		Entry("monitoring", "monitoring-on-kubernetes.md"),
		Entry("sleep and space", "sleep-and-space.md", func(c *posthornv1.BrokerCluster) { c.Spec.Replicas = 3 }),
	)
})
