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
	Entry("an advertised address of a node without a listener", `the broker has no listener for advertised_nodes.c-0; its listeners are`, `{config: {advertised_nodes.c-0: "h:1"}}`),
	Entry("an advertised address of a listener without a node", `the broker has no listener for advertised_nodes.stream`, `{config: {advertised_nodes.stream: "h:1"}}`),
	Entry("an advertised address of an unknown listener of a node", `the broker has no listener for advertised_nodes.c-0.streams`, `{config: {advertised_nodes.c-0.streams: "h:1"}}`),
	Entry("an advertised address of a node without a port", `advertised_nodes.c-0.stream must be a host name or address`, `{config: {advertised_nodes.c-0.stream: h}}`),
	Entry("external listeners that are a list", `spec.externalListeners`, `{externalListeners: [amqp]}`),
	Entry("external listeners without a load balancer or port", `spec.externalListeners.type: Unsupported value`, `{externalListeners: {type: ClusterIP}}`),
	Entry("an external protocol that the cluster lacks", `externalListeners.protocols must be among protocols`, `{protocols: [amqp], externalListeners: {protocols: [stream]}}`),
	Entry("an external protocol twice", `Duplicate value`, `{protocols: [amqp], externalListeners: {protocols: [amqp, amqp]}}`),
	Entry("no external protocol", `spec.externalListeners.protocols`, `{externalListeners: {protocols: []}}`),
	Entry("one host for the load balancers of all nodes", `must contain {node} or {ordinal}`, `{externalListeners: {hostTemplate: mq.example.com}}`),
	Entry("an unknown placeholder", `spec.externalListeners.hostTemplate`, `{externalListeners: {hostTemplate: "{pod}.{ordinal}.example.com"}}`),
	Entry("a host in capitals", `spec.externalListeners.hostTemplate`, `{externalListeners: {hostTemplate: "{node}.Example.com"}}`),
	Entry("a host with a port", `spec.externalListeners.hostTemplate`, `{externalListeners: {hostTemplate: "{node}.example.com:5552"}}`),
	Entry("a network without a size", `are networks such as 10.0.0.0/8`, `{externalListeners: {loadBalancerSourceRanges: [10.0.0.1]}}`),
	Entry("networks of node ports", `loadBalancerSourceRanges needs externalListeners.type: LoadBalancer`, `{externalListeners: {type: NodePort, loadBalancerSourceRanges: [10.0.0.0/8]}}`),
	Entry("a class of node ports", `loadBalancerClass needs externalListeners.type: LoadBalancer`, `{externalListeners: {type: NodePort, loadBalancerClass: example.com/lb}}`),
	Entry("an unknown traffic policy", `spec.externalListeners.externalTrafficPolicy: Unsupported value`, `{externalListeners: {externalTrafficPolicy: Global}}`),
	Entry("advertise in words", `spec.externalListeners.advertise`, `{externalListeners: {advertise: "yes"}}`),
	Entry("an annotation that is a number", `spec.externalListeners.annotations`, `{externalListeners: {annotations: {a: 1}}}`),
	Entry("a field of Services", `unknown field "spec.externalListeners.ports"`, `{externalListeners: {ports: []}}`),
	Entry("an advertised IPv6 address without brackets", `advertised_listeners.mqtt must be a host name or address`, `{config: {advertised_listeners.mqtt: "2001:db8::1:1883"}}`),
	Entry("a misspelt key", `the broker knows no key log.levels; "posthorn config reference" lists the keys`, `{config: {log.levels: debug, log.format: json}}`),
	Entry("resources of another type", `spec.resources`, `{resources: lots}`),
	Entry("memory that is not a quantity", `spec.resources.limits`, `{resources: {limits: {memory: lots}}}`),
	Entry("TLS that is a boolean", `spec.tls`, `{tls: true}`),
	Entry("a misspelt field of TLS", `unknown field "spec.tls.secret"`, `{tls: {secret: s}}`),
	Entry("a port of streams", `stream.listeners.*`, `{protocols: [amqp, stream], config: {stream.listeners.ssl.default: "5555"}}`),
	Entry("streams in the plural", `Unsupported value`, `{protocols: [amqp, streams]}`),
	Entry("streams twice", `Duplicate value`, `{protocols: [stream, stream]}`),
	Entry("an advertised address of streams without a host", `advertised_listeners.stream must be a host name or address`, `{config: {advertised_listeners.stream: ":5552"}}`),
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
	Entry("an age in words", `x-max-age must be a positive number and one of the units Y, M, D, h, m and s, such as 7D`, `{clusterRef: {name: c}, type: stream, arguments: {x-max-age: a week}}`),
	Entry("an age without a unit", `x-max-age must be a positive number`, `{clusterRef: {name: c}, type: stream, arguments: {x-max-age: "7"}}`),
	Entry("an age of a number", `x-max-age must be a positive number`, `{clusterRef: {name: c}, type: stream, arguments: {x-max-age: 7}}`),
	Entry("an age of nothing", `x-max-age must be a positive number`, `{clusterRef: {name: c}, type: stream, arguments: {x-max-age: 0D}}`),
	Entry("an age in weeks", `x-max-age must be a positive number`, `{clusterRef: {name: c}, type: stream, arguments: {x-max-age: 1W}}`),
	Entry("an age of two units", `x-max-age must be a positive number`, `{clusterRef: {name: c}, type: stream, arguments: {x-max-age: 1D12h}}`),
	Entry("a filter that is too small", `x-stream-filter-size-bytes must be an integer of at least 16 and at most 255`, `{clusterRef: {name: c}, type: stream, arguments: {x-stream-filter-size-bytes: 15}}`),
	Entry("a filter that is too large", `x-stream-filter-size-bytes must be an integer`, `{clusterRef: {name: c}, type: stream, arguments: {x-stream-filter-size-bytes: 256}}`),
	Entry("a segment that is too large", `x-stream-max-segment-size-bytes must be an integer of at least 0 and at most 3000000000`, `{clusterRef: {name: c}, type: stream, arguments: {x-stream-max-segment-size-bytes: 3000000001}}`),
	Entry("a segment with a unit", `x-stream-max-segment-size-bytes must be an integer`, `{clusterRef: {name: c}, type: stream, arguments: {x-stream-max-segment-size-bytes: 500MB}}`),
	Entry("a stream with a length in messages", `a stream has no x-max-length`, `{clusterRef: {name: c}, type: stream, arguments: {x-max-length: 1}}`),
	Entry("a stream that expires", `a stream has no x-expires`, `{clusterRef: {name: c}, type: stream, arguments: {x-expires: 1000}}`),
	Entry("a stream with dead letters", `a stream has no x-dead-letter-exchange`, `{clusterRef: {name: c}, type: stream, arguments: {x-dead-letter-exchange: a}}`),
	Entry("a stream with a single active consumer of the queue", `a stream has no x-single-active-consumer`, `{clusterRef: {name: c}, type: stream, arguments: {x-single-active-consumer: true}}`),
	Entry("the number of members of a stream as argument", `they come from spec.type and spec.replicas`, `{clusterRef: {name: c}, type: stream, arguments: {x-initial-cluster-size: 3}}`),
	Entry("more members of a stream than a cluster has", `spec.replicas`, `{clusterRef: {name: c}, type: stream, replicas: 10}`),
	Entry("a segment of a classic queue", `a classic queue has no x-stream-max-segment-size-bytes`, `{clusterRef: {name: c}, type: classic, arguments: {x-stream-max-segment-size-bytes: 16}}`),
	Entry("an exclusive stream", `unknown field "spec.exclusive"`, `{clusterRef: {name: c}, type: stream, exclusive: true}`),
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
	Entry("an age in words", `max-age must be a positive number and one of the units Y, M, D, h, m and s, such as 7D`, `{clusterRef: {name: c}, pattern: a, applyTo: streams, definition: {max-age: a week}}`),
	Entry("an age of a number", `max-age must be a positive number`, `{clusterRef: {name: c}, pattern: a, applyTo: streams, definition: {max-age: 7}}`),
	Entry("an age of nothing", `max-age must be a positive number`, `{clusterRef: {name: c}, pattern: a, applyTo: streams, definition: {max-age: 0s}}`),
	Entry("a filter that is too small", `stream-filter-size-bytes must be an integer of at least 16 and at most 255`, `{clusterRef: {name: c}, pattern: a, applyTo: streams, definition: {stream-filter-size-bytes: 1}}`),
	Entry("a negative segment", `stream-max-segment-size-bytes must be an integer of at least 0`, `{clusterRef: {name: c}, pattern: a, applyTo: streams, definition: {stream-max-segment-size-bytes: -1}}`),
	Entry("a length in bytes in words", `max-length-bytes must be an integer of at least 0`, `{clusterRef: {name: c}, pattern: a, applyTo: streams, definition: {max-length-bytes: 1GB}}`),
	Entry("an age in an operator policy", `an operator policy cannot have max-age`, `{clusterRef: {name: c}, pattern: a, scope: Operator, applyTo: streams, definition: {max-age: 7D}}`),
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
	Entry("a negative rate", `spec.limits.messageRate`, `{clusterRef: {name: c}, limits: {messageRate: -1}}`),
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
	Entry("streams in capitals", `spec.defaultQueueType: Unsupported value`, `{clusterRef: {name: c}, defaultQueueType: Stream}`),
	Entry("a queue type that is a number", `spec.defaultQueueType`, `{clusterRef: {name: c}, defaultQueueType: 7}`),
	Entry("negative connections", `spec.limits.maxConnections`, `{clusterRef: {name: c}, limits: {maxConnections: -1}}`),
	Entry("negative queues", `spec.limits.maxQueues`, `{clusterRef: {name: c}, limits: {maxQueues: -1}}`),
	Entry("connections in words", `spec.limits.maxConnections`, `{clusterRef: {name: c}, limits: {maxConnections: many}}`),
	Entry("half a queue", `spec.limits.maxQueues`, `{clusterRef: {name: c}, limits: {maxQueues: 1.5}}`),
	Entry("an unknown limit", `unknown field "spec.limits.maxExchanges"`, `{clusterRef: {name: c}, limits: {maxExchanges: 1}}`),
	Entry("negative channels", `spec.limits.maxChannels`, `{clusterRef: {name: c}, limits: {maxChannels: -1}}`),
	Entry("a rate of zero", `spec.limits.maxMessageRate`, `{clusterRef: {name: c}, limits: {maxMessageRate: 0}}`),
	Entry("no stored byte", `spec.limits.maxStoredBytes`, `{clusterRef: {name: c}, limits: {maxStoredBytes: 0}}`),
	Entry("half a byte", `spec.limits.maxByteRate`, `{clusterRef: {name: c}, limits: {maxByteRate: 0.5}}`),
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

