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

// cutNode pulls a node's cable, until healNode or the end of the spec.
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

// runScript runs one of the repository's scripts in hack.
func runScript(name string, args ...string) {
	GinkgoHelper()
	out, err := exec.Command(filepath.Join(root, "hack", name), args...).CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "hack/%s %s: %s", name, strings.Join(args, " "), out)
}

// dialPod connects to a pod's address from where the API server is: pods cannot be reached from the
// machine itself.
func dialPod(ctx context.Context, network, address string) (net.Conn, error) {
	// The thread is in another network namespace for a moment, and nobody else may run on it then.
	runtime.LockOSThread()
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	defer func() { _ = home.Close() }()
	there, err := os.Open("/run/netns/" + setting("POSTHORN_E2E_NETNS", "posthorn-lab"))
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
		// The thread stays locked, so that it ends with this goroutine.
		return nil, err
	}
	runtime.UnlockOSThread()
	return connection, failure
}
