// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/exec"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"

	"posthorn.io/posthorn/internal/broker/brokertest"
	"posthorn.io/posthorn/internal/names"
)

// streamTimeout of the server, far longer than a test takes.
const streamTimeout = time.Minute

// kubelet serves the subresources of pods as an API server and its kubelets do.
type kubelet struct {
	// backend is the address to which all ports of pods lead.
	backend string
	// refuses is the subresource that the user may not use.
	refuses string
	// command and input are those of the last execution.
	command []string
	input   string
	// query of the last request for logs.
	query string
}

func (k *kubelet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	below, found := strings.CutPrefix(r.URL.Path, "/api/v1/namespaces/mq/pods/c-1/")
	if !found {
		http.NotFound(w, r)
		return
	}
	if below == k.refuses {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_ = json.NewEncoder(w).Encode(metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonForbidden,
			Code: http.StatusForbidden, Message: fmt.Sprintf("pods %q is forbidden: User %q cannot create resource %q", "c-1", "eve", "pods/"+below),
		})
		return
	}
	if strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		// An older API server: the client uses SPDY instead.
		http.Error(w, "unable to upgrade", http.StatusBadRequest)
		return
	}
	switch below {
	case "portforward":
		portforward.ServePortForward(w, r, k, "c-1", "", &portforward.V4Options{}, streamTimeout, streamTimeout, portforward.SupportedProtocols)
	case "exec":
		options := &remotecommand.Options{Stdin: r.FormValue("stdin") == "true", Stdout: true, Stderr: true}
		remotecommand.ServeExec(w, r, k, "c-1", "", r.FormValue("container"), r.URL.Query()["command"], options, streamTimeout, streamTimeout, remotecommand.SupportedStreamingProtocols)
	case "log":
		k.query = r.URL.RawQuery
		_, _ = io.WriteString(w, "2026-01-01T00:00:01Z a line\n")
	default:
		http.NotFound(w, r)
	}
}

func (k *kubelet) PortForward(ctx context.Context, _, _ string, port int32, stream io.ReadWriteCloser) error {
	if port != names.PortManagement {
		return fmt.Errorf("nothing listens at port %d", port)
	}
	backend, err := (&net.Dialer{}).DialContext(ctx, "tcp", k.backend)
	if err != nil {
		return err
	}
	defer func() { _ = backend.Close() }()
	go func() { _, _ = io.Copy(backend, stream) }()
	_, err = io.Copy(stream, backend)
	return err
}

func (k *kubelet) ExecInContainer(_ context.Context, _, _, container string, command []string, in io.Reader, out, errOut io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize, _ time.Duration) error {
	k.command = append([]string{container}, command...)
	input, err := io.ReadAll(in)
	if err != nil {
		return err
	}
	k.input = string(input)
	_, _ = io.WriteString(out, "an answer\n")
	_, _ = io.WriteString(errOut, "a warning\n")
	if slices.Contains(command, "health") {
		return utilexec.CodeExitError{Err: errors.New("failed"), Code: 69}
	}
	return nil
}

// connectToKubelet returns a session with a server that has the pod c-1.
func connectToKubelet(t *testing.T, k *kubelet) *Session {
	t.Helper()
	server := httptest.NewServer(k)
	t.Cleanup(server.Close)
	session, err := newSession(&rest.Config{Host: server.URL}, namespace)
	if err != nil {
		t.Fatal(err)
	}
	return session
}

