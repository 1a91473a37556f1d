// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package envtest

import (
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// longInBytes has few enough characters and too many bytes.
var longInBytes = strings.Repeat("é", 128)

// manyArguments and manyTags have one item more than the schema allows.
var (
	manyArguments = "{" + numbered("a%d: 1", 65) + "}"
	manyTags      = "[" + numbered("t%d", 33) + "]"
)

func numbered(format string, count int) string {
	items := make([]string, count)
	for i := range items {
		items[i] = fmt.Sprintf(format, i)
	}
	return strings.Join(items, ", ")
}

// nonsense returns the manifest of an object with a spec in YAML.
func nonsense(kind, name, spec string) *unstructured.Unstructured {
	GinkgoHelper()
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "posthorn.io/v1alpha1", "kind": kind, "metadata": map[string]any{"namespace": "default", "name": name},
	}}
	var value any
	Expect(yaml.Unmarshal([]byte(spec), &value)).To(Succeed(), spec)
	object.Object["spec"] = value
	return object
}

// refuses expects the API server to refuse a spec.
func refuses(kind string) func(words, spec string) {
	return func(words, spec string) { refusedWith(strictly(nonsense(kind, "n", spec)), words) }
}

var _ = DescribeTable("a nonsense BrokerCluster is refused by the API server", refuses("BrokerCluster"),
	Entry("replicas in words", `spec.replicas`, `{replicas: three}`),
	Entry("no replica", `spec.replicas`, `{replicas: 0}`),
	Entry("a version with a blank", `spec.version`, `{version: "1.0 beta"}`),
	Entry("a version that is a number", `spec.version`, `{version: 1.0}`),
	Entry("storage that is not a quantity", `spec.storage.size`, `{storage: {size: big}}`),
	Entry("an unknown policy for volumes", `spec.storage.whenDeleted`, `{storage: {whenDeleted: Recycle}}`),
	Entry("settings that are a list", `spec.config`, `{config: [log.level]}`),
	Entry("a setting that is a list", `spec.config`, `{config: {log.level: [debug]}}`),
	Entry("a setting in capitals", `configuration keys look like`, `{config: {LOG_LEVEL: debug}}`),
	Entry("a setting with two slashes", `configuration keys look like`, `{config: {advertised_listeners.a/b/c: "h:1"}}`),
	Entry("an advertised address of an unknown listener", `the broker has no listener for advertised_listeners.ampq; its listeners are amqp, amqp/ssl, http/web-amqp`, `{config: {advertised_listeners.ampq: "broker.example.org:30672"}}`),
	Entry("an advertised address without a port", `advertised_listeners.amqp/ssl must be a host name or address, a colon and a port`, `{config: {advertised_listeners.amqp/ssl: broker.example.org}}`),
	Entry("an advertised IPv6 address without brackets", `advertised_listeners.mqtt must be a host name or address`, `{config: {advertised_listeners.mqtt: "2001:db8::1:1883"}}`),
	Entry("a misspelt key", `the broker knows no key log.levels; "posthorn config reference" lists the keys`, `{config: {log.levels: debug, log.format: json}}`),
	Entry("resources of another type", `spec.resources`, `{resources: lots}`),
	Entry("memory that is not a quantity", `spec.resources.limits`, `{resources: {limits: {memory: lots}}}`),
	Entry("TLS that is a boolean", `spec.tls`, `{tls: true}`),
	Entry("a misspelt field of TLS", `unknown field "spec.tls.secret"`, `{tls: {secret: s}}`),
	Entry("a protocol in capitals", `Unsupported value`, `{protocols: [AMQP]}`),
	Entry("a step timeout in words", `spec.upgrade.stepTimeout`, `{upgrade: {stepTimeout: long}}`),
	Entry("paused in words", `spec.paused`, `{paused: "yes"}`),
	Entry("a podTemplate that is a list", `spec.podTemplate`, `{podTemplate: [a]}`),
	Entry("a field of StatefulSets", `unknown field "spec.podManagementPolicy"`, `{podManagementPolicy: Parallel}`),
	Entry("a field of the RabbitMQ cluster operator", `unknown field "spec.rabbitmq"`, `{rabbitmq: {additionalConfig: x}}`),
	Entry("a field of an older layout", `unknown field "spec.size"`, `{size: 3}`),
)

