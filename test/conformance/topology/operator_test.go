package topology

import (
	"testing"

	rabbithole "github.com/michaelklishin/rabbit-hole/v3"
)

// The operator puts an object again when it changes, deletes it with its finalizer, and deletes it again when the
// first answer was lost: 404 counts as success then.

func TestOperatorVhost(t *testing.T) {
	client, name := administrator(t), "topology/vhost"
	settings := rabbithole.VhostSettings{Tags: rabbithole.VhostTags{"a", "b"}, DefaultQueueType: "quorum", Tracing: true}
	answers(t, created)(client.PutVhost(name, settings))
	answers(t, done)(client.PutVhost(name, settings))
	shown := must(client.GetVhost(name))(t)
	same(t, "tags", []string(shown.Tags), []string{"a", "b"})
	equal(t, "type", shown.DefaultQueueType, "quorum")
	equal(t, "tracing", shown.Tracing, true)
	settings.Tracing = false
	answers(t, done)(client.PutVhost(name, settings))
	equal(t, "tracing", must(client.GetVhost(name))(t).Tracing, false)

	// A vhost without limits has an empty answer, and a vhost that does not exist 404.
	limits := must(client.GetVhostLimits(name))(t)
	if len(limits) > 0 && len(limits[0].Value) > 0 {
		t.Fatalf("limits of a new vhost: %v", limits)
	}
	both := rabbithole.VhostLimitsValues{"max-connections": 5, "max-queues": 2}
	answers(t, done)(client.PutVhostLimits(name, both))
	same(t, "limits", must(client.GetVhostLimits(name))(t)[0].Value, both)
	answers(t, done)(client.DeleteVhostLimits(name, rabbithole.VhostLimits{"max-queues"}))
	same(t, "limits", must(client.GetVhostLimits(name))(t)[0].Value, map[string]int{"max-connections": 5})

	answers(t, done)(client.DeleteVhost(name))
	answers(t, notThere)(client.DeleteVhost(name))
	_, err := client.GetVhostLimits(name)
	missing(t, err)
}

func TestOperatorUser(t *testing.T) {
	client, name := administrator(t), "topology-user"
	settings := func(password string, tags ...string) rabbithole.UserSettings {
		return rabbithole.UserSettings{
			Name: name, Tags: tags, PasswordHash: rabbithole.Base64EncodedSaltedPasswordHashSHA512(password),
			HashingAlgorithm: rabbithole.HashingAlgorithmSHA512,
		}
	}
	answers(t, created)(client.PutUser(name, settings("first", "management")))
	equal(t, "logged in as", must(login(t, name, "first").Whoami())(t).Name, name)
	answers(t, done)(client.PutUser(name, settings("second", "management", "policymaker")))
	if _, err := login(t, name, "first").Whoami(); err == nil {
		t.Fatal("the old password is still good")
	}
	who := must(login(t, name, "second").Whoami())(t)
	same(t, "tags", []string(who.Tags), []string{"management", "policymaker"})

	if limits := must(client.GetUserLimits(name))(t); len(limits) > 0 && len(limits[0].Value) > 0 {
		t.Fatalf("limits of a new user: %v", limits)
	}
	both := rabbithole.UserLimitsValues{"max-connections": 3, "max-channels": 4}
	answers(t, done)(client.PutUserLimits(name, both))
	same(t, "limits", must(client.GetUserLimits(name))(t)[0].Value, both)
	answers(t, done)(client.DeleteUserLimits(name, rabbithole.UserLimits{"max-channels"}))
	same(t, "limits", must(client.GetUserLimits(name))(t)[0].Value, map[string]int{"max-connections": 3})

	// The client omits an empty hash: a user without a password.
	without := settings("")
	without.PasswordHash = ""
	answers(t, done)(client.PutUser(name, without))
	answers(t, done)(client.DeleteUser(name))
	answers(t, notThere)(client.DeleteUser(name))
	answers(t, created)(client.PutUser(name, without))
	if _, err := login(t, name, "").Whoami(); err == nil {
		t.Fatal("logged in without a password")
	}
	answers(t, done)(client.DeleteUser(name))
}

