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

var _ = DescribeTable("a nonsense Vhost is refused by the API server", refuses("Vhost"),
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
