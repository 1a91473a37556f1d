// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// recorder writes every container's log to a file, also the logs of pods that are deleted later.
type recorder struct {
	mu        sync.Mutex
	following map[string]bool
}

func startRecorder() {
	r := &recorder{following: map[string]bool{}}
	go func() {
		tick := time.NewTicker(polling)
		defer tick.Stop()
		for {
			for _, place := range []string{namespace, operatorNamespace} {
				r.look(place)
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}()
}

// startEventLog writes every warning Event of the namespace to a file.
func startEventLog() {
	GinkgoHelper()
	out, err := os.Create(filepath.Join(artifacts, "warnings.log"))
	Expect(err).NotTo(HaveOccurred())
	watcher, err := k8s.Watch(ctx, &corev1.EventList{}, client.InNamespace(namespace))
	Expect(err).NotTo(HaveOccurred())
	go func() {
		defer func() { _ = out.Close() }()
		for event := range watcher.ResultChan() {
			if e, is := event.Object.(*corev1.Event); is && e.Type == corev1.EventTypeWarning {
				_, _ = fmt.Fprintf(out, "%s %s/%s %s: %s\n", time.Now().UTC().Format(time.RFC3339), e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Reason, e.Message)
			}
		}
	}()
}

func (r *recorder) look(place string) {
	var pods corev1.PodList
	if err := k8s.List(ctx, &pods, client.InNamespace(place)); err != nil {
		return
	}
	for i := range pods.Items {
		for _, status := range pods.Items[i].Status.ContainerStatuses {
			if status.State.Running != nil {
				r.follow(&pods.Items[i], status.RestartCount)
			}
		}
	}
}

func (r *recorder) follow(pod *corev1.Pod, restarts int32) {
	name := fmt.Sprintf("%s-%.8s-%d.log", pod.Name, pod.UID, restarts)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.following[name] {
		return
	}
	r.following[name] = true
	go func() {
		copyLog(pod.Namespace, pod.Name, filepath.Join(artifacts, name))
		// A cut node breaks the stream, which then starts again from the first line.
		r.mu.Lock()
		delete(r.following, name)
		r.mu.Unlock()
	}()
}

func copyLog(place, pod, file string) {
	stream, err := logs.CoreV1().Pods(place).GetLogs(pod, &corev1.PodLogOptions{Follow: true}).Stream(ctx)
	if err != nil {
		return
	}
	defer func() { _ = stream.Close() }()
	out, err := os.Create(file)
	if err != nil {
		return
	}
	defer func() { _ = out.Close() }()
	_, _ = io.Copy(out, stream)
}

// The state at the failure of a spec goes to a separate file.
var _ = JustAfterEach(func() {
	report := CurrentSpecReport()
	if !report.Failed() {
		return
	}
	say("FAILED: %s", report.LeafNodeText)
	fmt.Println(report.Failure.Location.String())
	fmt.Println(report.Failure.Message)
	file := filepath.Join(artifacts, fmt.Sprintf("failure-%d.txt", time.Now().Unix()))
	out, err := os.Create(file)
	if err != nil {
		say("%v", err)
		return
	}
	defer func() { _ = out.Close() }()
	_, _ = fmt.Fprintf(out, "%s\n%s\n%s\n", report.FullText(), report.Failure.Location, report.Failure.Message)
	for _, args := range [][]string{
		{"get", "bc,pvh,pq,px,pb,pp,pu,pperm,ptp,pods,pvc", "-o", "wide"}, {"get", "events", "--sort-by=.lastTimestamp"}, {"get", "bc,pvh,pq,px,pb,pp,pu,pperm,ptp", "-o", "yaml"},
	} {
		text, err := exec.Command(filepath.Join(root, "hack", "kubectl"), append([]string{"-n", namespace}, args...)...).CombinedOutput()
		_, _ = fmt.Fprintf(out, "\n$ kubectl %v (%v)\n%s", args, err, text)
	}
	say("what there was then: %s; logs of all pods beside it", file)
})
