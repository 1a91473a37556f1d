// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
)

const (
	// startDeadline is how long a broker may take to serve its metrics.
	startDeadline = time.Minute
	// retry is the interval of requests until then.
	retry = 50 * time.Millisecond
	// openMetrics is the media type that Prometheus prefers.
	openMetrics = "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.4"
)

// program returns the broker: $POSTHORN, or one that is built in the checkout.
func program(t *testing.T) string {
	t.Helper()
	if given := os.Getenv("POSTHORN"); given != "" {
		return given
	}
	target := os.Getenv("CARGO_TARGET_DIR")
	if target == "" {
		target = filepath.Join("..", "..", "broker", "target")
	}
	for _, each := range []string{filepath.Join(target, "debug", "posthorn"), filepath.Join(target, "release", "posthorn"), filepath.Join("..", "..", "bin", "posthorn")} {
		if _, err := os.Stat(each); err == nil {
			return each
		}
	}
	t.Fatal("no broker is built: cargo build -p posthorn, set POSTHORN, or leave this out with -short")
	return ""
}

// freePort asks the kernel for a free port.
func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}

// page returns a broker's answer to a path of its metrics port, in Prometheus' text format.
func page(ctx context.Context, t *testing.T, address, path string, ended chan error) []byte {
	t.Helper()
	return pageIn(ctx, t, "", address, path, ended)
}

// pageIn returns the answer to a request that accepts this media type.
func pageIn(ctx context.Context, t *testing.T, accept, address, path string, ended chan error) []byte {
	t.Helper()
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if accept != "" {
			request.Header.Set("Accept", accept)
		}
		if response, err := http.DefaultClient.Do(request); err == nil {
			body, readErr := io.ReadAll(response.Body)
			_ = response.Body.Close()
			if readErr == nil && response.StatusCode == http.StatusOK {
				return body
			}
		}
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("the broker ended: %v", err)
		case <-ctx.Done():
			t.Fatal("the broker gave no metrics")
		case <-time.After(retry):
		}
	}
}

// TestListMatchesTheBrokersMetrics checks the list against which queries are checked.
func TestListMatchesTheBrokersMetrics(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a broker")
	}
	ctx, cancel := context.WithTimeout(context.Background(), startDeadline)
	defer cancel()
	metrics, management := freePort(t), freePort(t)
	var said bytes.Buffer
	broker := exec.CommandContext(ctx, program(t), "serve", "--data-dir", t.TempDir(), "--set", "listeners.tcp.default="+freePort(t),
		"--set", "mqtt.listeners.tcp.default="+freePort(t), "--set", "management.tcp.port="+management, "--set", "prometheus.tcp.port="+metrics, "--set", "probes.tcp.port=none")
	broker.Stdout, broker.Stderr = &said, &said
	if err := broker.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- broker.Wait() }()
	t.Cleanup(func() {
		_ = broker.Process.Kill()
		err := <-ended
		if t.Failed() {
			t.Logf("the broker ended (%v) and said:\n%s", err, said.String())
		}
	})
	exported := map[string]map[string]*dto.MetricFamily{"broker": parse(t, page(ctx, t, metrics, "/metrics", ended))}
	// Families of queues are empty without a queue, and that of the oldest message without a message.
	api := "http://" + management + "/api/"
	request(ctx, t, http.MethodPut, api+"queues/%2f/q", "{}", http.StatusCreated)
	request(ctx, t, http.MethodPut, api+"queues/%2f/s", `{"arguments": {"x-queue-type": "stream"}}`, http.StatusCreated)
	publish := `{"routing_key": "q", "payload": "", "payload_encoding": "string", "properties": {}}`
	request(ctx, t, http.MethodPost, api+"exchanges/%2f/amq.default/publish", publish, http.StatusOK)
	detailed := "/metrics/detailed?family=queue_coarse_metrics&family=queue_consumer_count&family=queue_metrics&family=stream_metrics"
	exported["detailed"] = parse(t, page(ctx, t, metrics, detailed, ended))
	for _, path := range []string{"/metrics", "/metrics/per-object", detailed} {
		plain := parse(t, page(ctx, t, metrics, path, ended))
		checkOpenMetrics(t, path, plain, pageIn(ctx, t, openMetrics, metrics, path, ended))
	}
	for name, source := range listed(t) {
		families, isBroker := exported[source]
		if !isBroker {
			continue
		}
		if family := families[name]; family == nil || len(family.Metric) == 0 {
			t.Errorf("a running broker does not export %s", name)
		}
	}
}

// checkOpenMetrics reads a page with the parser of Prometheus' scrapes, and compares its families with the plain page.
func checkOpenMetrics(t *testing.T, path string, plain map[string]*dto.MetricFamily, page []byte) {
	t.Helper()
	parser := textparse.NewOpenMetricsParser(page, labels.NewSymbolTable())
	types := map[string]model.MetricType{}
	samples := map[string]int{}
	for {
		entry, err := parser.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%s is not in the format OpenMetrics: %v", path, err)
		}
		switch entry {
		case textparse.EntryType:
			name, kind := parser.Type()
			if _, isKnown := types[string(name)]; isKnown {
				t.Errorf("%s has the family %s twice", path, name)
			}
			types[string(name)] = kind
		case textparse.EntrySeries:
			var of labels.Labels
			parser.Labels(&of)
			samples[of.Get(model.MetricNameLabel)]++
		default:
			// Help texts, units and comments.
		}
	}
	for name, family := range plain {
		openName, want := name, map[dto.MetricType]model.MetricType{
			dto.MetricType_COUNTER: model.MetricTypeCounter, dto.MetricType_GAUGE: model.MetricTypeGauge,
			dto.MetricType_UNTYPED: model.MetricTypeUnknown, dto.MetricType_HISTOGRAM: model.MetricTypeHistogram,
		}[family.GetType()]
		if want == model.MetricTypeCounter {
			openName = strings.TrimSuffix(name, "_total")
		}
		if types[openName] != want {
			t.Errorf("%s: %s has the type %q, expected %q", path, openName, types[openName], want)
		}
		if want == model.MetricTypeHistogram {
			name += "_count"
		}
		if samples[name] != len(family.Metric) {
			t.Errorf("%s: %s has %d samples, expected %d", path, name, samples[name], len(family.Metric))
		}
	}
	if len(types) < len(plain) {
		t.Errorf("%s has %d families, expected %d", path, len(types), len(plain))
	}
}

func parse(t *testing.T, text []byte) map[string]*dto.MetricFamily {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		t.Fatalf("the page is not in Prometheus' format: %v", err)
	}
	return families
}

// request makes a request of the HTTP API and checks the status of its answer.
func request(ctx context.Context, t *testing.T, method, url, body string, status int) {
	t.Helper()
	request, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.SetBasicAuth("guest", "guest")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != status {
		t.Fatalf("%s %s: %s", method, url, response.Status)
	}
}