var _ = DescribeTable("a nonsense Queue is refused by the API server", refuses("Queue"),
	Entry("a value with more bytes than characters", `spec.name: Invalid value`, `{clusterRef: {name: c}, name: `+longInBytes+`}`),
	Entry("no cluster", `spec.clusterRef: Required value`, `{}`),
	Entry("a cluster without a name", `spec.clusterRef.name`, `{clusterRef: {name: ""}}`),
	Entry("a cluster of another type", `spec.clusterRef`, `{clusterRef: c}`),
	Entry("a namespace of the cluster that is too long", `spec.clusterRef.namespace`, `{clusterRef: {name: c, namespace: `+strings.Repeat("n", 64)+`}}`),
	Entry("an unknown adoption", `spec.adoption: Unsupported value`, `{clusterRef: {name: c}, adoption: Always}`),
	Entry("an unknown reclaim policy", `spec.reclaimPolicy: Unsupported value`, `{clusterRef: {name: c}, reclaimPolicy: Shred}`),
	Entry("an empty vhost", `spec.vhost`, `{clusterRef: {name: c}, vhost: ""}`),
	Entry("a vhost that is too long", `spec.vhost`, `{clusterRef: {name: c}, vhost: `+strings.Repeat("n", 256)+`}`),
	Entry("a vhost that is a number", `spec.vhost`, `{clusterRef: {name: c}, vhost: 1}`),
	Entry("a name with a line break", `must not contain control characters`, `{clusterRef: {name: c}, name: "a\nb"}`),
	Entry("a name with a null character", `must not contain control characters`, `{clusterRef: {name: c}, name: "a\x00"}`),
	Entry("a name that is a list", `spec.name`, `{clusterRef: {name: c}, name: [a]}`),
	Entry("a type in capitals", `spec.type: Unsupported value`, `{clusterRef: {name: c}, type: Quorum}`),
	Entry("a type that is a number", `spec.type`, `{clusterRef: {name: c}, type: 1}`),
	Entry("more replicas than a cluster has", `spec.replicas`, `{clusterRef: {name: c}, replicas: 10}`),
	Entry("replicas in words", `spec.replicas`, `{clusterRef: {name: c}, replicas: three}`),
	Entry("half a replica", `spec.replicas`, `{clusterRef: {name: c}, replicas: 1.5}`),
	Entry("arguments that are a list", `spec.arguments`, `{clusterRef: {name: c}, arguments: [x-max-length]}`),
	Entry("arguments that are a string", `spec.arguments`, `{clusterRef: {name: c}, arguments: x-max-length}`),
	Entry("too many arguments", `spec.arguments: Too many`, `{clusterRef: {name: c}, arguments: `+manyArguments+`}`),
	Entry("the argument of the number of replicas", `they come from spec.type and spec.replicas`, `{clusterRef: {name: c}, arguments: {x-quorum-initial-group-size: 3}}`),
	Entry("an argument of streams", `a quorum queue has no x-max-age`, `{clusterRef: {name: c}, arguments: {x-max-age: 7D}}`),
	Entry("two arguments that are wrong", `x-message-ttl must be an integer of at least 0 and at most 315360000000`, `{clusterRef: {name: c}, arguments: {x-max-length: a, x-message-ttl: -1}}`),
	Entry("an integer that is a boolean", `x-max-length must be an integer`, `{clusterRef: {name: c}, arguments: {x-max-length: true}}`),
	Entry("an unknown change policy", `spec.onImmutableChange: Unsupported value`, `{clusterRef: {name: c}, onImmutableChange: Recreate}`),
	Entry("the durability of a classic queue", `unknown field "spec.durable"`, `{clusterRef: {name: c}, type: classic, durable: false}`),
	Entry("a misspelt field", `unknown field "spec.argument"`, `{clusterRef: {name: c}, argument: {}}`),
)

