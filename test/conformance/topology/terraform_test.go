package topology

import (
	"net/url"
	"strings"
	"testing"

	rabbithole "github.com/michaelklishin/rabbit-hole/v3"
)

// The provider reads each created object at once, and a difference from the wanted one shows in the next plan. A
// missing object is an error with status 404 for a read, and a status for a deletion.

func TestTerraformVhost(t *testing.T) {
	client, name := administrator(t), "terraform vhost"
	_, err := client.GetVhost(name)
	missing(t, err)
	answers(t, created)(client.PutVhost(name, rabbithole.VhostSettings{Description: "d", DefaultQueueType: "quorum", Tracing: true}))
	answers(t, done)(client.PutVhostLimits(name, rabbithole.VhostLimitsValues{"max-connections": 7}))
	shown := must(client.GetVhost(name))(t)
	equal(t, "description", shown.Description, "d")
	equal(t, "type", shown.DefaultQueueType, "quorum")
	equal(t, "tracing", shown.Tracing, true)
	// An update removes all limits, also missing ones, and sets them again.
	answers(t, done)(client.PutVhost(name, rabbithole.VhostSettings{Description: "e", DefaultQueueType: "quorum"}))
	res, err := client.DeleteVhostLimits(name, rabbithole.VhostLimits{"max-connections", "max-queues"})
	if got := status(t, res, err); got != done && got != notThere {
		t.Fatalf("limits that are not there: %d", got)
	}
	answers(t, done)(client.PutVhostLimits(name, rabbithole.VhostLimitsValues{"max-queues": 8}))
	equal(t, "description", must(client.GetVhost(name))(t).Description, "e")
	same(t, "limits", must(client.GetVhostLimits(name))(t)[0].Value, map[string]int{"max-queues": 8})
	answers(t, done)(client.DeleteVhost(name))
	answers(t, notThere)(client.DeleteVhost(name))
	_, err = client.GetVhost(name)
	missing(t, err)
}

func TestTerraformUser(t *testing.T) {
	client, name := administrator(t), "terraform user"
	_, err := client.GetUser(name)
	missing(t, err)
	answers(t, created)(client.PutUser(name, rabbithole.UserSettings{Password: "foobar", Tags: rabbithole.UserTags{"administrator", "management"}}))
	shown := must(client.GetUser(name))(t)
	same(t, "tags", []string(shown.Tags), []string{"administrator", "management"})
	equal(t, "logged in as", must(login(t, name, "foobar").Whoami())(t).Name, name)
	answers(t, done)(client.PutUser(name, rabbithole.UserSettings{Password: "foobarry", Tags: rabbithole.UserTags{}}))
	equal(t, "tags", len(must(client.GetUser(name))(t).Tags), 0)
	_, err = login(t, name, "foobar").Whoami()
	if err == nil || !strings.Contains(err.Error(), "401") {
		t.Fatalf("the old password: %v", err)
	}
	answers(t, done)(client.DeleteUser(name))
	_, err = client.GetUser(name)
	missing(t, err)
}

func TestTerraformPermissions(t *testing.T) {
	client := administrator(t)
	vhost, name := inVhost(t, client), "terraform-permitted"
	answers(t, created)(client.PutUser(name, rabbithole.UserSettings{Password: "p", Tags: rabbithole.UserTags{"management"}}))
	_, err := client.GetPermissionsIn(vhost, name)
	missing(t, err)
	for _, rights := range []rabbithole.Permissions{{Configure: ".*", Write: ".*", Read: ".*"}, {}} {
		res, err := client.UpdatePermissionsIn(vhost, name, rights)
		if got := status(t, res, err); got != created && got != done {
			t.Fatalf("answered %d", got)
		}
		shown := must(client.GetPermissionsIn(vhost, name))(t)
		got := rabbithole.Permissions{Configure: shown.Configure, Write: shown.Write, Read: shown.Read}
		equal(t, "rights", got, rights)
		equal(t, "of", shown.User+"@"+shown.Vhost, name+"@"+vhost)
	}
	answers(t, done)(client.ClearPermissionsIn(vhost, name))
	_, err = client.GetPermissionsIn(vhost, name)
	missing(t, err)

	// The path treats all of them together as one object.
	for at, exchange := range []string{"amq.topic", "other"} {
		answers(t, []int{created, done}[at])(client.UpdateTopicPermissionsIn(vhost, name, rabbithole.TopicPermissions{Exchange: exchange, Write: ".*", Read: "^r"}))
	}
	equal(t, "topic rights", len(must(client.GetTopicPermissionsIn(vhost, name))(t)), 2)
	answers(t, done)(client.ClearTopicPermissionsIn(vhost, name))
	_, err = client.GetTopicPermissionsIn(vhost, name)
	missing(t, err)
	answers(t, done)(client.DeleteUser(name))
}

func TestTerraformQueue(t *testing.T) {
	client := administrator(t)
	vhost := inVhost(t, client)
	// Strings, as they come from `arguments`, and any value from `arguments_json`.
	for name, arguments := range map[string]map[string]any{
		"none":    {},
		"strings": {"x-queue-type": "quorum", "x-overflow": "reject-publish"},
		"json":    {"x-message-ttl": 5000.0, "x-single-active-consumer": true, "x-dead-letter-exchange": "dlx"},
	} {
		settings := rabbithole.QueueSettings{Durable: name != "none", AutoDelete: name == "none", Arguments: arguments}
		answers(t, created)(client.DeclareQueue(vhost, name, settings))
		shown := must(client.GetQueue(vhost, name))(t)
		equal(t, "durable", shown.Durable, settings.Durable)
		equal(t, "auto delete", bool(shown.AutoDelete), settings.AutoDelete)
		same(t, "arguments", withoutType(shown.Arguments, arguments), arguments)
		answers(t, done)(client.DeleteQueue(vhost, name))
		answers(t, notThere)(client.DeleteQueue(vhost, name))
		_, err := client.GetQueue(vhost, name)
		missing(t, err)
	}
}

