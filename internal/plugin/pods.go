// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os/exec"
	"runtime"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"
)

// brokerContainer is the container of the broker in its pod.
const brokerContainer = "posthorn"

// PodAccess connects to pods through the API server.
type PodAccess interface {
	// Forward forwards a local port to a port of a pod; local port 0 chooses a free one.
	Forward(ctx context.Context, namespace, pod string, local, port int) (*Tunnel, error)
	// Execute runs a command in the broker's container and returns when it has ended.
	Execute(ctx context.Context, namespace, pod string, command []string, streams Streams) error
	// Logs opens the log of the broker's container.
	Logs(ctx context.Context, namespace, pod string, options corev1.PodLogOptions) (io.ReadCloser, error)
}

// Tunnel is a local port that is forwarded to a pod.
type Tunnel struct {
	// URL of the local port, without a path.
	URL string
	// Ended receives why the tunnel ended: the pod was deleted, or the connection was lost.
	Ended <-chan error
	// Close ends the tunnel and closes its port.
	Close func()
}

// apiPods is a PodAccess over the Kubernetes API.
type apiPods struct {
	config *rest.Config
	core   corev1client.CoreV1Interface
}

// address of a subresource of a pod.
func (p *apiPods) address(namespace, pod, subresource string) *rest.Request {
	return p.core.RESTClient().Post().Resource("pods").Namespace(namespace).Name(pod).SubResource(subresource)
}

// isUpgradeFailure reports whether the API server, or a proxy before it, does not speak WebSocket.
func isUpgradeFailure(err error) bool {
	return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
}

// Forward listens on the loopback interface only: everybody who reaches the port reaches the broker.
func (p *apiPods) Forward(ctx context.Context, namespace, pod string, local, port int) (*Tunnel, error) {
	dialer, err := p.dialer(p.address(namespace, pod, "portforward").URL())
	if err != nil {
		return nil, err
	}
	stop, ready := make(chan struct{}), make(chan struct{})
	ports := []string{fmt.Sprintf("%d:%d", local, port)}
	forwarder, err := portforward.NewOnAddressesForStreaming(dialer, []string{"127.0.0.1"}, ports, stop, ready, io.Discard, io.Discard)
	if err != nil {
		return nil, err
	}
	ended, closed := make(chan error, 1), make(chan struct{})
	go func() {
		ended <- forwarder.ForwardPorts()
		close(closed)
	}()
	// The port can be used again when Close returns.
	end := sync.OnceFunc(func() { close(stop); <-closed })
	select {
	case err := <-ended:
		return nil, err
	case <-ctx.Done():
		close(stop)
		return nil, ctx.Err()
	case <-ready:
	}
	bound, err := forwarder.GetPorts()
	if err != nil || len(bound) != 1 {
		end()
		return nil, fmt.Errorf("reading the local port: %w", err)
	}
	return &Tunnel{URL: fmt.Sprintf("http://127.0.0.1:%d", bound[0].Local), Ended: ended, Close: end}, nil
}

// dialer prefers WebSocket to SPDY, like kubectl.
func (p *apiPods) dialer(where *url.URL) (httpstream.Dialer, error) {
	transport, upgrader, err := spdy.RoundTripperFor(p.config)
	if err != nil {
		return nil, err
	}
	fallback := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, where)
	preferred, err := portforward.NewSPDYOverWebsocketDialerForStreaming(where, p.config)
	if err != nil {
		return nil, err
	}
	return portforward.NewFallbackDialerForStreaming(preferred, fallback, isUpgradeFailure), nil
}

// Execute sends the input of the streams to the command, if there is one.
func (p *apiPods) Execute(ctx context.Context, namespace, pod string, command []string, streams Streams) error {
	where := p.address(namespace, pod, "exec").VersionedParams(&corev1.PodExecOptions{
		Container: brokerContainer, Command: command, Stdin: streams.In != nil, Stdout: true, Stderr: true,
	}, scheme.ParameterCodec).URL()
	fallback, err := remotecommand.NewSPDYExecutor(p.config, http.MethodPost, where)
	if err != nil {
		return err
	}
	preferred, err := remotecommand.NewWebSocketExecutor(p.config, http.MethodGet, where.String())
	if err != nil {
		return err
	}
	executor, err := remotecommand.NewFallbackExecutor(preferred, fallback, isUpgradeFailure)
	if err != nil {
		return err
	}
	return executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: streams.In, Stdout: streams.Out, Stderr: streams.Err})
}

// Logs opens the log of the broker's container.
func (p *apiPods) Logs(ctx context.Context, namespace, pod string, options corev1.PodLogOptions) (io.ReadCloser, error) {
	options.Container = brokerContainer
	return p.core.Pods(namespace).GetLogs(pod, &options).Stream(ctx)
}

// openBrowser starts the browser and does not wait for it.
func openBrowser(address string) error {
	program, args := "xdg-open", []string{address}
	switch runtime.GOOS {
	case "darwin":
		program = "open"
	case "windows":
		program, args = "rundll32", []string{"url.dll,FileProtocolHandler", address}
	}
	command := exec.Command(program, args...)
	if err := command.Start(); err != nil {
		return err
	}
	return command.Process.Release()
}