var _ = DescribeTable("a nonsense Policy is refused by the API server", refuses("Policy"),
	Entry("a value with more bytes than characters", `spec.name: Invalid value`, `{clusterRef: {name: c}, pattern: a, definition: {max-length: 1}, name: `+longInBytes+`}`),
	Entry("no cluster", `spec.clusterRef: Required value`, `{pattern: a, definition: {max-length: 1}}`),
	Entry("a cluster without a name", `spec.clusterRef.name`, `{clusterRef: {name: ""}, pattern: a, definition: {max-length: 1}}`),
	Entry("a cluster of another type", `spec.clusterRef`, `{clusterRef: c, pattern: a, definition: {max-length: 1}}`),
	Entry("a namespace of the cluster that is too long", `spec.clusterRef.namespace`, `{clusterRef: {name: c, namespace: `+strings.Repeat("n", 64)+`}, pattern: a, definition: {max-length: 1}}`),
	Entry("an unknown adoption", `spec.adoption: Unsupported value`, `{clusterRef: {name: c}, adoption: Always, pattern: a, definition: {max-length: 1}}`),
	Entry("an unknown reclaim policy", `spec.reclaimPolicy: Unsupported value`, `{clusterRef: {name: c}, reclaimPolicy: Shred, pattern: a, definition: {max-length: 1}}`),
	Entry("an empty vhost", `spec.vhost`, `{clusterRef: {name: c}, vhost: "", pattern: a, definition: {max-length: 1}}`),
	Entry("a vhost that is too long", `spec.vhost`, `{clusterRef: {name: c}, pattern: a, definition: {max-length: 1}, vhost: `+strings.Repeat("n", 256)+`}`),
	Entry("a name that is too long", `spec.name`, `{clusterRef: {name: c}, pattern: a, definition: {max-length: 1}, name: `+strings.Repeat("n", 256)+`}`),
	Entry("a name with a line break", `must not contain control characters`, `{clusterRef: {name: c}, pattern: a, definition: {max-length: 1}, name: "a\nb"}`),
	Entry("an unknown scope", `spec.scope: Unsupported value`, `{clusterRef: {name: c}, pattern: a, definition: {max-length: 1}, scope: Global}`),
	Entry("a missing pattern", `spec.pattern: Required value`, `{clusterRef: {name: c}, definition: {max-length: 1}}`),
	Entry("a pattern that is too long", `spec.pattern`, `{clusterRef: {name: c}, definition: {max-length: 1}, pattern: `+strings.Repeat("n", 1025)+`}`),
	Entry("a pattern that is a list", `spec.pattern`, `{clusterRef: {name: c}, definition: {max-length: 1}, pattern: [a]}`),
	Entry("a quantifier without an atom", `must be a regular expression`, `{clusterRef: {name: c}, definition: {max-length: 1}, pattern: "*"}`),
	Entry("a target of the topology operator", `spec.applyTo: Unsupported value`, `{clusterRef: {name: c}, pattern: a, definition: {max-length: 1}, applyTo: quorum}`),
	Entry("a priority in words", `spec.priority`, `{clusterRef: {name: c}, pattern: a, definition: {max-length: 1}, priority: high}`),
	Entry("half a priority", `spec.priority`, `{clusterRef: {name: c}, pattern: a, definition: {max-length: 1}, priority: 1.5}`),
	Entry("a missing definition", `spec.definition: Required value`, `{clusterRef: {name: c}, pattern: a}`),
	Entry("a definition that is a list", `spec.definition`, `{clusterRef: {name: c}, pattern: a, definition: [max-length]}`),
	Entry("a definition that is a string", `spec.definition`, `{clusterRef: {name: c}, pattern: a, definition: max-length}`),
	Entry("too many settings", `spec.definition: Too many`, `{clusterRef: {name: c}, pattern: a, definition: `+manyArguments+`}`),
	Entry("a negative length", `max-length must be an integer of at least 0`, `{clusterRef: {name: c}, pattern: a, definition: {max-length: -1}}`),
	Entry("a length that is null", `spec.definition in body should have at least 1 properties`, `{clusterRef: {name: c}, pattern: a, definition: {max-length: null}}`),
	Entry("two settings that are wrong", `expires must be an integer of at least 1`, `{clusterRef: {name: c}, pattern: a, definition: {delivery-limit: lots, expires: 0}}`),
	Entry("mirrored queues", `the broker knows no key ha-mode`, `{clusterRef: {name: c}, pattern: a, definition: {ha-mode: all}}`),
	Entry("a misspelt field", `unknown field "spec.applyto"`, `{clusterRef: {name: c}, pattern: a, definition: {max-length: 1}, applyto: all}`),
)

