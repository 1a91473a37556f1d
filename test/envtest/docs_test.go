// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package envtest

import (
	"context"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
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

var (
	shellBlock = regexp.MustCompile("(?s)```sh\n(.*?)```")
	// fence starts a block; the text after it is the kind of the block.
	fence = regexp.MustCompile("(?m)^```(.+)$")
	// anyBlock and inline match the places of commands.
	anyBlock = regexp.MustCompile("(?ms)^```.*?^```$|^    .*?$")
	inline   = regexp.MustCompile("`((?:kubectl|helm) [^`\n]+)`")
)

// threeNodes is the cluster of a page that mentions the third node.
func threeNodes(c *posthornv1.BrokerCluster) { c.Spec.Replicas = 3 }

// guides are the pages whose commands are run from the first to the last, each in a world of its own.
var guides = map[string][]func(*posthornv1.BrokerCluster){
	"tutorials/first-cluster.md": nil,
	"how-to/install.md":          nil, "how-to/bootstrap.md": nil, "how-to/recovering.md": nil, "how-to/rotating.md": nil,
	"how-to/scaling.md": nil, "how-to/tenants.md": nil, "how-to/tls-on-kubernetes.md": nil, "how-to/upgrading.md": nil,
	"how-to/mqtt-on-kubernetes.md": nil, "how-to/monitoring-on-kubernetes.md": nil, "how-to/streams-on-kubernetes.md": nil,
	"how-to/kubectl-plugin.md": {threeNodes}, "how-to/external-brokers.md": nil, "how-to/sleep-and-space.md": {threeNodes}, "how-to/troubleshooting.md": nil, "how-to/backup-on-kubernetes.md": nil,
}

// elsewhere are commands in the text of pages, with the test that runs each and a part of that test's source.
var elsewhere = map[string][2]string{
	"kubectl apply -k config/default":                                            {"test/envtest/namespaced/namespaced_test.go", `filepath.Join("..", "..", "..", "config", "default")`},
	"kubectl apply -k config/watched-namespace":                                  {"test/envtest/namespaced/namespaced_test.go", `filepath.Join("..", "..", "..", "config", "watched-namespace")`},
	"kubectl apply -k config/prometheus":                                         {"test/envtest/surroundings_test.go", `"apply", "-k", filepath.Join("..", "..", "config", "prometheus")`},
	`kubectl patch KIND NAME --type=merge -p '{"metadata":{"finalizers":null}}'`: {"test/envtest/docs_test.go", `"patch", "queue", "stuck", "--type=merge"`},
	"kubectl posthorn ui c --open":                                               {"internal/plugin/plugin_test.go", `"ui", "c", "--open"`},
	"kubectl posthorn drain c-1":                                                 {"internal/plugin/plugin_test.go", `"drain", "c-1"`},
	"kubectl posthorn undrain c-1":                                               {"internal/plugin/plugin_test.go", `"undrain", "c-1"`},
	"kubectl posthorn logs c --follow":                                           {"internal/plugin/plugin_test.go", `"logs", "c", "--follow"`},
	"kubectl posthorn ctl c -- list_queues":                                      {"internal/plugin/plugin_test.go", `"ctl", "c", "--", "list_queues"`},
	"kubectl exec c-0 -- /posthorn ctl ping":                                     {"test/e2e/tls_test.go", `"--", "/posthorn", "ctl", "ping"`},
}

// startBrokersOf starts the broker of every cluster that appears in a namespace, until it is stopped.
func startBrokersOf(namespace string) (stop func()) {
	running, cancel := context.WithCancel(ctx)
	var ended sync.WaitGroup
	ended.Go(func() {
		_ = wait.PollUntilContextCancel(running, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
			var list posthornv1.BrokerClusterList
			if err := k8s.List(ctx, &list, client.InNamespace(namespace)); err != nil {
				return false, nil //nolint:nilerr // The next poll lists again.
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
	run := func(name string) {
		kubectl := filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kubectl")
		if _, err := os.Stat(kubectl); err != nil {
			Skip("there is no kubectl beside the API server")
		}
		text, err := os.ReadFile(filepath.Join("..", "..", "docs", name))
		Expect(err).NotTo(HaveOccurred())
		blocks := shellBlock.FindAllSubmatch(text, -1)
		Expect(blocks).NotTo(BeEmpty())
		w := newWorld(guides[name]...)
		w.readyWorld()
		w.reloadable()
		stop := startBrokersOf(w.namespace)
		defer stop()
		config := filepath.Join(GinkgoT().TempDir(), "kubeconfig")
		Expect(os.WriteFile(config, kubeconfig, 0o600)).To(Succeed())
		// One shell for the whole page, like a reader's.
		page := "kubectl config set-context --current --namespace " + w.namespace + "\n"
		for _, block := range blocks {
			page += string(block[1])
		}
		script := exec.Command("bash", "-euxc", page)
		script.Dir = filepath.Join("..", "..")
		path := filepath.Dir(kubectl) + ":" + os.Getenv("PATH")
		if strings.Contains(page, "kubectl posthorn") {
			directory, err := pluginDirectory()
			Expect(err).NotTo(HaveOccurred())
			path = directory + ":" + path
		}
		script.Env = append(os.Environ(), "KUBECONFIG="+config, "PATH="+path)
		output, err := script.CombinedOutput()
		Expect(err).NotTo(HaveOccurred(), "%s", output)
	}
	for _, name := range slices.Sorted(maps.Keys(guides)) {
		It("has commands that work in "+name, func() { run(name) })
	}

	It("has no command that no test runs", func() {
		docs := filepath.Join("..", "..", "docs")
		pages := []string{filepath.Join("..", "..", "README.md")}
		Expect(filepath.WalkDir(docs, func(path string, _ fs.DirEntry, err error) error {
			if filepath.Ext(path) == ".md" {
				pages = append(pages, path)
			}
			return err
		})).To(Succeed())
		found := map[string]bool{}
		for _, page := range pages {
			name, err := filepath.Rel(docs, page)
			Expect(err).NotTo(HaveOccurred())
			name = filepath.ToSlash(name)
			data, err := os.ReadFile(page)
			Expect(err).NotTo(HaveOccurred())
			text := string(data)
			for _, kind := range fence.FindAllStringSubmatch(text, -1) {
				// TestTheCommandsOfTheGuide of test/packaging runs those of Helm.
				Expect(kind[1]).To(BeElementOf("sh", "yaml", "helm"), "a block of %s", name)
			}
			if shellBlock.MatchString(text) {
				Expect(guides).To(HaveKey(name))
			}
			for _, block := range anyBlock.FindAllString(text, -1) {
				if !strings.HasPrefix(block, "```sh") {
					Expect(block).NotTo(MatchRegexp(`(?m)^\s*(\$ )?kubectl [a-z]+ [-a-z]`), "not in a block of sh, in %s", name)
				}
			}
			for _, command := range inline.FindAllStringSubmatch(anyBlock.ReplaceAllString(text, ""), -1) {
				if strings.Contains(strings.TrimPrefix(command[1], "kubectl "), " ") {
					Expect(elsewhere).To(HaveKey(command[1]), "in the text of %s", name)
					found[command[1]] = true
				}
			}
		}
		for command, test := range elsewhere {
			Expect(found).To(HaveKey(command), "no page has it any more")
			text, err := os.ReadFile(filepath.Join("..", "..", test[0]))
			Expect(err).NotTo(HaveOccurred())
			Expect(string(text)).To(ContainSubstring(test[1]), "%s is run by %s", command, test[0])
		}
	})

	It("describes how to delete an object whose finalizer stays", func() {
		w := newWorld()
		w.readyWorld()
		stuck := w.queue("stuck", func(q *posthornv1.Queue) { q.Finalizers = []string{"test.posthorn.io/nobody"} })
		create(stuck)
		Eventually(ready(stuck)).Should(HavePrefix("True"))
		Expect(k8s.Delete(ctx, stuck)).To(Succeed())
		Consistently(gone(stuck)).Should(BeFalse())
		kubectl(w.namespace, "patch", "queue", "stuck", "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
		Eventually(gone(stuck)).Should(BeTrue())
	})
})