// withoutType removes the type that the node adds to a queue declared without one.
func withoutType(shown, wanted map[string]any) map[string]any {
	if _, named := wanted["x-queue-type"]; !named {
		delete(shown, "x-queue-type")
	}
	return shown
}

func TestTerraformExchange(t *testing.T) {
	client := administrator(t)
	vhost := inVhost(t, client)
	for _, kind := range []string{"direct", "fanout", "topic", "headers", "x-consistent-hash"} {
		settings := rabbithole.ExchangeSettings{
			Type: kind, Durable: true, AutoDelete: kind == "fanout", Arguments: map[string]any{"alternate-exchange": "amq.fanout"},
		}
		answers(t, created)(client.DeclareExchange(vhost, kind, settings))
		shown := must(client.GetExchange(vhost, kind))(t)
		equal(t, "type", shown.Type, kind)
		equal(t, "durable", shown.Durable, true)
		equal(t, "auto delete", shown.AutoDelete, settings.AutoDelete)
		same(t, "arguments", shown.Arguments, settings.Arguments)
		answers(t, done)(client.DeleteExchange(vhost, kind))
		_, err := client.GetExchange(vhost, kind)
		missing(t, err)
	}
}

// The end of the answer's Location identifies a binding.
func TestTerraformBinding(t *testing.T) {
	client := administrator(t)
	vhost := inVhost(t, client)
	answers(t, created)(client.DeclareQueue(vhost, "a/queue", rabbithole.QueueSettings{Durable: true}))
	answers(t, created)(client.DeclareExchange(vhost, "other", rabbithole.ExchangeSettings{Type: "topic"}))
	for _, binding := range []rabbithole.BindingInfo{
		{Destination: "a/queue", DestinationType: "queue"},
		{Destination: "a/queue", DestinationType: "queue", RoutingKey: "#"},
		{Destination: "a/queue", DestinationType: "queue", RoutingKey: "ANYTHING.#", Arguments: map[string]any{"k1": "v1", "k2": 2.0}},
		{Destination: "other", DestinationType: "exchange", RoutingKey: "a b/c%d~e"},
	} {
		binding.Source = "amq.topic"
		res := must(client.DeclareBinding(vhost, binding))(t)
		res.Body.Close()
		equal(t, "status", res.StatusCode, created)
		location := strings.Split(res.Header.Get("Location"), "/")
		key := must(url.PathUnescape(location[len(location)-1]))(t)
		list := client.ListQueueBindingsBetween
		if binding.DestinationType == "exchange" {
			list = client.ListExchangeBindingsBetween
		}
		find := func(all []rabbithole.BindingInfo) (found []rabbithole.BindingInfo) {
			for _, b := range all {
				if b.Source == binding.Source && b.Destination == binding.Destination &&
					b.DestinationType == binding.DestinationType && b.PropertiesKey == key {
					found = append(found, b)
				}
			}
			return found
		}
		found := find(must(list(vhost, binding.Source, binding.Destination))(t))
		equal(t, "bindings with key "+key, len(found), 1)
		equal(t, "routing key", found[0].RoutingKey, binding.RoutingKey)
		equal(t, "arguments", len(found[0].Arguments), len(binding.Arguments))
		equal(t, "of the vhost", len(find(must(client.ListBindingsIn(vhost))(t))), 1)
		binding.PropertiesKey = key
		answers(t, done)(client.DeleteBinding(vhost, binding))
		equal(t, "bindings", len(find(must(list(vhost, binding.Source, binding.Destination))(t))), 0)
		answers(t, notThere)(client.DeleteBinding(vhost, binding))
	}
}

func TestTerraformPolicies(t *testing.T) {
	client := administrator(t)
	vhost := inVhost(t, client)
	policy := rabbithole.Policy{
		Vhost: vhost, Name: "p", Pattern: ".*", ApplyTo: "all", Priority: 1,
		Definition: rabbithole.PolicyDefinition{"max-length": 10.0, "overflow": "reject-publish"},
	}
	answers(t, created)(client.PutPolicy(vhost, "p", policy))
	policy.Priority = 2
	answers(t, done)(client.PutPolicy(vhost, "p", policy))
	same(t, "policy", must(client.GetPolicy(vhost, "p"))(t), policy)
	answers(t, done)(client.DeletePolicy(vhost, "p"))
	_, err := client.GetPolicy(vhost, "p")
	missing(t, err)
	limit := rabbithole.OperatorPolicy{
		Vhost: vhost, Name: "o", Pattern: ".*", ApplyTo: "queues", Definition: rabbithole.PolicyDefinition{"message-ttl": 3600000.0},
	}
	answers(t, created)(client.PutOperatorPolicy(vhost, "o", limit))
	same(t, "operator policy", must(client.GetOperatorPolicy(vhost, "o"))(t), limit)
	answers(t, done)(client.DeleteOperatorPolicy(vhost, "o"))
	_, err = client.GetOperatorPolicy(vhost, "o")
	missing(t, err)
}