var _ = DescribeTable("a nonsense User is refused by the API server", refuses("User"),
	Entry("a vhost with more bytes than characters", `must have at most 255 bytes`, `{clusterRef: {name: c}, permissions: [{vhost: `+longInBytes+`}]}`),
	Entry("no cluster", `spec.clusterRef: Required value`, `{}`),
	Entry("a cluster without a name", `spec.clusterRef.name`, `{clusterRef: {name: ""}}`),
	Entry("a cluster of another type", `spec.clusterRef`, `{clusterRef: c}`),
	Entry("a namespace of the cluster that is too long", `spec.clusterRef.namespace`, `{clusterRef: {name: c, namespace: `+strings.Repeat("n", 64)+`}}`),
	Entry("an unknown adoption", `spec.adoption: Unsupported value`, `{clusterRef: {name: c}, adoption: Always}`),
	Entry("an unknown reclaim policy", `spec.reclaimPolicy: Unsupported value`, `{clusterRef: {name: c}, reclaimPolicy: Shred}`),
	Entry("adoption of an equal user", `spec.adoption: Unsupported value`, `{clusterRef: {name: c}, adoption: IfMatching}`),
	Entry("the reclaim policy of queues", `spec.reclaimPolicy: Unsupported value`, `{clusterRef: {name: c}, reclaimPolicy: DeleteIfEmpty}`),
	Entry("a username that is too long", `spec.username`, `{clusterRef: {name: c}, username: `+strings.Repeat("n", 256)+`}`),
	Entry("a username with a slash", `spec.username`, `{clusterRef: {name: c}, username: a/b}`),
	Entry("a username with a line break", `spec.username`, `{clusterRef: {name: c}, username: "a\nb"}`),
	Entry("a username that is a number", `spec.username`, `{clusterRef: {name: c}, username: 7}`),
	Entry("a password in the manifest", `unknown field "spec.password"`, `{clusterRef: {name: c}, password: secret}`),
	Entry("a password among the credentials", `unknown field "spec.credentials.password"`, `{clusterRef: {name: c}, credentials: {generate: {}, password: secret}}`),
	Entry("credentials that are a string", `spec.credentials`, `{clusterRef: {name: c}, credentials: secret}`),
	Entry("a generated password that is too long", `spec.credentials.generate.length`, `{clusterRef: {name: c}, credentials: {generate: {length: 129}}}`),
	Entry("a certificate without a name", `spec.credentials.certificate.commonName`, `{clusterRef: {name: c}, credentials: {certificate: {commonName: ""}}}`),
	Entry("a certificate with a distinguished name", `spec.credentials.certificate.commonName`, `{clusterRef: {name: c}, credentials: {certificate: {commonName: "CN=app,O=x"}}}`),
	Entry("a tag twice", `Duplicate value`, `{clusterRef: {name: c}, tags: [management, management]}`),
	Entry("tags that are a string", `spec.tags`, `{clusterRef: {name: c}, tags: management}`),
	Entry("a tag in capitals", `supported values`, `{clusterRef: {name: c}, tags: [Administrator]}`),
	Entry("permissions that are an object", `spec.permissions`, `{clusterRef: {name: c}, permissions: {vhost: /}}`),
	Entry("a permission in an empty vhost", `spec.permissions[0].vhost`, `{clusterRef: {name: c}, permissions: [{vhost: ""}]}`),
	Entry("a permission that is not closed", `must be a regular expression`, `{clusterRef: {name: c}, permissions: [{configure: "(a"}]}`),
	Entry("a permission that is too long", `spec.permissions[0].write`, `{clusterRef: {name: c}, permissions: [{write: `+strings.Repeat("n", 1025)+`}]}`),
	Entry("an unknown permission", `unknown field "spec.permissions[0].delete"`, `{clusterRef: {name: c}, permissions: [{delete: a}]}`),
	Entry("a topic permission without an exchange", `spec.topicPermissions[0].exchange`, `{clusterRef: {name: c}, topicPermissions: [{write: a}]}`),
	Entry("two topic permissions for an exchange", `Duplicate value`, `{clusterRef: {name: c}, topicPermissions: [{exchange: x}, {exchange: x}]}`),
	Entry("channels in words", `spec.limits.channels`, `{clusterRef: {name: c}, limits: {channels: many}}`),
	Entry("negative channels", `spec.limits.channels`, `{clusterRef: {name: c}, limits: {channels: -1}}`),
	Entry("an unknown limit", `unknown field "spec.limits.queues"`, `{clusterRef: {name: c}, limits: {queues: 1}}`),
)

