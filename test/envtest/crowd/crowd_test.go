// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

// Package crowd restarts the operator of a cluster with very many Queue objects.
package crowd

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
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
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/controllers/brokercluster"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/broker/brokertest"
	"posthorn.io/posthorn/internal/connect"
	"posthorn.io/posthorn/internal/names"
	"posthorn.io/posthorn/internal/setup"
	"posthorn.io/posthorn/test/envtest/apiserver"
)

const (
	namespace = "default"
	// usual number of objects; POSTHORN_QUEUES sets another one for measurements.
	usual = 400
	// writers create the objects.
	writers = 8
	// patience is exceeded only by a failing test.
	patience = 30 * time.Minute
	poll     = 100 * time.Millisecond
	// behind is the number of queues in a broker whose reads lag, and lag is by how much.
	behind = 800
	lag    = 4 * time.Second
	// maxDeclarations is how often one queue may be declared while it is not visible.
	maxDeclarations = 8
	// resync of a real operator: anything that happens earlier did not wait for it.
	resync = time.Minute
)

// crowd is an API server, a broker and a client with all permissions.
type crowd struct {
	config *rest.Config
	k8s    client.Client
	broker *brokertest.Server
	size   int
}

// Every cluster resolves to the one fake broker. A paused cluster has no certificate for the operator.
func (c *crowd) ClusterURL(client.ObjectKey, connect.Listener) string { return c.broker.URL() }
func (c *crowd) NodeURL(_ client.ObjectKey, node string, _ connect.Listener) string {
	return c.broker.NodeURL(node)
}

// writes records an operator's writes about the Queues that existed before it started.
type writes struct {
	next  http.RoundTripper
	count atomic.Int64

	mu sync.Mutex
	// byReason counts the written states of Ready; stalled has those with the condition Stalled.
	byReason map[string]int
	stalled  []string
}

func (w *writes) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Method == http.MethodGet || !strings.Contains(request.URL.Path, "/queues/q") {
		return w.next.RoundTrip(request)
	}
	w.count.Add(1)
	if strings.HasSuffix(request.URL.Path, "/status") {
		body, err := io.ReadAll(request.Body)
		if err != nil {
			return nil, err
		}
		request = request.Clone(request.Context())
		request.Body = io.NopCloser(bytes.NewReader(body))
		if err := w.record(request.URL.Path, body); err != nil {
			return nil, err
		}
	}
	return w.next.RoundTrip(request)
}

// record records the conditions of a patch.
func (w *writes) record(path string, patch []byte) error {
	var object struct {
		Status struct {
			Conditions []metav1.Condition `json:"conditions"`
		} `json:"status"`
	}
	if err := json.Unmarshal(patch, &object); err != nil {
		return fmt.Errorf("the patch of %s: %w", path, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if ready := meta.FindStatusCondition(object.Status.Conditions, posthornv1.ConditionReady); ready != nil {
		w.byReason[ready.Reason]++
	}
	if stalled := meta.FindStatusCondition(object.Status.Conditions, posthornv1.ConditionStalled); stalled != nil {
		w.stalled = append(w.stalled, path+" "+stalled.Reason+": "+stalled.Message)
	}
	return nil
}

func start(ctx context.Context, t *testing.T) *crowd {
	t.Helper()
	c := &crowd{size: usual}
	if given := os.Getenv("POSTHORN_QUEUES"); given != "" {
		var err error
		if c.size, err = strconv.Atoi(given); err != nil || c.size < 1 {
			t.Fatalf("POSTHORN_QUEUES: %q is no number of objects", given)
		}
	}
	server := apiserver.New(filepath.Join("..", "..", "..", "config", "crd", "bases"))
	var err error
	if c.config, err = apiserver.Start(server); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	scheme, err := setup.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	if c.k8s, err = client.New(c.config, client.Options{Scheme: scheme}); err != nil {
		t.Fatal(err)
	}
	// The operator creates these Secrets of a new cluster only when they do not exist.
	c.broker = brokertest.Start("admin", "secret")
	t.Cleanup(c.broker.Close)
	c.broker.SetNode("c-0", true)
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: names.OperatorSecret("c")},
		Data:       map[string][]byte{"username": []byte("admin"), "password": []byte("secret")},
	}
	// It is paused, because the test is about its queues.
	cluster := &posthornv1.BrokerCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "c"},
		Spec:       posthornv1.BrokerClusterSpec{Replicas: 1, Paused: true, Storage: posthornv1.StorageSpec{Size: resource.MustParse("1Gi")}},
	}
	for _, object := range []client.Object{secret, cluster} {
		if err := c.k8s.Create(ctx, object); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// operator runs an operator until it is stopped, like the program.
func (c *crowd) operator(ctx context.Context, t *testing.T) (counted *writes, stop func()) {
	t.Helper()
	counted = &writes{byReason: map[string]int{}}
	config := rest.CopyConfig(c.config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		counted.next = next
		return counted
	})
	cacheOptions, clientOptions := setup.Cache()
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: c.k8s.Scheme(), Cache: cacheOptions, Client: clientOptions, Metrics: metricsserver.Options{BindAddress: "0"},
		// This process runs several operators one after the other.
		Controller: ctrlconfig.Controller{SkipNameValidation: new(true)},
	})
	if err != nil {
		t.Fatal(err)
	}
	err = setup.Controllers(mgr, setup.Config{
		Resync: resync, ForgetBound: time.Minute, DefaultImage: "example.test/posthorn:1.0.0",
		Resolver: c, Transport: broker.NewTransport(), Now: time.Now, DefaultProtocols: brokercluster.DefaultProtocols(),
	})
	if err != nil {
		t.Fatal(err)
	}
	running, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(running) }()
	if !mgr.GetCache().WaitForCacheSync(running) {
		t.Fatal("the operator's cache did not fill")
	}
	return counted, sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func queue(name string) *posthornv1.Queue {
	return &posthornv1.Queue{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       posthornv1.QueueSpec{ClusterRef: posthornv1.ClusterReference{Name: "c"}},
	}
}

