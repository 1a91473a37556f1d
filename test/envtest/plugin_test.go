// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package envtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/plugin"
)

// builtPlugin is the directory of kubectl-posthorn; empty until a spec has needed it. The suite removes it.
var builtPlugin string

// pluginDirectory builds kubectl-posthorn, once, and returns its directory.
var pluginDirectory = sync.OnceValues(func() (string, error) {
	directory, err := os.MkdirTemp("", "posthorn-plugin")
	if err != nil {
		return "", err
	}
	builtPlugin = directory
	command := exec.Command("go", "build", "-o", filepath.Join(directory, "kubectl-posthorn"), "./cmd/kubectl-posthorn")
	command.Dir = filepath.Join("..", "..")
	if output, err := command.CombinedOutput(); err != nil {
		return "", errors.New(string(output))
	}
	return directory, nil
})

// forwards takes the place of the kubelets: ports lead to the fake broker.
type forwards struct{ w *world }

func (f forwards) Forward(_ context.Context, _, pod string, _, _ int) (*plugin.Tunnel, error) {
	return &plugin.Tunnel{URL: f.w.broker.NodeURL(pod), Close: func() {}}, nil
}

func (f forwards) Execute(context.Context, string, string, []string, plugin.Streams) error {
	return errors.New("there is no kubelet")
}

func (f forwards) Logs(context.Context, string, string, corev1.PodLogOptions) (io.ReadCloser, error) {
	return nil, errors.New("there is no kubelet")
}

// runPlugin runs a command of kubectl posthorn and returns its output.
func (w *world) runPlugin(args ...string) (string, error) {
	var out bytes.Buffer
	command := plugin.NewCommand(func(plugin.Options) (*plugin.Session, error) {
		return &plugin.Session{
			Client: k8s, Pods: forwards{w}, Namespace: w.namespace, Transport: http.DefaultTransport, Poll: 50 * time.Millisecond,
		}, nil
	}, plugin.Streams{In: strings.NewReader(""), Out: &out, Err: &out})
	command.SetArgs(args)
	err := command.ExecuteContext(ctx)
	return out.String(), err
}

var _ = Describe("kubectl posthorn", func() {
	It("shows nodes, leaders, alarms and unavailable queues, and what a roll waits for", func() {
		w := newWorld()
		w.readyWorld()
		w.broker.SetAlarms("c-2", true, false)
		w.broker.SetQueue(broker.Queue{Name: "q", Vhost: "/", Type: "quorum", State: "down", Members: []string{"c-0", "c-1", "c-2"}})
		out, err := w.runPlugin("status")
		Expect(err).NotTo(HaveOccurred())
		Expect(out).To(And(ContainSubstring("Cluster c in namespace "+w.namespace+": Ready, 3 of 3 nodes ready"), ContainSubstring("The operator waits for nothing."),
			MatchRegexp(`(?m)^c-2 +Running .* memory`), ContainSubstring("1 queues are not available"), MatchRegexp(`(?m)^/ +q +quorum +down +c-0, c-1, c-2$`)))

		w.broker.SetCritical("c-1", broker.QueueRef{Name: "q1", Vhost: "/", Type: "quorum"})
		w.requestRestart("c-1")
		Eventually(w.rollout).Should(Equal("QuorumCritical c-1"))
		out, err = w.runPlugin("status", "c", "--output", "json")
		Expect(err).NotTo(HaveOccurred())
		var report plugin.Report
		Expect(json.Unmarshal([]byte(out), &report)).To(Succeed())
		Expect(report.Waits).To(HaveLen(1))
		Expect(report.Waits[0].For).To(Equal("c-1"))
		Expect(report.Waits[0].Queues).To(Equal([]string{"/q1"}))
		w.broker.SetCritical("c-1")
		w.readyWorld()
	})

	It("restarts one node, and all nodes one by one", func() {
		w := newWorld()
		w.readyWorld()
		before := w.uidsOf("c-0", "c-1", "c-2")
		_, err := w.runPlugin("restart", "c-1", "--wait", "--timeout", "2m")
		Expect(err).NotTo(HaveOccurred())
		Expect(w.uidsOf("c-0", "c-2")).To(Equal(map[string]types.UID{"c-0": before["c-0"], "c-2": before["c-2"]}))
		Expect(w.uidsOf("c-1")["c-1"]).NotTo(Equal(before["c-1"]))
		between := w.uidsOf("c-0", "c-1", "c-2")
		out, err := w.runPlugin("restart", "c", "--wait", "--timeout", "2m")
		Expect(err).NotTo(HaveOccurred())
		Expect(out).To(ContainSubstring("cluster c: restarted 3 nodes"))
		for name, uid := range w.uidsOf("c-0", "c-1", "c-2") {
			Expect(uid).NotTo(Equal(between[name]), name)
		}
	})

	It("drains a node, which the operator leaves drained, and ends the drain", func() {
		w := newWorld()
		w.readyWorld()
		_, err := w.runPlugin("drain", "c-1", "--timeout", "2m")
		Expect(err).NotTo(HaveOccurred())
		Expect(w.broker.Drained("c-1")).To(BeTrue())
		Consistently(func() bool { return w.broker.Drained("c-1") }).Should(BeTrue(), "the operator ends only its own drains")
		_, err = w.runPlugin("drain", "c-2")
		Expect(err).To(MatchError(ContainSubstring("node c-1 is drained already")))
		_, err = w.runPlugin("undrain", "c-1")
		Expect(err).NotTo(HaveOccurred())
		Expect(w.broker.Drained("c-1")).To(BeFalse())
	})

	It("pauses a cluster, refuses to restart it, and resumes it", func() {
		w := newWorld()
		w.readyWorld()
		_, err := w.runPlugin("pause", "c")
		Expect(err).NotTo(HaveOccurred())
		Eventually(conditionOf(w.cluster(), posthornv1.ConditionPaused)).Should(HavePrefix("True"))
		_, err = w.runPlugin("restart", "c")
		Expect(err).To(MatchError(ContainSubstring("cluster c is paused")))
		_, err = w.runPlugin("resume", "c")
		Expect(err).NotTo(HaveOccurred())
		Eventually(conditionOf(w.cluster(), posthornv1.ConditionPaused)).Should(HavePrefix("False"))
	})

	It("names the right that a user lacks", func() {
		w := newWorld()
		w.readyWorld()
		directory, err := pluginDirectory()
		Expect(err).NotTo(HaveOccurred())
		config := filepath.Join(GinkgoT().TempDir(), "kubeconfig")
		Expect(os.WriteFile(config, kubeconfig, 0o600)).To(Succeed())
		run := func(args ...string) string {
			command := exec.CommandContext(ctx, filepath.Join(directory, "kubectl-posthorn"), append(args, "--kubeconfig", config, "--namespace", w.namespace)...)
			output, _ := command.CombinedOutput()
			return string(output)
		}
		Expect(run("status", "c", "--as", "nobody")).To(ContainSubstring("you lack the right to get brokerclusters.posthorn.io; ask an administrator for it, and check it with: kubectl auth can-i get brokerclusters.posthorn.io/c --namespace " + w.namespace))
		Expect(run("drain", "c-1", "--as", "nobody")).To(ContainSubstring("you lack the right to get pods"))
		Expect(run("status", "d")).To(Equal("error: namespace " + w.namespace + " has no BrokerCluster d; it has: c\n"))
		// No kubelet serves the pods of this suite; the rest of the status needs none.
		Expect(run("status", "c")).To(And(ContainSubstring("3 of 3 nodes ready"), ContainSubstring("Leaders, alarms and queues are unknown: forwarding a port to node c-0")))
	})
})