var _ = DescribeTable("a nonsense Vhost is refused by the API server", refuses("Vhost"),
	Entry("a value with more bytes than characters", `spec.name: Invalid value`, `{clusterRef: {name: c}, name: `+longInBytes+`}`),
	Entry("no cluster", `spec.clusterRef: Required value`, `{}`),
	Entry("a cluster without a name", `spec.clusterRef.name`, `{clusterRef: {name: ""}}`),
	Entry("a cluster of another type", `spec.clusterRef`, `{clusterRef: c}`),
	Entry("a namespace of the cluster that is too long", `spec.clusterRef.namespace`, `{clusterRef: {name: c, namespace: `+strings.Repeat("n", 64)+`}}`),
	Entry("an unknown adoption", `spec.adoption: Unsupported value`, `{clusterRef: {name: c}, adoption: Always}`),
	Entry("an unknown reclaim policy", `spec.reclaimPolicy: Unsupported value`, `{clusterRef: {name: c}, reclaimPolicy: Shred}`),
	Entry("a name that is too long", `spec.name`, `{clusterRef: {name: c}, name: `+strings.Repeat("n", 256)+`}`),
	Entry("a name with a line break", `must not contain control characters`, `{clusterRef: {name: c}, name: "a\nb"}`),
	Entry("a name that is a number", `spec.name`, `{clusterRef: {name: c}, name: 7}`),
	Entry("an unknown queue type", `spec.defaultQueueType: Unsupported value`, `{clusterRef: {name: c}, defaultQueueType: mirrored}`),
	Entry("streams", `streams are not supported by this version`, `{clusterRef: {name: c}, defaultQueueType: stream}`),
	Entry("a queue type that is a number", `spec.defaultQueueType`, `{clusterRef: {name: c}, defaultQueueType: 7}`),
	Entry("negative connections", `spec.limits.maxConnections`, `{clusterRef: {name: c}, limits: {maxConnections: -1}}`),
	Entry("negative queues", `spec.limits.maxQueues`, `{clusterRef: {name: c}, limits: {maxQueues: -1}}`),
	Entry("connections in words", `spec.limits.maxConnections`, `{clusterRef: {name: c}, limits: {maxConnections: many}}`),
	Entry("half a queue", `spec.limits.maxQueues`, `{clusterRef: {name: c}, limits: {maxQueues: 1.5}}`),
	Entry("an unknown limit", `unknown field "spec.limits.maxChannels"`, `{clusterRef: {name: c}, limits: {maxChannels: 1}}`),
	Entry("limits that are a list", `spec.limits`, `{clusterRef: {name: c}, limits: [1]}`),
	Entry("tags that are a string", `spec.tags`, `{clusterRef: {name: c}, tags: production}`),
	Entry("a tag with a comma", `spec.tags[0]`, `{clusterRef: {name: c}, tags: ["a,b"]}`),
	Entry("an empty tag", `spec.tags[0]`, `{clusterRef: {name: c}, tags: [""]}`),
	Entry("a tag that ends with a blank", `spec.tags[0]`, `{clusterRef: {name: c}, tags: ["a "]}`),
	Entry("a tag twice", `Duplicate value`, `{clusterRef: {name: c}, tags: [a, a]}`),
	Entry("too many tags", `must have at most 32 items`, `{clusterRef: {name: c}, tags: `+manyTags+`}`),
	Entry("tracing in words", `spec.tracing`, `{clusterRef: {name: c}, tracing: "on"}`),
	Entry("an unknown field", `unknown field "spec.description"`, `{clusterRef: {name: c}, description: x}`),
)

var _ = DescribeTable("a nonsense Exchange is refused by the API server", refuses("Exchange"),
	Entry("a value with more bytes than characters", `spec.name: Invalid value`, `{clusterRef: {name: c}, name: `+longInBytes+`}`),
	Entry("no cluster", `spec.clusterRef: Required value`, `{}`),
	Entry("a cluster without a name", `spec.clusterRef.name`, `{clusterRef: {name: ""}}`),
	Entry("a cluster of another type", `spec.clusterRef`, `{clusterRef: c}`),
	Entry("a namespace of the cluster that is too long", `spec.clusterRef.namespace`, `{clusterRef: {name: c, namespace: `+strings.Repeat("n", 64)+`}}`),
	Entry("an unknown adoption", `spec.adoption: Unsupported value`, `{clusterRef: {name: c}, adoption: Always}`),
	Entry("an unknown reclaim policy", `spec.reclaimPolicy: Unsupported value`, `{clusterRef: {name: c}, reclaimPolicy: Shred}`),
	Entry("an empty vhost", `spec.vhost`, `{clusterRef: {name: c}, vhost: ""}`),
	Entry("a vhost that is too long", `spec.vhost`, `{clusterRef: {name: c}, vhost: `+strings.Repeat("n", 256)+`}`),
	Entry("a reserved name", `names that begin with amq. are reserved`, `{clusterRef: {name: c}, name: amq.mine}`),
	Entry("a name that is too long", `spec.name`, `{clusterRef: {name: c}, name: `+strings.Repeat("n", 256)+`}`),
	Entry("a name with a control character", `must not contain control characters`, `{clusterRef: {name: c}, name: "a\x00"}`),
	Entry("a name that is a list", `spec.name`, `{clusterRef: {name: c}, name: [a]}`),
	Entry("an unknown type", `spec.type: Unsupported value`, `{clusterRef: {name: c}, type: queue}`),
	Entry("a type that is a number", `spec.type`, `{clusterRef: {name: c}, type: 1}`),
	Entry("durable in words", `spec.durable`, `{clusterRef: {name: c}, durable: "yes"}`),
	Entry("autoDelete as a number", `spec.autoDelete`, `{clusterRef: {name: c}, autoDelete: 1}`),
	Entry("internal in words", `spec.internal`, `{clusterRef: {name: c}, internal: "no"}`),
	Entry("arguments that are a list", `spec.arguments`, `{clusterRef: {name: c}, arguments: [a]}`),
	Entry("too many arguments", `spec.arguments: Too many`, `{clusterRef: {name: c}, arguments: `+manyArguments+`}`),
	Entry("the reclaim policy of queues", `spec.reclaimPolicy: Unsupported value`, `{clusterRef: {name: c}, reclaimPolicy: DeleteIfEmpty}`),
	Entry("a property of queues", `unknown field "spec.exclusive"`, `{clusterRef: {name: c}, exclusive: true}`),
	Entry("a misspelt field", `unknown field "spec.autodelete"`, `{clusterRef: {name: c}, autodelete: true}`),
)

