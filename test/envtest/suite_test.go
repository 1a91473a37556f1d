// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

// Package envtest runs the operator against a real API server, with a fake broker and a fake StatefulSet controller
// and kubelet.
package envtest

import (
	"context"
	"crypto/tls"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"posthorn.io/posthorn/controllers/brokercluster"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/broker/brokertest"
	"posthorn.io/posthorn/internal/setup"
	"posthorn.io/posthorn/test/envtest/apiserver"
)

var (
	ctx context.Context
	k8s client.Client
	// apiConfig is an administrator's access to the API server.
	apiConfig *rest.Config
	// kubeconfig of an administrator, for programs that the specs run.
	kubeconfig []byte
	brokers    = &registry{servers: map[client.ObjectKey]*brokertest.Server{}, held: map[client.ObjectKey]*tls.Certificate{}}
)

// patience is how long a spec waits for a condition. Only a failing spec exceeds it: a busy machine needs many times
// the time of an idle one.
const patience = 2 * time.Minute

// Times of the operator under test, short enough to observe drift and bounds.
const (
	resync      = 250 * time.Millisecond
	forgetBound = 2 * time.Second
)

func TestOperator(t *testing.T) {
	switch {
	case os.Getenv("KUBEBUILDER_ASSETS") != "":
	case testing.Short():
		t.Skip("needs an API server")
	default:
		t.Fatal("set KUBEBUILDER_ASSETS to a directory with kube-apiserver and etcd, or leave this suite out with -short")
	}
	RegisterFailHandler(Fail)
	SetDefaultEventuallyTimeout(patience)
	SetDefaultEventuallyPollingInterval(50 * time.Millisecond)
	SetDefaultConsistentlyDuration(3 * resync)
	RunSpecs(t, "operator")
}

var _ = BeforeSuite(func() {
	ctrl.SetLogger(zap.New(zap.WriteTo(GinkgoWriter), zap.UseDevMode(true)))
	var cancel context.CancelFunc
	ctx, cancel = context.WithCancel(context.Background())
	server := apiserver.New(filepath.Join("..", "..", "config", "crd", "bases"))
	config, err := apiserver.Start(server)
	Expect(err).NotTo(HaveOccurred())
	administrator, err := server.AddUser(envtest.User{Name: "administrator", Groups: []string{"system:masters"}}, nil)
	Expect(err).NotTo(HaveOccurred())
	kubeconfig, err = administrator.KubeConfig()
	Expect(err).NotTo(HaveOccurred())
	scheme, err := setup.Scheme()
	Expect(err).NotTo(HaveOccurred())
	k8s, err = client.New(config, client.Options{Scheme: scheme})
	Expect(err).NotTo(HaveOccurred())
	apiConfig = config

	applyManifests(filepath.Join("..", "..", "config", "manager", "namespace.yaml"))
	for _, file := range []string{"service_account.yaml", "role.yaml", "role_binding.yaml", "leader_election_role.yaml", "user_roles.yaml"} {
		applyManifests(filepath.Join("..", "..", "config", "rbac", file))
	}
	for _, file := range []string{"configuration.yaml", "policies.yaml", "queues.yaml"} {
		applyManifests(filepath.Join("..", "..", "config", "admission", file))
	}
	awaitAdmission()
	Expect(apiserver.AwaitRights(ctx, k8s, "posthorn-system", "posthorn-operator")).To(Succeed())
	// The operator under test has exactly the permissions of its role; the fake controllers have all.
	restricted := rest.CopyConfig(config)
	restricted.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:posthorn-system:posthorn-operator",
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:posthorn-system", "system:authenticated"},
	}
	restricted.Wrap(asked.wrap)
	cacheOptions, clientOptions := setup.Cache()
	mgr, err := ctrl.NewManager(restricted, ctrl.Options{
		Scheme: scheme, Cache: cacheOptions, Client: clientOptions, Metrics: metricsserver.Options{BindAddress: "0"},
		LeaderElection: true, LeaderElectionID: "posthorn-operator", LeaderElectionNamespace: "posthorn-system",
		LeaseDuration: new(apiserver.LeaseDuration), RenewDeadline: new(apiserver.RenewDeadline), RetryPeriod: new(apiserver.RetryPeriod),
	})
	Expect(err).NotTo(HaveOccurred())
	others, err := ctrl.NewManager(config, ctrl.Options{Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"}})
	Expect(err).NotTo(HaveOccurred())
	Expect(setup.Controllers(mgr, setup.Config{
		Resync: resync, WatchNamespaces: true, ForgetBound: forgetBound, ImageRepository: "example.test/posthorn", DefaultImage: "example.test/posthorn:1.0.0",
		Resolver: brokers, Transport: broker.NewTransport(), Now: time.Now, DefaultProtocols: brokercluster.DefaultProtocols(), OperatorNamespace: "posthorn-system",
	})).To(Succeed())
	brokers.pods = others.GetClient()
	Expect((&kubelets{client: others.GetClient(), live: others.GetAPIReader()}).setup(others)).To(Succeed())
	ended := make(chan error, 2)
	go func() { ended <- mgr.Start(ctx) }()
	go func() { ended <- others.Start(ctx) }()
	DeferCleanup(func() {
		cancel()
		Eventually(ended).Should(Receive(BeNil()))
		Eventually(ended).Should(Receive(BeNil()))
		brokers.closeAll()
		Expect(os.RemoveAll(builtPlugin)).To(Succeed())
		Expect(server.Stop()).To(Succeed())
	})
})