func TestOperatorPermission(t *testing.T) {
	client := administrator(t)
	vhost, name := inVhost(t, client), "topology-permitted"
	rights := rabbithole.Permissions{Configure: "^a", Write: ".*", Read: ""}
	answers(t, refused)(client.UpdatePermissionsIn(vhost, name, rights))
	answers(t, created)(client.PutUser(name, rabbithole.UserSettings{Password: "p"}))
	answers(t, created)(client.UpdatePermissionsIn(vhost, name, rights))
	rights.Read = "^b"
	answers(t, done)(client.UpdatePermissionsIn(vhost, name, rights))
	shown := must(client.GetPermissionsIn(vhost, name))(t)
	equal(t, "rights", shown.Configure+" "+shown.Write+" "+shown.Read, "^a .* ^b")
	answers(t, done)(client.ClearPermissionsIn(vhost, name))
	answers(t, notThere)(client.ClearPermissionsIn(vhost, name))

	topic := rabbithole.TopicPermissions{Exchange: "amq.topic", Write: "^a", Read: ".*"}
	answers(t, created)(client.UpdateTopicPermissionsIn(vhost, name, topic))
	topic.Write = "^c"
	answers(t, done)(client.UpdateTopicPermissionsIn(vhost, name, topic))
	topics := must(client.GetTopicPermissionsIn(vhost, name))(t)
	equal(t, "topic rights", len(topics), 1)
	equal(t, "write", topics[0].Write, "^c")
	answers(t, done)(client.DeleteTopicPermissionsIn(vhost, name, "amq.topic"))
	answers(t, notThere)(client.DeleteTopicPermissionsIn(vhost, name, "amq.topic"))
	answers(t, done)(client.DeleteUser(name))
	answers(t, notThere)(client.ClearPermissionsIn(vhost, name))
	answers(t, notThere)(client.DeleteTopicPermissionsIn(vhost, name, "amq.topic"))
}

func TestOperatorQueue(t *testing.T) {
	client := administrator(t)
	vhost := inVhost(t, client)
	for _, kind := range []string{"quorum", "classic"} {
		settings := func() rabbithole.QueueSettings {
			arguments := map[string]any{"x-max-length": 100.0, "x-dead-letter-exchange": "dlx"}
			return rabbithole.QueueSettings{Type: kind, Durable: true, Arguments: arguments}
		}
		answers(t, created)(client.DeclareQueue(vhost, kind, settings()))
		answers(t, done)(client.DeclareQueue(vhost, kind, settings()))
		other := settings()
		other.Arguments["x-max-length"] = 101.0
		answers(t, refused)(client.DeclareQueue(vhost, kind, other))
		shown := must(client.GetQueue(vhost, kind))(t)
		equal(t, "type", shown.Type, kind)
		same(t, "maximum", shown.Arguments["x-max-length"], 100)

		fill(t, vhost, kind)
		equal(t, "messages", must(client.GetQueue(vhost, kind))(t).Messages, 1)
		answers(t, refused)(client.DeleteQueue(vhost, kind, rabbithole.QueueDeleteOptions{IfEmpty: true}))
		answers(t, done)(client.DeleteQueue(vhost, kind, rabbithole.QueueDeleteOptions{IfUnused: true}))
		answers(t, notThere)(client.DeleteQueue(vhost, kind, rabbithole.QueueDeleteOptions{}))
		_, err := client.GetQueue(vhost, kind)
		missing(t, err)
	}
	answers(t, notThere)(client.DeclareQueue("topology/none", "q", rabbithole.QueueSettings{Durable: true}))
	// Without a type the vhost's default applies, and an unknown type is refused.
	answers(t, created)(client.DeclareQueue(vhost, "plain", rabbithole.QueueSettings{Durable: true}))
	equal(t, "type", must(client.GetQueue(vhost, "plain"))(t).Type, "classic")
	answers(t, refused)(client.DeclareQueue(vhost, "m", rabbithole.QueueSettings{Type: "mirrored", Durable: true}))
	stream := rabbithole.QueueSettings{Type: "stream", Durable: true, Arguments: map[string]any{"x-max-age": "7D"}}
	answers(t, created)(client.DeclareQueue(vhost, "s", stream))
	answers(t, done)(client.DeclareQueue(vhost, "s", stream))
	equal(t, "type", must(client.GetQueue(vhost, "s"))(t).Type, "stream")
}