var _ = DescribeTable("a nonsense Binding is refused by the API server", refuses("Binding"),
	Entry("a value with more bytes than characters", `spec.routingKey: Invalid value`, `{clusterRef: {name: c}, source: s, destination: d, routingKey: `+longInBytes+`}`),
	Entry("no cluster", `spec.clusterRef: Required value`, `{source: s, destination: d}`),
	Entry("a cluster without a name", `spec.clusterRef.name`, `{clusterRef: {name: ""}, source: s, destination: d}`),
	Entry("a cluster of another type", `spec.clusterRef`, `{clusterRef: c, source: s, destination: d}`),
	Entry("a namespace of the cluster that is too long", `spec.clusterRef.namespace`, `{clusterRef: {name: c, namespace: `+strings.Repeat("n", 64)+`}, source: s, destination: d}`),
	Entry("an unknown adoption", `spec.adoption: Unsupported value`, `{clusterRef: {name: c}, adoption: Always, source: s, destination: d}`),
	Entry("an unknown reclaim policy", `spec.reclaimPolicy: Unsupported value`, `{clusterRef: {name: c}, reclaimPolicy: Shred, source: s, destination: d}`),
	Entry("an empty vhost", `spec.vhost`, `{clusterRef: {name: c}, vhost: "", source: s, destination: d}`),
	Entry("a vhost that is too long", `spec.vhost`, `{clusterRef: {name: c}, vhost: `+strings.Repeat("n", 256)+`, source: s, destination: d}`),
	Entry("no source", `spec.source: Required value`, `{clusterRef: {name: c}, destination: d}`),
	Entry("the default exchange as source, without a name", `spec.source`, `{clusterRef: {name: c}, source: "", destination: d}`),
	Entry("the default exchange as source", `source must be another exchange`, `{clusterRef: {name: c}, source: amq.default, destination: d}`),
	Entry("a source that is too long", `spec.source`, `{clusterRef: {name: c}, destination: d, source: `+strings.Repeat("n", 256)+`}`),
	Entry("no destination", `spec.destination: Required value`, `{clusterRef: {name: c}, source: s}`),
	Entry("an empty destination", `spec.destination`, `{clusterRef: {name: c}, source: s, destination: ""}`),
	Entry("the default exchange as destination", `destination must be another exchange`, `{clusterRef: {name: c}, source: s, destination: amq.default, destinationType: exchange}`),
	Entry("a destination that is too long", `spec.destination`, `{clusterRef: {name: c}, source: s, destination: `+strings.Repeat("n", 256)+`}`),
	Entry("an unknown type of destination", `spec.destinationType: Unsupported value`, `{clusterRef: {name: c}, source: s, destination: d, destinationType: topic}`),
	Entry("a type of destination that is a number", `spec.destinationType`, `{clusterRef: {name: c}, source: s, destination: d, destinationType: 1}`),
	Entry("a routing key that is too long", `spec.routingKey`, `{clusterRef: {name: c}, source: s, destination: d, routingKey: `+strings.Repeat("n", 256)+`}`),
	Entry("a routing key that is a number", `spec.routingKey`, `{clusterRef: {name: c}, source: s, destination: d, routingKey: 7}`),
	Entry("arguments that are a string", `spec.arguments`, `{clusterRef: {name: c}, source: s, destination: d, arguments: x-match}`),
	Entry("too many arguments", `spec.arguments: Too many`, `{clusterRef: {name: c}, source: s, destination: d, arguments: `+manyArguments+`}`),
	Entry("a takeover", `spec.adoption: Unsupported value`, `{clusterRef: {name: c}, source: s, destination: d, adoption: Takeover}`),
	Entry("an unknown field", `unknown field "spec.queue"`, `{clusterRef: {name: c}, source: s, destination: d, queue: q}`),
)