func TestForwardedPortLeadsToTheBroker(t *testing.T) {
	server := brokertest.Start("admin", password)
	t.Cleanup(server.Close)
	s := connectToKubelet(t, &kubelet{backend: strings.TrimPrefix(server.URL(), "http://")})
	tunnel, err := s.forward(t.Context(), "c-1", 0)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(tunnel.URL, "http://127.0.0.1:") {
		t.Errorf("the port is open at %s", tunnel.URL)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, tunnel.URL+"/api/overview", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.SetBasicAuth("admin", password)
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(response.Body)
	_ = response.Body.Close()
	if err != nil || !strings.Contains(string(body), `"cluster_name":"fake"`) {
		t.Errorf("%v: %s", err, body)
	}
	port, err := portOf(tunnel.URL)
	if err != nil {
		t.Fatal(err)
	}
	tunnel.Close()
	if err := <-tunnel.Ended; err != nil {
		t.Errorf("a closed tunnel ended with %v", err)
	}
	again, err := s.forward(t.Context(), "c-1", port)
	if err != nil {
		t.Fatalf("the port of a closed tunnel: %v", err)
	}
	again.Close()
	again.Close()
	if _, err := s.forward(t.Context(), "c-9", 0); err == nil || !strings.Contains(err.Error(), "forwarding a port to node c-9 in namespace mq") {
		t.Errorf("an unknown pod: %v", err)
	}
}

func TestForwardingOfAUsedPortFails(t *testing.T) {
	s := connectToKubelet(t, &kubelet{})
	used, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = used.Close() }()
	port, err := portOf("http://" + used.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.forward(t.Context(), "c-1", port); err == nil || !strings.Contains(err.Error(), "forwarding a port to node c-1") {
		t.Errorf("%v", err)
	}
}

func TestExecutedCommandHasItsStreamsAndExitCode(t *testing.T) {
	k := &kubelet{}
	s := connectToKubelet(t, k)
	for _, row := range []struct {
		operation string
		code      int
	}{{"list_queues", 0}, {"health", 69}} {
		var out, errOut bytes.Buffer
		err := s.Pods.Execute(t.Context(), namespace, "c-1", []string{"/posthorn", "ctl", row.operation}, Streams{In: strings.NewReader(password), Out: &out, Err: &errOut})
		code := 0
		var ended exec.ExitError
		if errors.As(err, &ended) {
			code = ended.ExitStatus()
		} else if err != nil {
			t.Fatal(err)
		}
		if code != row.code || out.String() != "an answer\n" || errOut.String() != "a warning\n" {
			t.Errorf("%s: exit code %d, %q, %q", row.operation, code, out.String(), errOut.String())
		}
		if got := strings.Join(k.command, " "); got != "posthorn /posthorn ctl "+row.operation || k.input != password {
			t.Errorf("%s: %s with input %q", row.operation, got, k.input)
		}
	}
}

func TestLogsAreThoseOfTheBroker(t *testing.T) {
	k := &kubelet{}
	s := connectToKubelet(t, k)
	tail := int64(3)
	stream, err := s.Pods.Logs(t.Context(), namespace, "c-1", corev1.PodLogOptions{Timestamps: true, TailLines: &tail})
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(stream)
	_ = stream.Close()
	if err != nil || string(data) != "2026-01-01T00:00:01Z a line\n" {
		t.Errorf("%v: %q", err, data)
	}
	if k.query != "container=posthorn&tailLines=3&timestamps=true" {
		t.Errorf("query %s", k.query)
	}
}

// TestRefusedConnectionsAreForbidden: the libraries turn the answer of the API server into text.
func TestRefusedConnectionsAreForbidden(t *testing.T) {
	for subresource, connect := range map[string]func(*Session) error{
		"portforward": func(s *Session) error {
			_, err := s.Pods.Forward(t.Context(), namespace, "c-1", 0, names.PortManagement)
			return err
		},
		"exec": func(s *Session) error {
			return s.Pods.Execute(t.Context(), namespace, "c-1", []string{"x"}, Streams{Out: io.Discard, Err: io.Discard})
		},
		"log": func(s *Session) error {
			_, err := s.Pods.Logs(t.Context(), namespace, "c-1", corev1.PodLogOptions{})
			return err
		},
	} {
		s := connectToKubelet(t, &kubelet{refuses: subresource})
		if err := connect(s); err == nil || !isForbidden(err) {
			t.Errorf("%s: %v", subresource, err)
		}
	}
}

func TestUnusableKubeconfigNamesTheRemedy(t *testing.T) {
	t.Setenv("KUBECONFIG", t.TempDir()+"/none")
	if _, err := Connect(Options{Kubeconfig: t.TempDir() + "/missing"}); err == nil || !strings.Contains(err.Error(), "--kubeconfig or KUBECONFIG") {
		t.Errorf("%v", err)
	}
}
