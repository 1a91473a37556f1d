// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// answering returns a client of an external server that gives one answer.
func answering(t *testing.T, status int, contentType, body string) *HTTPClient {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(server.Close)
	return New(Access{URL: server.URL, Username: "u", Password: "p", External: true}, NewExternalTransport(Trust{}))
}

func TestAnswersOfOtherServersAreNoAnswersOfABroker(t *testing.T) {
	const html = "<html><body>Not Found</body></html>"
	for name, c := range map[string]*HTTPClient{
		"a page":                answering(t, http.StatusOK, "text/html", html),
		"a missing page":        answering(t, http.StatusNotFound, "text/html", html),
		"a backend by default":  answering(t, http.StatusNotFound, "text/plain", "default backend - 404"),
		"a login page":          answering(t, http.StatusUnauthorized, "text/html", html),
		"HTTP to an HTTPS port": answering(t, http.StatusBadRequest, "text/plain", "Client sent an HTTP request to an HTTPS server."),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := c.GetQueue(context.Background(), "/", "q")
			if !IsUnexpected(err) || IsNotFound(err) || IsUnauthorized(err) || IsTerminal(err) {
				t.Errorf("read: %v", err)
			}
			if err := c.DeleteExchange(context.Background(), "/", "x"); !IsUnexpected(err) {
				t.Errorf("deletion: %v", err)
			}
		})
	}
	// An ingress whose backend is down gives a page too, and the broker behind it will come back.
	_, err := answering(t, http.StatusBadGateway, "text/html", html).GetQueue(context.Background(), "/", "q")
	if IsUnexpected(err) || !IsAnswer(err) {
		t.Errorf("bad gateway: %v", err)
	}
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	var requests atomic.Int32
	target := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests.Add(1) }))
	defer target.Close()
	for _, status := range []int{301, 302, 303, 307, 308} {
		origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, target.URL+r.URL.Path, status)
		}))
		c := New(Access{URL: origin.URL, Username: "u", Password: "p", External: true}, NewExternalTransport(Trust{}))
		_, err := c.GetVhost(context.Background(), "v")
		if !IsUnexpected(err) || !strings.Contains(err.Error(), "redirects to") || !strings.Contains(err.Error(), strings.TrimPrefix(target.URL, "http://")) {
			t.Errorf("%d: %v", status, err)
		}
		origin.Close()
	}
	if n := requests.Load(); n != 0 {
		t.Errorf("%d requests followed a redirect", n)
	}
}

func TestAnswersOfExternalBrokersAreBounded(t *testing.T) {
	c := answering(t, http.StatusOK, "application/json", `{"name":"`+strings.Repeat("n", maxExternalAnswer)+`"}`)
	if _, err := c.GetQueue(context.Background(), "/", "q"); !IsTooLarge(err) {
		t.Errorf("queue: %v", err)
	}
	if _, err := answering(t, http.StatusOK, "application/json", `[`+strings.Repeat(" ", maxExternalAnswer)+`]`).QueueStates(context.Background()); err != nil {
		t.Errorf("the list of all queues has a limit of its own: %v", err)
	}
	if _, err := answering(t, http.StatusOK, "application/json", `[`+strings.Repeat(" ", maxExternalList)+`]`).QueueStates(context.Background()); !IsTooLarge(err) {
		t.Errorf("list: %v", err)
	}
}

func TestAnUnreachableBrokerIsNotAskedAgainDuringThePause(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	_ = listener.Close()
	transport := NewExternalTransport(Trust{})
	now := time.Now()
	transport.now = func() time.Time { return now }
	c := New(Access{URL: "http://" + address, Username: "u", Password: "p", External: true}, transport)
	if _, err := c.GetVhost(context.Background(), "v"); err == nil || IsAnswer(err) {
		t.Fatal(err)
	}
	// The broker comes back at once, and the next request is during the pause.
	if listener, err = net.Listen("tcp", address); err != nil {
		t.Fatal(err)
	}
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, `{"name":"v"}`)
	})}}
	server.Start()
	defer server.Close()
	if _, err := c.GetVhost(context.Background(), "v"); err == nil || IsAnswer(err) || !strings.Contains(err.Error(), "refused") {
		t.Errorf("during the pause: %v", err)
	}
	now = now.Add(retryPause)
	if _, err := c.GetVhost(context.Background(), "v"); err != nil {
		t.Errorf("after the pause: %v", err)
	}
}

func TestACallerThatGivesUpCausesNoPause(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, `{"name":"v"}`) }))
	defer server.Close()
	c := New(Access{URL: server.URL, External: true}, NewExternalTransport(Trust{}))
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := c.GetVhost(gone, "v"); err == nil {
		t.Fatal("a cancelled request succeeded")
	}
	if _, err := c.GetVhost(context.Background(), "v"); err != nil {
		t.Error(err)
	}
}

func TestLinkLocalAddressesAreRefused(t *testing.T) {
	for _, address := range []string{"169.254.169.254", "[fe80::1]", "0.0.0.0", "[ff02::1]"} {
		c := New(Access{URL: "http://" + address + ":80", Username: "u", External: true}, NewExternalTransport(Trust{}))
		if _, err := c.GetVhost(context.Background(), "v"); err == nil || !strings.Contains(err.Error(), "not allowed for external brokers") {
			t.Errorf("%s: %v", address, err)
		}
	}
}
