// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/names"
)

const (
	dialTimeout = 2 * time.Second
	replicas    = 3
)

// podTransport connects to pods; a new connection each time, because their addresses change.
var podTransport = &http.Transport{DialContext: dialPod, DisableKeepAlives: true}

// pods returns the pods of the cluster, in ordinal order. Some may be missing.
func brokerPods() ([]corev1.Pod, error) {
	var list corev1.PodList
	if err := k8s.List(ctx, &list, client.InNamespace(namespace), client.MatchingLabels(names.Selector(clusterName))); err != nil {
		return nil, err
	}
	slices.SortFunc(list.Items, func(a, b corev1.Pod) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return list.Items, nil
}

func brokerPod(name string) corev1.Pod {
	GinkgoHelper()
	var pod corev1.Pod
	Expect(k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &pod)).To(Succeed())
	return pod
}

func podReady(pod *corev1.Pod) bool {
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

// ask returns a client of one broker's HTTP API.
func ask(pod *corev1.Pod) (broker.Client, error) { return askOf(clusterName, pod) }

// askOf is ask for a broker of another cluster.
func askOf(cluster string, pod *corev1.Pod) (broker.Client, error) {
	var secret corev1.Secret
	key := client.ObjectKey{Namespace: namespace, Name: names.DefaultUserSecret(cluster)}
	if err := k8s.Get(ctx, key, &secret); err != nil {
		return nil, err
	}
	if pod.Status.PodIP == "" {
		return nil, fmt.Errorf("%s has no address", pod.Name)
	}
	return broker.New(broker.Access{
		URL:      fmt.Sprintf("http://%s:%d", pod.Status.PodIP, names.PortManagement),
		Username: string(secret.Data["username"]), Password: string(secret.Data["password"]),
	}, podTransport), nil
}

// queueOf returns a queue as the first answering broker on a connected node reports it.
func queueOf(queue string, except ...string) (broker.Queue, error) {
	pods, err := brokerPods()
	if err != nil {
		return broker.Queue{}, err
	}
	failure := fmt.Errorf("no broker is ready")
	for i := range pods {
		if !podReady(&pods[i]) || slices.Contains(except, pods[i].Spec.NodeName) {
			continue
		}
		one, err := ask(&pods[i])
		if err == nil {
			var q broker.Queue
			if q, err = one.GetQueue(ctx, "/", queue); err == nil {
				return q, nil
			}
		}
		failure = fmt.Errorf("%s: %w", pods[i].Name, err)
	}
	return broker.Queue{}, failure
}

// leaderOf returns the pod that leads a queue now.
func leaderOf(queue string) corev1.Pod {
	GinkgoHelper()
	var leader string
	Eventually(func() (string, error) {
		q, err := queueOf(queue)
		leader = q.Leader
		return leader, err
	}).ShouldNot(BeEmpty(), "the leader of %s", queue)
	return brokerPod(leader)
}

// whole checks that one cluster of three brokers exists, that each of them is ready and knows the others, and that
// they agree on the queue: its leader and three members that are up, none of which it needs alone.
func whole(queue string) func() error {
	return func() error {
		pods, err := brokerPods()
		if err != nil {
			return err
		}
		if len(pods) != replicas {
			return fmt.Errorf("%d pods", len(pods))
		}
		leader := ""
		for i := range pods {
			if !podReady(&pods[i]) {
				return fmt.Errorf("%s is not ready", pods[i].Name)
			}
			said, err := memberView(&pods[i], queue)
			if err != nil {
				return fmt.Errorf("%s: %w", pods[i].Name, err)
			}
			if leader != "" && said != leader {
				return fmt.Errorf("%s takes %s for the leader, another %s", pods[i].Name, said, leader)
			}
			leader = said
		}
		return nil
	}
}

// memberView asks one broker whether the cluster is whole, and for the leader of the queue.
func memberView(pod *corev1.Pod, queue string) (string, error) {
	one, err := ask(pod)
	if err != nil {
		return "", err
	}
	nodes, err := one.Nodes(ctx)
	if err != nil {
		return "", err
	}
	var running []string
	for _, node := range nodes {
		if !node.Running || node.BeingDrained {
			return "", fmt.Errorf("node %s: running %t, draining %t", node.Name, node.Running, node.BeingDrained)
		}
		running = append(running, node.Name)
	}
	slices.Sort(running)
	if want := memberNames(); !slices.Equal(running, want) {
		return "", fmt.Errorf("the cluster is %v, not %v", running, want)
	}
	q, err := one.GetQueue(ctx, "/", queue)
	if err != nil {
		return "", err
	}
	slices.Sort(q.Online)
	slices.Sort(q.Members)
	if !slices.Equal(q.Online, running) || !slices.Equal(q.Members, running) || q.Leader == "" {
		return "", fmt.Errorf("queue %s: leader %q, members %v, online %v", queue, q.Leader, q.Members, q.Online)
	}
	critical, err := one.QuorumCritical(ctx)
	if err != nil {
		return "", err
	}
	if critical.Critical {
		return "", fmt.Errorf("quorum critical: %s %v", critical.Reason, critical.Queues)
	}
	return q.Leader, nil
}

func memberNames() []string {
	out := make([]string, replicas)
	for i := range out {
		out[i] = fmt.Sprintf("%s-%d", clusterName, i)
	}
	return out
}

// becomesWhole waits until an earlier failure has no effect left, also in the operator's status.
func becomesWhole(queue string) {
	GinkgoHelper()
	start := time.Now()
	Eventually(telling(start, whole(queue))).Should(Succeed())
	brokers := time.Since(start).Seconds()
	Eventually(telling(start, operatorContent)).Should(Succeed())
	say("all three brokers whole after %.1fs, and the operator says so after %.1fs", brokers, time.Since(start).Seconds())
}

func operatorContent() error {
	if now := readiness(newCluster())(); !strings.HasPrefix(now, "True ") {
		return errors.New(now)
	}
	return nil
}

// slow is the time after which a wait reports its condition.
const slow = 10 * time.Second

// telling is a condition that reports why it is not met, when that takes long and when the reason changes.
func telling(start time.Time, condition func() error) func() error {
	told := ""
	return func() error {
		err := condition()
		if err != nil && err.Error() != told && time.Since(start) > slow {
			told = err.Error()
			say("not yet: %s", told)
		}
		return err
	}
}