var _ = DescribeTable("a nonsense Permission is refused by the API server", refuses("Permission"),
	Entry("a value with more bytes than characters", `spec.user: Invalid value`, `{clusterRef: {name: c}, user: `+longInBytes+`}`),
	Entry("no cluster", `spec.clusterRef: Required value`, `{user: u}`),
	Entry("a cluster without a name", `spec.clusterRef.name`, `{clusterRef: {name: ""}, user: u}`),
	Entry("a cluster of another type", `spec.clusterRef`, `{clusterRef: c, user: u}`),
	Entry("a namespace of the cluster that is too long", `spec.clusterRef.namespace`, `{clusterRef: {name: c, namespace: `+strings.Repeat("n", 64)+`}, user: u}`),
	Entry("an unknown adoption", `spec.adoption: Unsupported value`, `{clusterRef: {name: c}, adoption: Always, user: u}`),
	Entry("an unknown reclaim policy", `spec.reclaimPolicy: Unsupported value`, `{clusterRef: {name: c}, reclaimPolicy: Shred, user: u}`),
	Entry("an empty vhost", `spec.vhost`, `{clusterRef: {name: c}, vhost: "", user: u}`),
	Entry("a vhost that is too long", `spec.vhost`, `{clusterRef: {name: c}, vhost: `+strings.Repeat("n", 256)+`, user: u}`),
	Entry("no user", `set exactly one of user and userRef`, `{clusterRef: {name: c}, vhost: v}`),
	Entry("two users", `set exactly one of user and userRef`, `{clusterRef: {name: c}, user: u, userRef: {name: u}}`),
	Entry("an empty user", `spec.user`, `{clusterRef: {name: c}, user: ""}`),
	Entry("a user that is too long", `spec.user`, `{clusterRef: {name: c}, user: `+strings.Repeat("n", 256)+`}`),
	Entry("a user with a tabulator", `must not contain control characters`, `{clusterRef: {name: c}, user: "a\tb"}`),
	Entry("a reference without a name", `spec.userRef.name`, `{clusterRef: {name: c}, userRef: {}}`),
	Entry("a reference with an empty name", `spec.userRef.name`, `{clusterRef: {name: c}, userRef: {name: ""}}`),
	Entry("a reference to another namespace", `unknown field "spec.userRef.namespace"`, `{clusterRef: {name: c}, userRef: {name: u, namespace: other}}`),
	Entry("a reference that is a string", `spec.userRef`, `{clusterRef: {name: c}, userRef: u}`),
	Entry("a pattern that is not closed", `must be a regular expression`, `{clusterRef: {name: c}, user: u, write: "(a"}`),
	Entry("a range without an end", `must be a regular expression`, `{clusterRef: {name: c}, user: u, read: "[a-"}`),
	Entry("a pattern that is too long", `spec.write`, `{clusterRef: {name: c}, user: u, write: `+strings.Repeat("n", 1025)+`}`),
	Entry("a pattern that is a number", `spec.read`, `{clusterRef: {name: c}, user: u, read: 7}`),
	Entry("a quantifier without an atom", `must be a regular expression`, `{clusterRef: {name: c}, user: u, configure: "*"}`),
	Entry("an unknown field", `unknown field "spec.exchange"`, `{clusterRef: {name: c}, user: u, exchange: x}`),
)

var _ = DescribeTable("a nonsense TopicPermission is refused by the API server", refuses("TopicPermission"),
	Entry("a value with more bytes than characters", `spec.exchange: Invalid value`, `{clusterRef: {name: c}, user: u, exchange: `+longInBytes+`}`),
	Entry("no cluster", `spec.clusterRef: Required value`, `{user: u, exchange: x}`),
	Entry("a cluster without a name", `spec.clusterRef.name`, `{clusterRef: {name: ""}, user: u, exchange: x}`),
	Entry("a cluster of another type", `spec.clusterRef`, `{clusterRef: c, user: u, exchange: x}`),
	Entry("a namespace of the cluster that is too long", `spec.clusterRef.namespace`, `{clusterRef: {name: c, namespace: `+strings.Repeat("n", 64)+`}, user: u, exchange: x}`),
	Entry("an unknown adoption", `spec.adoption: Unsupported value`, `{clusterRef: {name: c}, adoption: Always, user: u, exchange: x}`),
	Entry("an unknown reclaim policy", `spec.reclaimPolicy: Unsupported value`, `{clusterRef: {name: c}, reclaimPolicy: Shred, user: u, exchange: x}`),
	Entry("an empty vhost", `spec.vhost`, `{clusterRef: {name: c}, vhost: "", user: u, exchange: x}`),
	Entry("a vhost that is too long", `spec.vhost`, `{clusterRef: {name: c}, vhost: `+strings.Repeat("n", 256)+`, user: u, exchange: x}`),
	Entry("no user", `set exactly one of user and userRef`, `{clusterRef: {name: c}, vhost: v, exchange: x}`),
	Entry("two users", `set exactly one of user and userRef`, `{clusterRef: {name: c}, user: u, userRef: {name: u}, exchange: x}`),
	Entry("an empty user", `spec.user`, `{clusterRef: {name: c}, user: "", exchange: x}`),
	Entry("a user that is too long", `spec.user`, `{clusterRef: {name: c}, user: `+strings.Repeat("n", 256)+`, exchange: x}`),
	Entry("a user with a tabulator", `must not contain control characters`, `{clusterRef: {name: c}, user: "a\tb", exchange: x}`),
	Entry("a reference without a name", `spec.userRef.name`, `{clusterRef: {name: c}, userRef: {}, exchange: x}`),
	Entry("a reference with an empty name", `spec.userRef.name`, `{clusterRef: {name: c}, userRef: {name: ""}, exchange: x}`),
	Entry("a reference to another namespace", `unknown field "spec.userRef.namespace"`, `{clusterRef: {name: c}, userRef: {name: u, namespace: other}, exchange: x}`),
	Entry("a reference that is a string", `spec.userRef`, `{clusterRef: {name: c}, userRef: u, exchange: x}`),
	Entry("a pattern that is not closed", `must be a regular expression`, `{clusterRef: {name: c}, user: u, write: "(a", exchange: x}`),
	Entry("a range without an end", `must be a regular expression`, `{clusterRef: {name: c}, user: u, read: "[a-", exchange: x}`),
	Entry("a pattern that is too long", `spec.write`, `{clusterRef: {name: c}, user: u, write: `+strings.Repeat("n", 1025)+`, exchange: x}`),
	Entry("a pattern that is a number", `spec.read`, `{clusterRef: {name: c}, user: u, read: 7, exchange: x}`),
	Entry("no exchange", `spec.exchange: Required value`, `{clusterRef: {name: c}, user: u}`),
	Entry("an empty exchange", `spec.exchange`, `{clusterRef: {name: c}, user: u, exchange: ""}`),
	Entry("the default exchange", `the default exchange has no topics`, `{clusterRef: {name: c}, user: u, exchange: amq.default}`),
	Entry("an exchange that is too long", `spec.exchange`, `{clusterRef: {name: c}, user: u, exchange: `+strings.Repeat("n", 256)+`}`),
	Entry("a permission to configure", `unknown field "spec.configure"`, `{clusterRef: {name: c}, user: u, exchange: x, configure: a}`),
)

