// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

// Package namespaced runs the operator of config/default, installed like a user would, with the permissions of
// that installation: in its own namespace and in one other namespace only.
package namespaced

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/controllers/brokercluster"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/connect"
	"posthorn.io/posthorn/internal/setup"
	"posthorn.io/posthorn/test/envtest/apiserver"
)

const (
	home      = "posthorn-system"
	second    = "staging"
	elsewhere = "default"
	// deadline of every wait.
	deadline = 2 * time.Minute
	poll     = 100 * time.Millisecond
)

// refusals records requests that the API server refused because of a missing permission.
type refusals struct {
	next http.RoundTripper
	mu   sync.Mutex
	list []string
}

func (r *refusals) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := r.next.RoundTrip(request)
	if err == nil && response.StatusCode == http.StatusForbidden {
		r.mu.Lock()
		r.list = append(r.list, request.Method+" "+request.URL.Path)
		r.mu.Unlock()
	}
	return response, err
}

func (r *refusals) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.list...)
}

// start returns a client with all permissions, and the refusals of the operator.
func start(ctx context.Context, t *testing.T) (client.Client, *refusals) {
	t.Helper()
	server := apiserver.New()
	config, err := apiserver.Start(server)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	apply(t, server.KubeConfig, filepath.Join("..", "..", "..", "config", "default"))
	scheme, err := setup.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	k8s, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	served(ctx, t, k8s)
	if err := k8s.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: second}}); err != nil {
		t.Fatal(err)
	}
	apply(t, server.KubeConfig, filepath.Join("..", "..", "..", "config", "watched-namespace"))
	if err := apiserver.AwaitRights(ctx, k8s, home, "posthorn-operator"); err != nil {
		t.Fatal(err)
	}
	refused := &refusals{}
	restricted := rest.CopyConfig(config)
	restricted.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + home + ":posthorn-operator",
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + home, "system:authenticated"},
	}
	restricted.Wrap(func(next http.RoundTripper) http.RoundTripper {
		refused.next = next
		return refused
	})
	cacheOptions, clientOptions := setup.Cache(home, second)
	mgr, err := ctrl.NewManager(restricted, ctrl.Options{
		Scheme: scheme, Cache: cacheOptions, Client: clientOptions, Metrics: metricsserver.Options{BindAddress: "0"},
		LeaderElection: true, LeaderElectionID: "posthorn-operator", LeaderElectionNamespace: home,
		LeaseDuration: new(apiserver.LeaseDuration), RenewDeadline: new(apiserver.RenewDeadline), RetryPeriod: new(apiserver.RetryPeriod),
	})
	if err != nil {
		t.Fatal(err)
	}
	err = setup.Controllers(mgr, setup.Config{
		Resync: time.Second, ForgetBound: time.Second, ImageRepository: "example.test/posthorn", DefaultImage: "example.test/posthorn:1",
		Resolver: connect.DNS{}, Transport: broker.NewTransport(), Now: time.Now, DefaultProtocols: brokercluster.DefaultProtocols(), OperatorNamespace: home,
	})
	if err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(running) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return k8s, refused
}

// served waits until the installed kinds can be used.
func served(ctx context.Context, t *testing.T, k8s client.Client) {
	t.Helper()
	for _, list := range []client.ObjectList{
		&posthornv1.BrokerClusterList{}, &posthornv1.QueueList{}, &posthornv1.PolicyList{}, &posthornv1.UserList{}, &posthornv1.VhostList{},
		&posthornv1.ExchangeList{}, &posthornv1.BindingList{}, &posthornv1.PermissionList{}, &posthornv1.TopicPermissionList{},
		&posthornv1.SuperStreamList{},
	} {
		await(ctx, t, fmt.Sprintf("%T is served", list), func() bool { return k8s.List(ctx, list) == nil })
	}
}

// apply applies a folder with kubectl.
func apply(t *testing.T, kubeconfig []byte, folder string) {
	t.Helper()
	config := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(config, kubeconfig, 0o600); err != nil {
		t.Fatal(err)
	}
	kubectl := filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kubectl")
	command := exec.Command(kubectl, "--kubeconfig", config, "apply", "-k", folder)
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
}

func newCluster(namespace string) *posthornv1.BrokerCluster {
	return &posthornv1.BrokerCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "c"},
		Spec: posthornv1.BrokerClusterSpec{
			Replicas: 1, Storage: posthornv1.StorageSpec{Size: resource.MustParse("1Gi")},
			TLS: &posthornv1.TLSSpec{}, NetworkPolicy: posthornv1.NetworkPolicySpec{Mode: posthornv1.NetworkPolicyStrict},
		},
	}
}

func TestNamespacedOperatorUsesOnlyItsNamespaces(t *testing.T) {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		if testing.Short() {
			t.Skip("needs an API server")
		}
		t.Fatal("set KUBEBUILDER_ASSETS to a directory with kube-apiserver, etcd and kubectl, or leave this out with -short")
	}
	ctrl.SetLogger(zap.New(zap.WriteTo(testWriter{t})))
	ctx, cancel := context.WithTimeout(context.Background(), 4*deadline)
	defer cancel()
	k8s, refused := start(ctx, t)

	foreign := newCluster(elsewhere)
	if err := k8s.Create(ctx, foreign); err != nil {
		t.Fatal(err)
	}
	for _, namespace := range []string{home, second} {
		cluster := newCluster(namespace)
		queue := &posthornv1.Queue{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "q"}, Spec: posthornv1.QueueSpec{ClusterRef: posthornv1.ClusterReference{Name: "c"}}}
		for _, object := range []client.Object{cluster, queue} {
			if err := k8s.Create(ctx, object); err != nil {
				t.Fatal(err)
			}
		}
		// A reconciliation that could not create a child ends with Progressing False.
		await(ctx, t, "the cluster in "+namespace+" has all its children and waits for its node", func() bool {
			condition := meta.FindStatusCondition(get(ctx, t, k8s, cluster).Status.Conditions, posthornv1.ConditionProgressing)
			return condition != nil && condition.Status == metav1.ConditionTrue && condition.Reason == "Creating"
		})
		await(ctx, t, "the queue in "+namespace+" waits for the cluster", func() bool {
			return len(get(ctx, t, k8s, queue).Finalizers) == 1
		})
	}
	if status := get(ctx, t, k8s, foreign).Status; status.ObservedGeneration != 0 {
		t.Errorf("a cluster in another namespace was looked at: %+v", status)
	}
	var services corev1.ServiceList
	if err := k8s.List(ctx, &services, client.InNamespace(elsewhere), client.MatchingLabels{"app.kubernetes.io/name": "posthorn"}); err != nil || len(services.Items) > 0 {
		t.Errorf("in another namespace: %v %v", services.Items, err)
	}
	for _, request := range refused.all() {
		// Namespaces are cluster-scoped: an operator that cannot read them has no tenants.
		if !strings.HasPrefix(request, "GET /api/v1/namespaces/") || strings.Count(request, "/") > 4 {
			t.Errorf("the role lacks %s", request)
		}
	}
}

func get[T client.Object](ctx context.Context, t *testing.T, k8s client.Client, object T) T {
	t.Helper()
	if err := k8s.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
		t.Fatal(err)
	}
	return object
}

func await(ctx context.Context, t *testing.T, what string, done func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(ctx, poll, deadline, true, func(context.Context) (bool, error) { return done(), nil })
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// testWriter writes the log to the test.
type testWriter struct{ t *testing.T }

func (w testWriter) Write(line []byte) (int, error) {
	w.t.Logf("%s", strings.TrimSuffix(string(line), "\n"))
	return len(line), nil
}