var _ = DescribeTable("a nonsense SuperStream is refused by the API server", refuses("SuperStream"),
	Entry("a value with more bytes than characters", `spec.name: Invalid value`, `{clusterRef: {name: c}, partitions: 1, name: `+longInBytes+`}`),
	Entry("no cluster", `spec.clusterRef: Required value`, `{partitions: 1}`),
	Entry("a cluster without a name", `spec.clusterRef.name`, `{clusterRef: {name: ""}, partitions: 1}`),
	Entry("a cluster of another type", `spec.clusterRef`, `{clusterRef: c, partitions: 1}`),
	Entry("a namespace of the cluster that is too long", `spec.clusterRef.namespace`, `{clusterRef: {name: c, namespace: `+strings.Repeat("n", 64)+`}, partitions: 1}`),
	Entry("an unknown adoption", `spec.adoption: Unsupported value`, `{clusterRef: {name: c}, partitions: 1, adoption: Always}`),
	Entry("an unknown reclaim policy", `spec.reclaimPolicy: Unsupported value`, `{clusterRef: {name: c}, partitions: 1, reclaimPolicy: Shred}`),
	Entry("the reclaim policy of queues", `spec.reclaimPolicy: Unsupported value`, `{clusterRef: {name: c}, partitions: 1, reclaimPolicy: DeleteIfEmpty}`),
	Entry("an empty vhost", `spec.vhost`, `{clusterRef: {name: c}, partitions: 1, vhost: ""}`),
	Entry("a vhost that is too long", `spec.vhost`, `{clusterRef: {name: c}, partitions: 1, vhost: `+strings.Repeat("n", 256)+`}`),
	Entry("a reserved name", `names that begin with amq. are reserved`, `{clusterRef: {name: c}, partitions: 1, name: amq.mine}`),
	Entry("a name that is too long", `spec.name`, `{clusterRef: {name: c}, partitions: 1, name: `+strings.Repeat("n", 254)+`}`),
	Entry("a name that is too long for the number of partitions", `must have at most 255 bytes`, `{clusterRef: {name: c}, partitions: 11, name: `+strings.Repeat("n", 253)+`}`),
	Entry("a name that is too long for a routing key", `name and routing key, joined by a dash`, `{clusterRef: {name: c}, routingKeys: [a, `+strings.Repeat("k", 55)+`], name: `+strings.Repeat("n", 200)+`}`),
	Entry("a name with a control character", `must not contain control characters`, `{clusterRef: {name: c}, partitions: 1, name: "a\x00"}`),
	Entry("a name that is a list", `spec.name`, `{clusterRef: {name: c}, partitions: 1, name: [a]}`),
	Entry("neither partitions nor routing keys", `set exactly one of partitions and routingKeys`, `{clusterRef: {name: c}}`),
	Entry("partitions and routing keys", `set exactly one of partitions and routingKeys`, `{clusterRef: {name: c}, partitions: 2, routingKeys: [a, b]}`),
	Entry("no partition", `spec.partitions`, `{clusterRef: {name: c}, partitions: 0}`),
	Entry("negative partitions", `spec.partitions`, `{clusterRef: {name: c}, partitions: -1}`),
	Entry("too many partitions", `spec.partitions`, `{clusterRef: {name: c}, partitions: 1001}`),
	Entry("partitions in words", `spec.partitions`, `{clusterRef: {name: c}, partitions: three}`),
	Entry("half a partition", `spec.partitions`, `{clusterRef: {name: c}, partitions: 1.5}`),
	Entry("partitions that are a list", `spec.partitions`, `{clusterRef: {name: c}, partitions: [a]}`),
	Entry("no routing key", `spec.routingKeys`, `{clusterRef: {name: c}, routingKeys: []}`),
	Entry("an empty routing key", `spec.routingKeys[1]`, `{clusterRef: {name: c}, routingKeys: [a, ""]}`),
	Entry("a routing key twice", `Duplicate value`, `{clusterRef: {name: c}, routingKeys: [a, b, a]}`),
	Entry("a routing key that is a number", `spec.routingKeys[0]`, `{clusterRef: {name: c}, routingKeys: [1]}`),
	Entry("a routing key that is too long", `spec.routingKeys[0]`, `{clusterRef: {name: c}, routingKeys: [`+strings.Repeat("k", 254)+`]}`),
	Entry("a routing key with a line break", `must not contain control characters`, `{clusterRef: {name: c}, routingKeys: ["a\nb"]}`),
	Entry("routing keys that are a string", `spec.routingKeys`, `{clusterRef: {name: c}, routingKeys: "a,b"}`),
	Entry("more replicas than a cluster has", `spec.replicas`, `{clusterRef: {name: c}, partitions: 1, replicas: 10}`),
	Entry("negative replicas", `spec.replicas`, `{clusterRef: {name: c}, partitions: 1, replicas: -1}`),
	Entry("arguments that are a list", `spec.arguments`, `{clusterRef: {name: c}, partitions: 1, arguments: [x-max-age]}`),
	Entry("too many arguments", `spec.arguments: Too many`, `{clusterRef: {name: c}, partitions: 1, arguments: `+manyArguments+`}`),
	Entry("the argument of the type", `spec.arguments must not have x-queue-type`, `{clusterRef: {name: c}, partitions: 1, arguments: {x-queue-type: stream}}`),
	Entry("the argument of the number of replicas", `x-initial-cluster-size`, `{clusterRef: {name: c}, partitions: 1, arguments: {x-initial-cluster-size: 3}}`),
	Entry("an argument of queues", `a stream has no x-message-ttl`, `{clusterRef: {name: c}, partitions: 1, arguments: {x-message-ttl: 1}}`),
	Entry("an age in words", `x-max-age must be a positive number`, `{clusterRef: {name: c}, partitions: 1, arguments: {x-max-age: a week}}`),
	Entry("a filter that is too large", `x-stream-filter-size-bytes must be an integer of at least 16 and at most 255`, `{clusterRef: {name: c}, partitions: 1, arguments: {x-stream-filter-size-bytes: 300}}`),
	Entry("an unknown placement of leaders", `x-queue-leader-locator must be one of`, `{clusterRef: {name: c}, partitions: 1, arguments: {x-queue-leader-locator: here}}`),
	Entry("the type of an exchange", `unknown field "spec.type"`, `{clusterRef: {name: c}, partitions: 1, type: x-consistent-hash}`),
	Entry("a misspelt field", `unknown field "spec.partition"`, `{clusterRef: {name: c}, partition: 3}`),
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

// validSpecs has a valid spec of each kind with a reference to a broker, without its clusterRef.
var validSpecs = map[string]string{
	"Vhost": ``, "Queue": ``, "Exchange": ``, "SuperStream": `, partitions: 1`, "Binding": `, source: s, destination: d`,
	"Policy": `, pattern: a, definition: {max-length: 1}`, "User": `, credentials: {generate: {}}`, "Permission": `, user: u`,
	"TopicPermission": `, user: u, exchange: x`,
}

var _ = DescribeTable("a nonsense reference to a broker is refused in every kind", func(words, reference string) {
	Expect(validSpecs).To(HaveLen(len(kinds) - 1))
	for kind, rest := range validSpecs {
		refusedWith(strictly(nonsense(kind, "n", `{clusterRef: `+reference+rest+`}`)), words)
		Expect(strictly(nonsense(kind, "n", `{clusterRef: {name: c}`+rest+`}`))).To(Succeed(), kind)
	}
},
	Entry("none", `set exactly one of name and connectionSecret`, `{}`),
	Entry("a namespace alone", `set exactly one of name and connectionSecret`, `{namespace: mq}`),
	Entry("two", `set exactly one of name and connectionSecret`, `{name: c, connectionSecret: {name: s}}`),
	Entry("a Secret without a name", `spec.clusterRef.connectionSecret.name: Required value`, `{connectionSecret: {}}`),
	Entry("a Secret with an empty name", `spec.clusterRef.connectionSecret.name`, `{connectionSecret: {name: ""}}`),
	Entry("a Secret with a name that is too long", `spec.clusterRef.connectionSecret.name`, `{connectionSecret: {name: `+strings.Repeat("n", 254)+`}}`),
	Entry("a Secret that is a string", `spec.clusterRef.connectionSecret`, `{connectionSecret: s}`),
	Entry("a namespace of the Secret in its reference", `unknown field "spec.clusterRef.connectionSecret.namespace"`, `{connectionSecret: {name: s, namespace: mq}}`),
	Entry("a key of the Secret", `unknown field "spec.clusterRef.connectionSecret.key"`, `{connectionSecret: {name: s, key: uri}}`),
	Entry("an address", `unknown field "spec.clusterRef.uri"`, `{uri: "https://mq.example.org"}`),
)

var _ = Describe("the new kinds", func() {
	It("refuse an Exchange whose metadata.name is reserved and whose spec has no name", func() {
		refusedWith(strictly(nonsense("Exchange", "amq.mine", `{clusterRef: {name: c}}`)), "reserved for the broker: set spec.name")
		Expect(strictly(nonsense("Exchange", "amq.mine", `{clusterRef: {name: c}, name: mine}`))).To(Succeed())
		refusedWith(strictly(nonsense("Queue", "amq.mine", `{clusterRef: {name: c}}`)), "reserved for the broker: set spec.name")
		refusedWith(strictly(nonsense("SuperStream", "amq.mine", `{clusterRef: {name: c}, partitions: 1}`)), "reserved for the broker: set spec.name")
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
		Entry("Queue in an external broker", "Queue", `{clusterRef: {connectionSecret: {name: s}}}`, map[string]string{
			"clusterRef is immutable":                                 `{clusterRef: {connectionSecret: {name: other}}}`,
			"spec.clusterRef: Invalid value: clusterRef is immutable": `{clusterRef: {connectionSecret: null, name: c}}`,
		}),
		Entry("Vhost", "Vhost", `{clusterRef: {name: c}}`, map[string]string{
			"clusterRef is immutable": `{clusterRef: {namespace: other}}`, "name is immutable": `{name: other}`,
		}),
		Entry("Exchange", "Exchange", `{clusterRef: {name: c}}`, map[string]string{
			"clusterRef is immutable": `{clusterRef: {name: other}}`, "name is immutable": `{name: other}`, "vhost is immutable": `{vhost: other}`,
			"type is immutable": `{type: topic}`, "durable is immutable": `{durable: false}`, "autoDelete is immutable": `{autoDelete: true}`,
			"internal is immutable": `{internal: true}`,
		}),
		Entry("SuperStream with a number of partitions", "SuperStream", `{clusterRef: {name: c}, partitions: 3}`, map[string]string{
			"clusterRef is immutable": `{clusterRef: {name: other}}`, "name is immutable": `{name: other}`, "vhost is immutable": `{vhost: other}`,
			"partitions is immutable: with another number, messages of the same key would go to another partition": `{partitions: 4}`,
			"partitions is immutable": `{partitions: 2}`, "routingKeys is immutable": `{partitions: null, routingKeys: [a]}`,
		}),
		Entry("SuperStream with routing keys", "SuperStream", `{clusterRef: {name: c}, routingKeys: [a, b]}`, map[string]string{
			"routingKeys is immutable":                   `{routingKeys: [a, b, c]}`,
			"routingKeys is immutable, also its order:":  `{routingKeys: [b, a]}`,
			"partitions of a super stream cannot change": `{routingKeys: [a]}`,
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