var _ = Describe("the new kinds", func() {
	It("refuse an Exchange whose metadata.name is reserved and whose spec has no name", func() {
		refusedWith(strictly(nonsense("Exchange", "amq.mine", `{clusterRef: {name: c}}`)), "reserved for the broker: set spec.name")
		Expect(strictly(nonsense("Exchange", "amq.mine", `{clusterRef: {name: c}, name: mine}`))).To(Succeed())
		refusedWith(strictly(nonsense("Queue", "amq.mine", `{clusterRef: {name: c}}`)), "reserved for the broker: set spec.name")
	})

	DescribeTable("refuse changes of immutable fields", func(kind, spec string, changes map[string]string) {
		namespace := newNamespace(nil)
		object := nonsense(kind, "n", spec)
		object.SetNamespace(namespace)
		create(object)
		for words, change := range changes {
			patch, err := yaml.YAMLToJSON([]byte("spec: " + change))
			Expect(err).NotTo(HaveOccurred())
			refusedWith(k8s.Patch(ctx, object.DeepCopy(), client.RawPatch(types.MergePatchType, patch)), words)
		}
	},
		Entry("Vhost", "Vhost", `{clusterRef: {name: c}}`, map[string]string{
			"clusterRef is immutable": `{clusterRef: {namespace: other}}`, "name is immutable": `{name: other}`,
		}),
		Entry("Exchange", "Exchange", `{clusterRef: {name: c}}`, map[string]string{
			"clusterRef is immutable": `{clusterRef: {name: other}}`, "name is immutable": `{name: other}`, "vhost is immutable": `{vhost: other}`,
			"type is immutable": `{type: topic}`, "durable is immutable": `{durable: false}`, "autoDelete is immutable": `{autoDelete: true}`,
			"internal is immutable": `{internal: true}`,
		}),
		Entry("Binding", "Binding", `{clusterRef: {name: c}, source: s, destination: d}`, map[string]string{
			"clusterRef is immutable": `{clusterRef: {name: other}}`, "vhost is immutable": `{vhost: other}`, "source is immutable": `{source: other}`,
			"destination is immutable": `{destination: other}`, "destinationType is immutable": `{destinationType: exchange}`,
			"routingKey is immutable": `{routingKey: other}`,
		}),
		Entry("Permission", "Permission", `{clusterRef: {name: c}, user: u}`, map[string]string{
			"clusterRef is immutable": `{clusterRef: {name: other}}`, "vhost is immutable": `{vhost: other}`, "user is immutable": `{user: other}`,
			"userRef is immutable": `{user: null, userRef: {name: u}}`,
		}),
		Entry("TopicPermission", "TopicPermission", `{clusterRef: {name: c}, userRef: {name: u}, exchange: x}`, map[string]string{
			"clusterRef is immutable": `{clusterRef: {name: other}}`, "vhost is immutable": `{vhost: other}`, "exchange is immutable": `{exchange: other}`,
			"userRef is immutable": `{userRef: {name: other}}`,
		}),
	)
})
