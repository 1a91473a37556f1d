// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
)

// cutNode disconnects a node from the network, until healNode or the end of the spec.
func cutNode(node string) {
	GinkgoHelper()
	runScript("node", "cut", node)
	say("%s is off the network", node)
	DeferCleanup(runScript, "node", "heal", node)
}

func healNode(node string) {
	GinkgoHelper()
	runScript("node", "heal", node)
	say("%s is back on the network", node)
}

// runScript runs a script in hack.
func runScript(name string, args ...string) {
	GinkgoHelper()
	out, err := exec.Command(filepath.Join(root, "hack", name), args...).CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "hack/%s %s: %s", name, strings.Join(args, " "), out)
}

// define adds kinds to the cluster, and waits until they can be used.
func define(definitions string) {
	GinkgoHelper()
	runScript("kubectl", "apply", "--server-side", "-f", definitions)
	runScript("kubectl", "wait", "--for=condition=Established", "--timeout=60s", "-f", definitions)
}

// applyText applies objects, in the suite's namespace if they name none.
func applyText(objects string) {
	GinkgoHelper()
	command := exec.Command(filepath.Join(root, "hack", "kubectl"), "-n", namespace, "apply", "-f", "-")
	command.Stdin = strings.NewReader(objects)
	said, err := command.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "%s", said)
}

// beside are the processes that run on this machine next to the cluster.
var beside []*exec.Cmd

// runBeside starts a program that finds the cluster by itself, until the suite's end.
func runBeside(name, program string, args ...string) {
	GinkgoHelper()
	log, err := os.Create(filepath.Join(artifacts, name+".log"))
	Expect(err).NotTo(HaveOccurred())
	command := exec.Command(program, args...)
	command.Stdout, command.Stderr = log, log
	Expect(command.Start()).To(Succeed())
	beside = append(beside, command)
}

var _ = AfterSuite(func() {
	for _, command := range beside {
		_ = command.Process.Signal(os.Interrupt)
		_ = command.Wait()
	}
})

// dialPod connects to a pod's address from the API server's network namespace, because the machine itself cannot
// reach pods.
func dialPod(ctx context.Context, network, address string) (net.Conn, error) {
	return dialFrom(ctx, "/run/netns/"+setting("POSTHORN_E2E_NETNS", "posthorn-lab"), network, address)
}

// dialFrom connects from the network namespace of a file.
func dialFrom(ctx context.Context, space, network, address string) (net.Conn, error) {
	// The thread is in another network namespace for a moment, in which no other goroutine may run on it.
	runtime.LockOSThread()
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	defer func() { _ = home.Close() }()
	there, err := os.Open(space)
	if err != nil {
		runtime.UnlockOSThread()
		return nil, err
	}
	defer func() { _ = there.Close() }()
	if err := unix.Setns(int(there.Fd()), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return nil, err
	}
	connection, failure := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, network, address)
	if err := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); err != nil {
		// The thread stays locked, and so ends with this goroutine.
		return nil, err
	}
	runtime.UnlockOSThread()
	return connection, failure
}
