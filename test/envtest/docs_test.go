// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package envtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

var shellBlock = regexp.MustCompile("(?s)```sh\n(.*?)```")

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
		config := filepath.Join(GinkgoT().TempDir(), "kubeconfig")
		Expect(os.WriteFile(config, kubeconfig, 0o600)).To(Succeed())
		// One shell for the whole page, as a reader has.
		page := "kubectl() { command kubectl --namespace " + w.namespace + " \"$@\"; }\n"
		for _, block := range blocks {
			page += string(block[1])
		}
		script := exec.Command("bash", "-euxc", page)
		script.Env = append(os.Environ(), "KUBECONFIG="+config, "PATH="+filepath.Dir(kubectl)+":"+os.Getenv("PATH"))
		output, err := script.CombinedOutput()
		Expect(err).NotTo(HaveOccurred(), "%s", output)
	},
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
