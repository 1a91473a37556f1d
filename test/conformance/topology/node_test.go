// Package topology makes the requests with which other tools declare objects, through the client that they use, and
// checks the answers and their effects: operator_test.go those of Kubernetes' messaging-topology-operator,
// terraform_test.go those of Terraform's provider.
package topology

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"os"
	"testing"

	rabbithole "github.com/michaelklishin/rabbit-hole/v3"
)

const (
	created  = http.StatusCreated
	done     = http.StatusNoContent
	refused  = http.StatusBadRequest
	notThere = http.StatusNotFound
)

func endpoint() string {
	if at := os.Getenv("ENDPOINT"); at != "" {
		return at
	}
	return "http://127.0.0.1:15672"
}

func login(t *testing.T, user, password string) *rabbithole.Client {
	t.Helper()
	client, err := rabbithole.NewClient(endpoint(), user, password)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func administrator(t *testing.T) *rabbithole.Client {
	t.Helper()
	return login(t, "guest", "guest")
}

// status returns the status of the answer, whether or not the client turns it into an error.
func status(t *testing.T, res *http.Response, err error) int {
	t.Helper()
	var answer rabbithole.ErrorResponse
	switch {
	case errors.As(err, &answer):
		return answer.StatusCode
	case err != nil:
		t.Fatal(err)
		return 0
	default:
		res.Body.Close()
		return res.StatusCode
	}
}

// answers checks the status of a call's answer.
func answers(t *testing.T, wanted int) func(*http.Response, error) {
	t.Helper()
	return func(res *http.Response, err error) {
		t.Helper()
		if got := status(t, res, err); got != wanted {
			t.Fatalf("answered %d, not %d: %v", got, wanted, err)
		}
	}
}

// missing fails unless reading an object answers that it does not exist.
func missing(t *testing.T, err error) {
	t.Helper()
	var answer rabbithole.ErrorResponse
	want := rabbithole.ErrorResponse{StatusCode: notThere, Message: "Object Not Found", Reason: "Not Found"}
	if !errors.As(err, &answer) || answer != want {
		t.Fatalf("not 'not found': %v", err)
	}
}

// must returns the result of a call that must succeed.
func must[T any](value T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func equal[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Fatalf("%s: %v, not %v", what, got, want)
	}
}

// same compares the JSON of both values.
func same(t *testing.T, what string, got, want any) {
	t.Helper()
	text := func(value any) string { return string(must(json.Marshal(value))(t)) }
	if text(got) != text(want) {
		t.Fatalf("%s: %s, not %s", what, text(got), text(want))
	}
}

func ask(t *testing.T, method, path string, body any, answer any) {
	t.Helper()
	raw := must(json.Marshal(body))(t)
	request := must(http.NewRequest(method, endpoint()+path, bytes.NewReader(raw)))(t)
	request.SetBasicAuth("guest", "guest")
	res := must(http.DefaultClient.Do(request))(t)
	defer res.Body.Close()
	if res.StatusCode >= 300 {
		t.Fatalf("%s %s: %s", method, path, res.Status)
	}
	if err := json.NewDecoder(res.Body).Decode(answer); err != nil {
		t.Fatal(err)
	}
}

// queue returns all properties of a queue that the node reports.
func queue(t *testing.T, vhost, name string) map[string]any {
	t.Helper()
	shown := map[string]any{}
	ask(t, http.MethodGet, "/api/queues/"+url.PathEscape(vhost)+"/"+url.PathEscape(name), nil, &shown)
	return shown
}

// fill publishes a message to a queue.
func fill(t *testing.T, vhost, queue string) {
	t.Helper()
	message := map[string]any{
		"properties": map[string]any{}, "routing_key": queue, "payload": "x", "payload_encoding": "string",
	}
	var answer struct{ Routed bool }
	ask(t, http.MethodPost, "/api/exchanges/"+url.PathEscape(vhost)+"/amq.default/publish", message, &answer)
	equal(t, "routed", answer.Routed, true)
}

// inVhost creates a virtual host for the test, which deletes it at its end.
func inVhost(t *testing.T, client *rabbithole.Client) string {
	t.Helper()
	name := "of/" + t.Name()
	answers(t, created)(client.PutVhost(name, rabbithole.VhostSettings{}))
	t.Cleanup(func() { answers(t, done)(client.DeleteVhost(name)) })
	return name
}