func TestOperatorExchangeAndBinding(t *testing.T) {
	client := administrator(t)
	vhost := inVhost(t, client)
	settings := rabbithole.ExchangeSettings{Type: "topic", Durable: true, Arguments: map[string]any{"alternate-exchange": "amq.fanout"}}
	answers(t, created)(client.DeclareExchange(vhost, "from", settings))
	answers(t, done)(client.DeclareExchange(vhost, "from", settings))
	other := settings
	other.Type = "direct"
	answers(t, refused)(client.DeclareExchange(vhost, "from", other))
	answers(t, created)(client.DeclareExchange(vhost, "to", rabbithole.ExchangeSettings{Type: "fanout"}))
	answers(t, created)(client.DeclareQueue(vhost, "q", rabbithole.QueueSettings{Durable: true}))

	for _, kind := range []string{"queue", "exchange"} {
		destination := map[string]string{"queue": "q", "exchange": "to"}[kind]
		// The property keys with which bindings without arguments are deleted.
		for key, properties := range map[string]string{"": "~", "a.b": "a.b", "t~1": "t%7E1"} {
			binding := rabbithole.BindingInfo{
				Vhost: vhost, Source: "from", Destination: destination, DestinationType: kind, RoutingKey: key,
				Arguments: map[string]any{},
			}
			answers(t, created)(client.DeclareBinding(vhost, binding))
			answers(t, created)(client.DeclareBinding(vhost, binding))
			binding.PropertiesKey = properties
			answers(t, done)(client.DeleteBinding(vhost, binding))
			answers(t, notThere)(client.DeleteBinding(vhost, binding))
		}
		// A binding with arguments is looked up in the list.
		with := rabbithole.BindingInfo{
			Source: "from", Destination: destination, DestinationType: kind, RoutingKey: "k",
			Arguments: map[string]any{"x": "y", "n": 1.0},
		}
		answers(t, created)(client.DeclareBinding(vhost, with))
		list := client.ListQueueBindingsBetween
		if kind == "exchange" {
			list = client.ListExchangeBindingsBetween
		}
		found := must(list(vhost, "from", destination))(t)
		equal(t, "bindings", len(found), 1)
		equal(t, "key", found[0].RoutingKey, "k")
		same(t, "arguments", found[0].Arguments, with.Arguments)
		answers(t, done)(client.DeleteBinding(vhost, found[0]))
		equal(t, "bindings", len(must(list(vhost, "from", destination))(t)), 0)
	}
	nowhere := rabbithole.BindingInfo{Source: "from", Destination: "none", DestinationType: "queue"}
	answers(t, notThere)(client.DeclareBinding(vhost, nowhere))
	answers(t, done)(client.DeleteExchange(vhost, "from"))
	answers(t, notThere)(client.DeleteExchange(vhost, "from"))
}

func TestOperatorPolicies(t *testing.T) {
	client := administrator(t)
	vhost := inVhost(t, client)
	answers(t, created)(client.DeclareQueue(vhost, "some", rabbithole.QueueSettings{Durable: true}))
	policy := rabbithole.Policy{
		Vhost: vhost, Name: "p", Pattern: "^some$", ApplyTo: "queues", Priority: 3,
		Definition: rabbithole.PolicyDefinition{"max-length": 10.0},
	}
	answers(t, created)(client.PutPolicy(vhost, "p", policy))
	policy.Definition["max-length"] = 20.0
	answers(t, done)(client.PutPolicy(vhost, "p", policy))
	limit := rabbithole.OperatorPolicy{
		Vhost: vhost, Name: "o", Pattern: ".*", ApplyTo: "queues", Definition: rabbithole.PolicyDefinition{"max-length": 15.0},
	}
	answers(t, created)(client.PutOperatorPolicy(vhost, "o", limit))
	answers(t, done)(client.PutOperatorPolicy(vhost, "o", limit))
	shown := queue(t, vhost, "some")
	same(t, "policies", []any{shown["policy"], shown["operator_policy"]}, []any{"p", "o"})
	same(t, "in force", shown["effective_policy_definition"], map[string]any{"max-length": 15})
	wrong := policy
	wrong.Definition = rabbithole.PolicyDefinition{"max-length": "many"}
	answers(t, refused)(client.PutPolicy(vhost, "p", wrong))
	answers(t, done)(client.DeleteOperatorPolicy(vhost, "o"))
	answers(t, notThere)(client.DeleteOperatorPolicy(vhost, "o"))
	same(t, "in force", queue(t, vhost, "some")["effective_policy_definition"], map[string]any{"max-length": 20})
	answers(t, done)(client.DeletePolicy(vhost, "p"))
	answers(t, notThere)(client.DeletePolicy(vhost, "p"))
}

// The broker keeps the parameter for components that know it; federation and shovels do not exist, and their
// parameters are refused.
func TestOperatorParameters(t *testing.T) {
	client := administrator(t)
	vhost, name := inVhost(t, client), "schema_definition_sync_upstream"
	upstream := map[string]any{"username": "u", "password": "p", "endpoints": []string{"a:5672", "b:5672"}}
	answers(t, created)(client.PutGlobalParameter(name, upstream))
	answers(t, done)(client.PutGlobalParameter(name, upstream))
	same(t, "parameter", must(client.GetGlobalParameter(name))(t).Value, upstream)
	answers(t, done)(client.DeleteGlobalParameter(name))
	answers(t, notThere)(client.DeleteGlobalParameter(name))
	upstreamAt := rabbithole.FederationDefinition{Uri: rabbithole.URISet{"amqp://a"}}
	answers(t, refused)(client.PutFederationUpstream(vhost, "f", upstreamAt))
	answers(t, notThere)(client.DeleteFederationUpstream(vhost, "f"))
	shovel := rabbithole.ShovelDefinition{SourceURI: rabbithole.URISet{"amqp://a"}, DestinationURI: rabbithole.URISet{"amqp://b"}}
	answers(t, refused)(client.DeclareShovel(vhost, "s", shovel))
	answers(t, notThere)(client.DeleteShovel(vhost, "s"))
}