func (c *crowd) create(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	if err := c.k8s.Create(ctx, queue(name)); err != nil {
		t.Error(err)
	}
}

// createAll creates all objects but the late one.
func (c *crowd) createAll(ctx context.Context, t *testing.T) {
	t.Helper()
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for i := w; i < c.size; i += writers {
				c.create(ctx, t, fmt.Sprintf("q%05d", i))
			}
		})
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// ready counts the ready objects.
func (c *crowd) ready(ctx context.Context, t *testing.T) int {
	t.Helper()
	var list posthornv1.QueueList
	if err := c.k8s.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		t.Fatal(err)
	}
	count := 0
	for i := range list.Items {
		if meta.IsStatusConditionTrue(list.Items[i].Status.Conditions, posthornv1.ConditionReady) {
			count++
		}
	}
	return count
}

func await(ctx context.Context, t *testing.T, what string, interval time.Duration, done func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	err := wait.PollUntilContextTimeout(ctx, interval, patience, true, func(context.Context) (bool, error) { return done(), nil })
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	return time.Since(began)
}

// looked returns the number of queues that the operator has queried since a number of calls, and the most queries of
// one queue.
func (c *crowd) looked(since int) (different, most int) {
	times := map[string]int{}
	for _, call := range c.broker.Calls("/api/queues/", http.MethodGet)[since:] {
		times[call.Path]++
		most = max(most, times[call.Path])
	}
	return len(times), most
}

// needAPIServer skips or fails a test that has no API server.
func needAPIServer(t *testing.T) {
	t.Helper()
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		if testing.Short() {
			t.Skip("needs an API server")
		}
		t.Fatal("set KUBEBUILDER_ASSETS to a directory with kube-apiserver and etcd, or leave this out with -short")
	}
	ctrl.SetLogger(zap.New(zap.WriteTo(os.Stderr)))
}

// TestQueuesThatReadsMissAreNotRefused creates many queues in a broker whose reads do not show a new queue for some
// seconds. kstatus takes Stalled for a failure, after which Flux and Argo CD give up.
func TestQueuesThatReadsMissAreNotRefused(t *testing.T) {
	needAPIServer(t)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c := start(ctx, t)
	c.size = max(c.size, behind)
	c.broker.LagReads("/api/queues/", lag)
	seen, stop := c.operator(ctx, t)
	defer stop()
	c.createAll(ctx, t)
	all := await(ctx, t, "all are ready", time.Second, func() bool { return c.ready(ctx, t) == c.size })
	declared := len(c.broker.Calls("/api/queues/", http.MethodPut))
	t.Logf("%d objects, each invisible for %s: all ready %.1f s after the last was created, %d requests to declare them", c.size, lag, all.Seconds(), declared)
	seen.mu.Lock()
	defer seen.mu.Unlock()
	t.Logf("reasons of Ready: %v", seen.byReason)
	if len(seen.stalled) > 0 {
		t.Errorf("%d states were Stalled, for example %s", len(seen.stalled), seen.stalled[0])
	}
	if seen.byReason["ChangePending"] == 0 {
		t.Error("no queue waited for its declaration to become visible, so the test proves nothing")
	}
	if most := c.size * maxDeclarations; declared > most {
		t.Errorf("%d requests to declare %d queues, at most %d expected", declared, c.size, most)
	}
}

// TestNewQueueOvertakesTheResync restarts the operator, which then reconciles every object, and creates another one,
// which must come first. The reconciliations write nothing and happen once.
func TestNewQueueOvertakesTheResync(t *testing.T) {
	needAPIServer(t)
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	c := start(ctx, t)

	_, stop := c.operator(ctx, t)
	defer stop()
	began := time.Now()
	c.createAll(ctx, t)
	// Listing them all is work too, which must not be part of the measurement.
	await(ctx, t, "all are ready", time.Duration(c.size)*time.Millisecond, func() bool { return c.ready(ctx, t) == c.size })
	t.Logf("%d objects: made and ready %.1f s after the first", c.size, time.Since(began).Seconds())
	stop()

	before := len(c.broker.Calls("/api/queues/", http.MethodGet))
	began = time.Now()
	counted, stopAgain := c.operator(ctx, t)
	defer stopAgain()
	t.Logf("the operator is there again, and knows all, after %.1f s", time.Since(began).Seconds())
	c.create(ctx, t, "late")
	late := queue("late")
	took := await(ctx, t, "the late one is ready", poll, func() bool {
		return c.k8s.Get(ctx, client.ObjectKeyFromObject(late), late) == nil && meta.IsStatusConditionTrue(late.Status.Conditions, posthornv1.ConditionReady)
	})
	atOnce, _ := c.looked(before)
	t.Logf("an object made then was ready %.1f s later, when %d of the others had been looked at", took.Seconds(), atOnce-1)

	whole := await(ctx, t, "all are looked at", poll, func() bool { n, _ := c.looked(before); return n == c.size+1 })
	t.Logf("all had been looked at %.1f s after that", whole.Seconds())
	if n := counted.count.Load(); n != 0 {
		t.Errorf("looking at objects with which all is well wrote %d times", n)
	}
	// Once for the object, once for its cluster, and once in each later round.
	rounds := 2 + int(time.Since(began)/(resync*4/5))
	if _, most := c.looked(before); most > rounds {
		t.Errorf("one queue was looked at %d times where %d are enough", most, rounds)
	}
}
