package peers

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"reflect"
	"sort"
	"strings"
	"testing"
)

// api is an HTTP API with its credentials.
type api struct{ url, user, password string }

func (a api) ask(t *testing.T, method, path string, body any) (int, []byte) {
	t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequest(method, a.url+path, bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	request.SetBasicAuth(a.user, a.password)
	request.Header.Set("content-type", "application/json")
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	read, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, read
}

func (a api) must(t *testing.T, method, path string, body any) []byte {
	t.Helper()
	status, text := a.ask(t, method, path, body)
	if status/100 != 2 {
		t.Fatalf("%s %s: %d %s", method, path, status, text)
	}
	return text
}

type object = map[string]any

func (a api) definitions(t *testing.T) object {
	t.Helper()
	var all object
	if err := json.Unmarshal(a.must(t, "GET", "/api/definitions", nil), &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// declare declares one object of every kind that both support, over HTTP.
func declare(t *testing.T, a api) {
	t.Helper()
	put := func(path string, body object) { t.Helper(); a.must(t, "PUT", path, body) }
	put("/api/vhosts/v", object{"description": "a virtual host", "tags": []string{"one", "two"}, "default_queue_type": "quorum"})
	put("/api/vhosts/a%2Fb", object{})
	for name, algorithm := range map[string]string{"old": "rabbit_password_hashing_sha256", "new": "rabbit_password_hashing_sha512"} {
		put("/api/users/"+name, object{"password": "secret of " + name, "hashing_algorithm": algorithm, "tags": "administrator,monitoring"})
		put("/api/permissions/v/"+name, object{"configure": "^a", "write": ".*", "read": "^$"})
	}
	// A user with argon2id, which RabbitMQ does not support, and one without a password.
	put("/api/users/own", object{"password": "secret of own", "tags": ""})
	put("/api/users/none", object{"password_hash": "", "tags": "management"})
	put("/api/topic-permissions/v/old", object{"exchange": "amq.topic", "write": "^a\\.", "read": ".*"})
	put("/api/user-limits/old/max-connections", object{"value": 10})
	put("/api/user-limits/old/max-channels", object{"value": 100})
	put("/api/vhost-limits/v/max-connections", object{"value": 100})
	put("/api/vhost-limits/v/max-queues", object{"value": 50})
	put("/api/policies/v/p", object{"pattern": "^a", "definition": object{"max-length": 9, "dead-letter-exchange": "x"}, "priority": 3, "apply-to": "queues"})
	put("/api/policies/v/x", object{"pattern": "^x", "definition": object{"alternate-exchange": "amq.fanout"}, "priority": 0, "apply-to": "exchanges"})
	put("/api/operator-policies/v/o", object{"pattern": "", "definition": object{"message-ttl": 1000}, "priority": 1, "apply-to": "queues"})
	put("/api/global-parameters/mine", object{"name": "mine", "value": object{"a": []int{1, 2}, "b": "text"}})
	for _, kind := range []string{"direct", "fanout", "topic", "headers"} {
		put("/api/exchanges/v/"+kind, object{"type": kind, "durable": kind != "fanout", "auto_delete": kind == "topic", "arguments": object{}})
	}
	put("/api/exchanges/v/x", object{"type": "direct", "durable": true, "arguments": object{"alternate-exchange": "amq.topic"}})
	put("/api/queues/v/a-classic", object{"durable": true, "arguments": object{
		"x-queue-type": "classic", "x-max-priority": 5, "x-message-ttl": 60000, "x-dead-letter-exchange": "x", "x-dead-letter-routing-key": "k",
		"x-expires": 1800000, "x-single-active-consumer": true,
	}})
	put("/api/queues/v/a-quorum", object{"durable": true, "arguments": object{
		"x-queue-type": "quorum", "x-delivery-limit": 7, "x-max-length": 1000, "x-overflow": "reject-publish", "x-quorum-initial-group-size": 1,
	}})
	put("/api/queues/v/by-default", object{"durable": true})
	bind := func(source, kind, to string, body object) {
		t.Helper()
		a.must(t, "POST", "/api/bindings/v/e/"+source+"/"+kind+"/"+to, body)
	}
	bind("direct", "q", "a-classic", object{"routing_key": "k/1", "arguments": object{}})
	bind("topic", "q", "a-quorum", object{"routing_key": "a.*.#", "arguments": object{}})
	bind("topic", "e", "x", object{"routing_key": "", "arguments": object{}})
	bind("headers", "q", "a-quorum", object{"routing_key": "", "arguments": object{"x-match": "any", "n": 1, "s": "text", "b": true}})
}

// Kinds of definitions, with the fields that identify one.
var kinds = map[string][]string{
	"users":             {"name"},
	"vhosts":            {"name"},
	"permissions":       {"user", "vhost"},
	"topic_permissions": {"user", "vhost", "exchange"},
	"parameters":        {"vhost", "component", "name"},
	"global_parameters": {"name"},
	"policies":          {"vhost", "name"},
	"queues":            {"vhost", "name"},
	"exchanges":         {"vhost", "name"},
	"bindings":          {"vhost", "source", "destination", "destination_type", "routing_key"},
}

// indexed returns the definitions of a kind by their identity.
func indexed(all object, kind string) map[string]object {
	found := map[string]object{}
	list, _ := all[kind].([]any)
	for _, entry := range list {
		entry := entry.(object)
		// RabbitMQ before 4.1 does not support it and omits it.
		if metadata, ok := entry["metadata"].(object); ok {
			delete(metadata, "protected_from_deletion")
		}
		var name []string
		for _, key := range kinds[kind] {
			name = append(name, fmt.Sprint(entry[key]))
		}
		found[strings.Join(name, " ")] = entry
	}
	return found
}

// same compares two values by meaning: RabbitMQ encodes no limits as an empty list, and the order of tags does not
// matter.
func same(one, other any) bool {
	plain := func(value any) any {
		switch value := value.(type) {
		case []any:
			if len(value) == 0 {
				return nil
			}
			sorted := append([]any{}, value...)
			sort.Slice(sorted, func(i, j int) bool { return fmt.Sprint(sorted[i]) < fmt.Sprint(sorted[j]) })
			return sorted
		case object:
			if len(value) == 0 {
				return nil
			}
		}
		return value
	}
	return reflect.DeepEqual(plain(one), plain(other))
}

// carried fails for each definition that only one side has, or that differs in a field that both have.
func carried(t *testing.T, from, to object) {
	t.Helper()
	for kind := range kinds {
		there := indexed(to, kind)
		for name, entry := range indexed(from, kind) {
			other, found := there[name]
			if !found {
				// Each cluster has an id of its own.
				if !strings.HasPrefix(name, "internal") {
					t.Errorf("%s: %q is not there", kind, name)
				}
				continue
			}
			for field, value := range entry {
				if got, told := other[field]; told && !same(value, got) && !strings.HasPrefix(name, "internal") {
					t.Errorf("%s: %q: %s is %v, and was %v", kind, name, field, got, value)
				}
			}
		}
	}
}

func started(t *testing.T) api {
	t.Helper()
	directory := os.Getenv("PEERS")
	if directory == "" {
		t.Skip("PEERS names no directory with RabbitMQ in it: make bench-peers PEERS=rabbitmq installs it, test/conformance/run definitions runs this")
	}
	chosen, err := Choose([]string{"rabbitmq"}, directory)
	if err != nil {
		t.Fatal(err)
	}
	broker, err := chosen[0].Start(directory, Demand{Management: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(broker.Remove)
	t.Logf("RabbitMQ %s", broker.Version)
	return api{fmt.Sprintf("http://127.0.0.1:%d", broker.Ports["management"]), "guest", "guest"}
}

// RabbitMQ imports a node's export (FROM), and another node (TO) imports RabbitMQ's export.
func TestDefinitionsAreExchangedWithRabbitMQ(t *testing.T) {
	rabbitmq := started(t)
	from, to := api{os.Getenv("FROM"), "guest", "guest"}, api{os.Getenv("TO"), "guest", "guest"}
	declare(t, from)
	ours := from.definitions(t)
	t.Run("RabbitMQ imports what we export", func(t *testing.T) {
		rabbitmq.must(t, "POST", "/api/definitions", ours)
	})
	// RabbitMQ's guest is now ours, with argon2id.
	for _, name := range []string{"old", "new"} {
		t.Run("a user logs in there with the password from here: "+name, func(t *testing.T) {
			user := api{rabbitmq.url, name, "secret of " + name}
			user.must(t, "GET", "/api/whoami", nil)
			user.password = "wrong"
			if status, _ := user.ask(t, "GET", "/api/whoami", nil); status != http.StatusUnauthorized {
				t.Fatalf("%d", status)
			}
		})
	}
	rabbitmq.user, rabbitmq.password = "new", "secret of new"
	theirs := rabbitmq.definitions(t)
	t.Run("RabbitMQ has what we exported", func(t *testing.T) { carried(t, ours, theirs) })
	t.Run("we import what RabbitMQ exports", func(t *testing.T) {
		to.must(t, "POST", "/api/definitions", theirs)
		to.must(t, "POST", "/api/definitions", theirs)
	})
	t.Run("we have what RabbitMQ exported", func(t *testing.T) { carried(t, theirs, to.definitions(t)) })
	t.Run("a user logs in here with the password from there", func(t *testing.T) {
		for _, name := range []string{"old", "new", "own"} {
			api{to.url, name, "secret of " + name}.must(t, "GET", "/api/whoami", nil)
		}
	})
}
