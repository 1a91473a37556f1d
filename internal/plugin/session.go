// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/names"
)

// Options select the Kubernetes cluster, the namespace and the user.
type Options struct {
	Kubeconfig, Context, Namespace, As string
	AsGroups                           []string
}

// Session is the access of a command to a Kubernetes cluster.
type Session struct {
	// Client reads and changes objects.
	Client client.Client
	// Pods connects to pods.
	Pods PodAccess
	// Namespace of the objects.
	Namespace string
	// Transport of requests to brokers.
	Transport http.RoundTripper
	// OpenBrowser opens an address in the browser.
	OpenBrowser func(address string) error
	// Poll is the interval at which the commands look again for a condition.
	Poll time.Duration
}

// pollInterval of commands that wait.
const pollInterval = time.Second

// Connect opens a session with the Kubernetes cluster that the kubeconfig and the options select. It sends nothing yet.
func Connect(options Options) (*Session, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = options.Kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: options.Context}
	overrides.Context.Namespace = options.Namespace
	overrides.AuthInfo.Impersonate, overrides.AuthInfo.ImpersonateGroups = options.As, options.AsGroups
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
	config, err := loader.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig: %w; name it with --kubeconfig or KUBECONFIG, and its context with --context", err)
	}
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, fmt.Errorf("reading the namespace of the kubeconfig: %w", err)
	}
	return newSession(config, namespace)
}

// newSession opens a session with a configuration.
func newSession(config *rest.Config, namespace string) (*Session, error) {
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	objects, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("connecting to the API server %s: %w", config.Host, err)
	}
	set, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("connecting to the API server %s: %w", config.Host, err)
	}
	return &Session{
		Client: objects, Pods: &apiPods{config: config, core: set.CoreV1()}, Namespace: namespace,
		Transport: http.DefaultTransport, OpenBrowser: openBrowser, Poll: pollInterval,
	}, nil
}

// newScheme returns the kinds that the commands read and write.
func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, posthornv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("registering the API types: %w", err)
		}
	}
	return scheme, nil
}

// findCluster returns the BrokerCluster with a name, or the only one of the namespace when the name is empty.
func (s *Session) findCluster(ctx context.Context, name string) (*posthornv1.BrokerCluster, error) {
	if name == "" {
		return s.onlyCluster(ctx)
	}
	var cluster posthornv1.BrokerCluster
	err := s.Client.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: name}, &cluster)
	switch {
	case err == nil:
		return &cluster, nil
	case !apierrors.IsNotFound(err):
		return nil, s.explain(err, "reading the BrokerCluster "+name, right{"get", "brokerclusters.posthorn.io", name})
	}
	others, err := s.clusterNames(ctx)
	if err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("namespace %s has no BrokerCluster %s; %s", s.Namespace, name, describeClusters(others))
}

// onlyCluster returns the BrokerCluster of a namespace that has only one.
func (s *Session) onlyCluster(ctx context.Context) (*posthornv1.BrokerCluster, error) {
	var list posthornv1.BrokerClusterList
	if err := s.Client.List(ctx, &list, client.InNamespace(s.Namespace)); err != nil {
		return nil, s.explain(err, "listing the BrokerClusters", right{"list", "brokerclusters.posthorn.io", ""})
	}
	switch len(list.Items) {
	case 1:
		return &list.Items[0], nil
	case 0:
		return nil, fmt.Errorf("namespace %s has no BrokerCluster; %s", s.Namespace, describeClusters(nil))
	}
	return nil, usageErrorf("namespace %s has %d BrokerClusters; give the name of one: %s", s.Namespace, len(list.Items), strings.Join(namesOf(&list), ", "))
}

func (s *Session) clusterNames(ctx context.Context) ([]string, error) {
	var list posthornv1.BrokerClusterList
	if err := s.Client.List(ctx, &list, client.InNamespace(s.Namespace)); err != nil {
		return nil, s.explain(err, "listing the BrokerClusters", right{"list", "brokerclusters.posthorn.io", ""})
	}
	return namesOf(&list), nil
}

func namesOf(list *posthornv1.BrokerClusterList) []string {
	out := make([]string, 0, len(list.Items))
	for i := range list.Items {
		out = append(out, list.Items[i].Name)
	}
	slices.Sort(out)
	return out
}

// describeClusters says which clusters a namespace has and how to find others.
func describeClusters(existing []string) string {
	if len(existing) > 0 {
		return "it has: " + strings.Join(existing, ", ")
	}
	return "choose another one with --namespace; kubectl get brokerclusters --all-namespaces lists all"
}

