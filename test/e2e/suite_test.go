// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

// Package e2e runs brokers and their clients in real pods on the local cluster (hack/cluster-up), removes nodes, pods
// and disks, and compares the confirmed with the consumed messages.
//
// Run it with hack/e2e, which starts the cluster and installs the operator.
package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"posthorn.io/posthorn/internal/setup"
)

const (
	// namespace of all objects of the suite.
	namespace = "e2e"
	// patience bounds every wait without a bound of its own.
	patience = 90 * time.Second
	polling  = 200 * time.Millisecond
)

// Settings, from hack/e2e.
var (
	root      = filepath.Join("..", "..")
	artifacts = os.Getenv("POSTHORN_E2E_ARTIFACTS")
	image     = setting("POSTHORN_E2E_IMAGE", "posthorn.local/posthorn:dev")
	nextImage = setting("POSTHORN_E2E_NEXT_IMAGE", "posthorn.local/posthorn:next")
	clientImg = setting("POSTHORN_E2E_CLIENT_IMAGE", "posthorn.local/demo-client:dev")
)

var (
	ctx   context.Context
	k8s   client.WithWatch
	logs  *kubernetes.Clientset
	began = time.Now()
)

func setting(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}

// say reports progress at once; a run takes minutes.
func say(format string, args ...any) {
	fmt.Printf("e2e: %4ds  %s\n", int(time.Since(began).Seconds()), fmt.Sprintf(format, args...))
}

func TestEndToEnd(t *testing.T) {
	if os.Getenv("KUBECONFIG") == "" || artifacts == "" {
		t.Skip("hack/e2e runs this: it needs the local cluster with the operator in it")
	}
	RegisterFailHandler(Fail)
	SetDefaultEventuallyTimeout(patience)
	SetDefaultEventuallyPollingInterval(polling)
	RunSpecs(t, "end to end")
}

var _ = BeforeSuite(func() {
	log.SetLogger(zap.New(zap.WriteTo(GinkgoWriter)))
	var cancel context.CancelFunc
	ctx, cancel = context.WithCancel(context.Background())
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	Expect(err).NotTo(HaveOccurred())
	config.QPS, config.Burst = 100, 200
	scheme, err := setup.Scheme()
	Expect(err).NotTo(HaveOccurred())
	k8s, err = client.NewWithWatch(config, client.Options{Scheme: scheme})
	Expect(err).NotTo(HaveOccurred())
	logs, err = kubernetes.NewForConfig(config)
	Expect(err).NotTo(HaveOccurred())
	Expect(os.MkdirAll(artifacts, 0o755)).To(Succeed())
	DeferCleanup(cancel)
	makeNamespace(namespace)
	startRecorder()
	startEventLog()
})

var _ = BeforeEach(func() { say("-- %s", CurrentSpecReport().LeafNodeText) })

var _ = ReportAfterSuite("what was confirmed and consumed", func(report Report) {
	for _, line := range summary {
		fmt.Println("e2e: " + line)
	}
	for _, spec := range report.SpecReports {
		if spec.LeafNodeText != "" {
			fmt.Printf("e2e: %-8s %5.1fs  %s\n", spec.State, spec.RunTime.Seconds(), spec.LeafNodeText)
		}
	}
	fmt.Printf("e2e: %ds all together\n", int(time.Since(began).Seconds()))
})
