// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package clustermetrics

import (
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// Requests counts the operator's requests to brokers by outcome.
type Requests struct {
	count *prometheus.CounterVec
}

// NewRequests returns a counter for the transports that Around wraps.
func NewRequests() *Requests {
	return &Requests{count: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "posthorn_operator_broker_requests_total",
		Help: "Requests to the HTTP API of brokers, by method and status; status is error where no answer came.",
	}, []string{"method", "status"})}
}

// Around counts the requests of a transport.
func (r *Requests) Around(next http.RoundTripper) http.RoundTripper { return counted{r, next} }

type counted struct {
	*Requests
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (r counted) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := r.next.RoundTrip(request)
	status := "error"
	if err == nil {
		status = strconv.Itoa(response.StatusCode)
	}
	r.count.WithLabelValues(request.Method, status).Inc()
	return response, err
}

// Describe implements prometheus.Collector.
func (r *Requests) Describe(out chan<- *prometheus.Desc) { r.count.Describe(out) }

// Collect implements prometheus.Collector.
func (r *Requests) Collect(out chan<- prometheus.Metric) { r.count.Collect(out) }