// findNode returns the pod of a node and its cluster.
func (s *Session) findNode(ctx context.Context, name string) (*corev1.Pod, *posthornv1.BrokerCluster, error) {
	var pod corev1.Pod
	err := s.Client.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: name}, &pod)
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, nil, s.explain(err, "reading the pod "+name, right{"get", "pods", name})
	}
	if err != nil || pod.Labels[names.LabelName] != names.Product || pod.Labels[names.LabelInstance] == "" {
		return nil, nil, s.unknownNode(ctx, name)
	}
	cluster, err := s.findCluster(ctx, pod.Labels[names.LabelInstance])
	if err != nil {
		return nil, nil, err
	}
	return &pod, cluster, nil
}

// unknownNode names the nodes that exist.
func (s *Session) unknownNode(ctx context.Context, name string) error {
	pods, err := s.listPods(ctx, client.MatchingLabels{names.LabelName: names.Product})
	if err != nil {
		return err
	}
	existing := make([]string, 0, len(pods))
	for i := range pods {
		existing = append(existing, pods[i].Name)
	}
	if len(existing) == 0 {
		return fmt.Errorf("namespace %s has no node %s, and no other node of a Posthorn cluster; choose another namespace with --namespace", s.Namespace, name)
	}
	return fmt.Errorf("namespace %s has no node %s; its nodes are: %s", s.Namespace, name, strings.Join(existing, ", "))
}

// listPods returns the pods with labels, by name.
func (s *Session) listPods(ctx context.Context, labels client.MatchingLabels) ([]corev1.Pod, error) {
	var list corev1.PodList
	if err := s.Client.List(ctx, &list, client.InNamespace(s.Namespace), labels); err != nil {
		return nil, s.explain(err, "listing the pods", right{"list", "pods", ""})
	}
	slices.SortFunc(list.Items, func(a, b corev1.Pod) int { return compareNodes(a.Name, b.Name) })
	return list.Items, nil
}

// compareNodes orders names of nodes by ordinal: c-2 is before c-10.
func compareNodes(a, b string) int {
	if len(a) != len(b) {
		return len(a) - len(b)
	}
	return strings.Compare(a, b)
}

// podsOf returns the pods of a cluster.
func (s *Session) podsOf(ctx context.Context, cluster *posthornv1.BrokerCluster) ([]corev1.Pod, error) {
	return s.listPods(ctx, names.Selector(cluster.Name))
}

// readyPod returns a ready pod of a cluster.
func (s *Session) readyPod(ctx context.Context, cluster *posthornv1.BrokerCluster) (*corev1.Pod, error) {
	pods, err := s.podsOf(ctx, cluster)
	if err != nil {
		return nil, err
	}
	for i := range pods {
		if isReady(&pods[i]) {
			return &pods[i], nil
		}
	}
	if cluster.Spec.Hibernated {
		return nil, fmt.Errorf("cluster %s is hibernated and has no nodes; wake it with: kubectl patch brokercluster %[1]s --namespace %s --type=merge -p '{\"spec\":{\"hibernated\":false}}'", cluster.Name, s.Namespace)
	}
	return nil, fmt.Errorf("none of the %d nodes of cluster %s is ready; kubectl posthorn status %s --namespace %s shows why", len(pods), cluster.Name, cluster.Name, s.Namespace)
}

// isReady reports whether a pod is ready and stays.
func isReady(pod *corev1.Pod) bool {
	if pod.DeletionTimestamp != nil {
		return false
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// awaiting calls done until it returns true, an error, or the context ends.
func (s *Session) awaiting(ctx context.Context, done func() (bool, error)) error {
	ticker := time.NewTicker(s.Poll)
	defer ticker.Stop()
	for {
		isDone, err := done()
		if isDone || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}

// awaitOther waits until a node other than the named one is ready, or the named one is again.
func (s *Session) awaitOther(ctx context.Context, cluster *posthornv1.BrokerCluster, ended string) error {
	isFirst := true
	return s.awaiting(ctx, func() (bool, error) {
		pods, err := s.podsOf(ctx, cluster)
		if err != nil {
			return false, err
		}
		for i := range pods {
			if isReady(&pods[i]) && (pods[i].Name != ended || !isFirst) {
				return true, nil
			}
		}
		isFirst = false
		return false, nil
	})
}

// portOf returns the port of a URL.
func portOf(address string) (int, error) {
	parsed, err := url.Parse(address)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(parsed.Port())
}
