// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// runRestricted checks the brokers' processes in the kernel, and not only their pods' specs.
func runRestricted() {
	bare := &corev1.Pod{ObjectMeta: meta("bare"), Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: image}}}}
	err := k8s.Create(ctx, bare, client.DryRunAll)
	Expect(apierrors.IsForbidden(err)).To(BeTrue(), "a pod without restrictions is refused here: %v", err)
	Expect(err).To(MatchError(ContainSubstring("PodSecurity")))
	pods, err := brokerPods()
	Expect(err).NotTo(HaveOccurred())
	Expect(pods).To(HaveLen(replicas))
	for i := range pods {
		pod := &pods[i]
		process := processOf(pod)
		status := statusOf(process)
		Expect(strings.Fields(status["Uid"])).To(HaveEach("10001"), pod.Name)
		Expect(strings.Fields(status["Gid"])).To(HaveEach("10001"), pod.Name)
		for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
			Expect(status[set]).To(Equal("0000000000000000"), "%s of %s", set, pod.Name)
		}
		Expect(status["NoNewPrivs"]).To(Equal("1"), pod.Name)
		Expect(status["Seccomp"]).To(Equal("2"), "a filter, in %s", pod.Name)
		Expect(mountOptions(process, "/")).To(ContainElement("ro"), "the root of %s", pod.Name)
		Expect(mountOptions(process, "/etc/posthorn")).To(ContainElement("ro"), "the configuration of %s", pod.Name)
		Expect(mountOptions(process, "/var/lib/posthorn")).To(ContainElement("rw"), "the data of %s", pod.Name)
		for _, shell := range []string{"bin/sh", "bin/bash", "bin/busybox", "usr/bin/env"} {
			Expect(filepath.Join(process, "root", shell)).NotTo(BeAnExistingFile())
		}
		_, err := os.Stat(filepath.Join(process, "root/var/run/secrets/kubernetes.io"))
		Expect(os.IsNotExist(err)).To(BeTrue(), "%s has no token of the API server", pod.Name)
	}
}

// processOf returns the /proc directory of the pod's broker. The nodes share the machine's processes.
func processOf(pod *corev1.Pod) string {
	GinkgoHelper()
	_, container, found := strings.Cut(pod.Status.ContainerStatuses[0].ContainerID, "://")
	Expect(found).To(BeTrue())
	groups, err := filepath.Glob("/proc/[0-9]*/cgroup")
	Expect(err).NotTo(HaveOccurred())
	for _, file := range groups {
		data, err := os.ReadFile(file)
		if err == nil && strings.Contains(string(data), container) {
			return filepath.Dir(file)
		}
	}
	Fail(fmt.Sprintf("no process of %s in container %s", pod.Name, container))
	return ""
}

func statusOf(process string) map[string]string {
	GinkgoHelper()
	data, err := os.ReadFile(filepath.Join(process, "status"))
	Expect(err).NotTo(HaveOccurred())
	out := map[string]string{}
	for line := range strings.Lines(string(data)) {
		name, value, _ := strings.Cut(line, ":")
		out[name] = strings.TrimSpace(value)
	}
	return out
}

// mountOptions returns the options of a mount in the process's view.
func mountOptions(process, place string) []string {
	GinkgoHelper()
	data, err := os.ReadFile(filepath.Join(process, "mountinfo"))
	Expect(err).NotTo(HaveOccurred())
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) > 5 && fields[4] == place {
			return strings.Split(fields[5], ",")
		}
	}
	Fail("nothing is mounted at " + place)
	return nil
}
