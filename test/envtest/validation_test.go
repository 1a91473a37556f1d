// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package envtest

import (
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/names"
)

// skipValidation leaves checks of the admission policies to the broker.
func skipValidation(object client.Object) {
	annotations := object.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[names.AnnotationSkipValidation] = "true"
	object.SetAnnotations(annotations)
}

// arguments sets one argument of a queue.
func arguments(name, json string) func(*posthornv1.Queue) {
	return func(q *posthornv1.Queue) { q.Spec.Arguments = map[string]apiextensionsv1.JSON{name: value(json)} }
}

// definition sets the definition of a policy to one key.
func definition(name, json string) func(*posthornv1.Policy) {
	return func(p *posthornv1.Policy) {
		p.Spec.Definition = map[string]apiextensionsv1.JSON{name: value(json)}
	}
}

// awaitAdmission waits until the API server enforces the admission policies, a moment after they are stored.
func awaitAdmission() {
	GinkgoHelper()
	in := metav1.ObjectMeta{Namespace: "default", Name: "refused"}
	of := posthornv1.ClusterReference{Name: "c"}
	cluster := newCluster("default")
	cluster.Spec.Config = map[string]posthornv1.ConfigValue{"no.such.key": "1"}
	queue := &posthornv1.Queue{ObjectMeta: in, Spec: posthornv1.QueueSpec{ClusterRef: of}}
	arguments("x-max-length", "-1")(queue)
	policy := &posthornv1.Policy{ObjectMeta: in, Spec: posthornv1.PolicySpec{ClusterRef: of, Pattern: ".*"}}
	definition("no-such-key", "1")(policy)
	for _, object := range []client.Object{cluster, queue, policy} {
		Eventually(func() error {
			copied, is := object.DeepCopyObject().(client.Object)
			Expect(is).To(BeTrue())
			return k8s.Create(ctx, copied, client.DryRunAll)
		}).Should(MatchError(ContainSubstring("ValidatingAdmissionPolicy")), "%T", object)
	}
}

// warningTexts collects the warnings of the API server.
type warningTexts struct{ texts []string }

func (w *warningTexts) HandleWarningHeader(_ int, _, text string) { w.texts = append(w.texts, text) }

// template sets spec.podTemplate.
func template(json string) func(*posthornv1.BrokerCluster) {
	return func(c *posthornv1.BrokerCluster) { c.Spec.PodTemplate = &runtime.RawExtension{Raw: []byte(json)} }
}

// inBroker returns a podTemplate with fields of the broker's container.
func inBroker(fields string) string {
	return `{"spec":{"containers":[{"name":"posthorn",` + fields + `}]}}`
}

// strictly creates an object in a dry run with strict validation, like kubectl: unknown fields are an error.
func strictly(object client.Object) error {
	return client.WithFieldValidation(k8s, metav1.FieldValidationStrict).Create(ctx, object, client.DryRunAll)
}

// refusedWith expects a refusal of the API server with a message.
func refusedWith(err error, words string) {
	GinkgoHelper()
	Expect(err).To(HaveOccurred())
	Expect(apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)).To(BeTrue(), "%v", err)
	Expect(err.Error()).To(ContainSubstring(words))
}

var _ = Describe("bad input is refused by the API server", func() {
	DescribeTable("BrokerCluster", func(words string, change func(*posthornv1.BrokerCluster)) {
		cluster := newCluster("default")
		change(cluster)
		refusedWith(strictly(cluster), words)
	},
		Entry("even replicas", "replicas must be odd", func(c *posthornv1.BrokerCluster) { c.Spec.Replicas = 2 }),
		Entry("negative replicas", "spec.replicas", func(c *posthornv1.BrokerCluster) { c.Spec.Replicas = -1 }),
		Entry("too many replicas", "spec.replicas", func(c *posthornv1.BrokerCluster) { c.Spec.Replicas = 11 }),
		Entry("tiny storage", "at least 64Mi", func(c *posthornv1.BrokerCluster) { c.Spec.Storage.Size = resource.MustParse("1Mi") }),
		Entry("negative storage", "at least 64Mi", func(c *posthornv1.BrokerCluster) { c.Spec.Storage.Size = resource.MustParse("-1Gi") }),
		Entry("a key the operator sets", "set by the operator", func(c *posthornv1.BrokerCluster) {
			c.Spec.Config = map[string]posthornv1.ConfigValue{"cluster.peers": "x"}
		}),
		Entry("a value of two lines", "one line", func(c *posthornv1.BrokerCluster) {
			c.Spec.Config = map[string]posthornv1.ConfigValue{"a": "x\ndefault_user = me"}
		}),
		Entry("a key of two lines", "configuration keys", func(c *posthornv1.BrokerCluster) {
			c.Spec.Config = map[string]posthornv1.ConfigValue{"a = 1\nb": "x"}
		}),
		Entry("a listener the operator sets", "spec.tls", func(c *posthornv1.BrokerCluster) {
			c.Spec.Config = map[string]posthornv1.ConfigValue{"listeners.ssl.default": "5673"}
		}),
		Entry("a certificate the operator sets", "spec.tls", func(c *posthornv1.BrokerCluster) {
			c.Spec.Config = map[string]posthornv1.ConfigValue{"ssl_options.keyfile": "/x"}
		}),
		Entry("an MQTT listener the operator sets", "spec.protocols", func(c *posthornv1.BrokerCluster) {
			c.Spec.Config = map[string]posthornv1.ConfigValue{"mqtt.listeners.tcp.default": "1884"}
		}),
		Entry("a certificate of the HTTP API", "spec.tls", func(c *posthornv1.BrokerCluster) {
			c.Spec.Config = map[string]posthornv1.ConfigValue{"management.ssl.certfile": "/x"}
		}),
		Entry("the operator's own listener", "operator.*", func(c *posthornv1.BrokerCluster) {
			c.Spec.Config = map[string]posthornv1.ConfigValue{"operator.ssl.port": "none"}
		}),
		Entry("a protocol that nobody knows", "Unsupported value", func(c *posthornv1.BrokerCluster) { c.Spec.Protocols = []posthornv1.Protocol{"gopher"} }),
		Entry("a stream listener the operator sets", "stream.listeners.*", func(c *posthornv1.BrokerCluster) {
			c.Spec.Config = map[string]posthornv1.ConfigValue{"stream.listeners.tcp.default": "5553"}
		}),
		Entry("a protocol twice", "Duplicate value", func(c *posthornv1.BrokerCluster) { c.Spec.Protocols = []posthornv1.Protocol{"amqp", "amqp"} }),
		Entry("two sources of the certificate", "exclude each other", func(c *posthornv1.BrokerCluster) {
			c.Spec.TLS = &posthornv1.TLSSpec{SecretName: "s", IssuerRef: &posthornv1.IssuerReference{Name: "i"}}
		}),
		Entry("an unknown way to ask clients", "Unsupported value", func(c *posthornv1.BrokerCluster) {
			c.Spec.TLS = &posthornv1.TLSSpec{ClientAuth: "Maybe"}
		}),
		Entry("a name that is no host", "spec.tls.dnsNames", func(c *posthornv1.BrokerCluster) {
			c.Spec.TLS = &posthornv1.TLSSpec{DNSNames: []posthornv1.DNSName{"a b"}}
		}),
		Entry("an issuer without a name", "spec.tls.issuerRef.name", func(c *posthornv1.BrokerCluster) {
			c.Spec.TLS = &posthornv1.TLSSpec{IssuerRef: &posthornv1.IssuerReference{}}
		}),
		Entry("an unknown way to monitor", "Unsupported value", func(c *posthornv1.BrokerCluster) { c.Spec.Monitoring.ServiceMonitor = "Yes" }),
		Entry("an unknown network policy", "Unsupported value", func(c *posthornv1.BrokerCluster) { c.Spec.NetworkPolicy.Mode = "Lax" }),
		Entry("a network peer that is nobody", "a podSelector, a namespaceSelector or both", func(c *posthornv1.BrokerCluster) {
			c.Spec.NetworkPolicy.Clients = []posthornv1.NetworkPeer{{}}
		}),
		Entry("a limit below the request", "resources.requests.memory cannot be more than resources.limits.memory", func(c *posthornv1.BrokerCluster) {
			c.Spec.Resources = corev1.ResourceRequirements{
				Requests: corev1.ResourceList{"memory": resource.MustParse("2Gi")}, Limits: corev1.ResourceList{"memory": resource.MustParse("512Mi")},
			}
		}),
		Entry("a configuration key that the broker does not know", "spec.config: the broker knows no key queue.max_size", func(c *posthornv1.BrokerCluster) {
			c.Spec.Config = map[string]posthornv1.ConfigValue{"log.level": "info", "queue.max_size": "1"}
		}),
		Entry("a configuration key below one that takes any name, without that name", "the broker knows no key loopback_user.guest", func(c *posthornv1.BrokerCluster) {
			c.Spec.Config = map[string]posthornv1.ConfigValue{"loopback_user.guest": "false"}
		}),
		Entry("an unknown field of a pod", `unknown field "spec.podTemplate.spec.priorityClasName"`, template(`{"spec":{"priorityClasName":"high"}}`)),
		Entry("an unknown field of a container", `unknown field "spec.podTemplate.spec.containers[0].livenesProbe"`, template(inBroker(`"livenesProbe":{}`))),
		Entry("a string where a pod has an integer", "spec.podTemplate.spec.terminationGracePeriodSeconds", template(`{"spec":{"terminationGracePeriodSeconds":"30s"}}`)),
		Entry("an object where a pod has a list", "spec.podTemplate.spec.tolerations", template(`{"spec":{"tolerations":{"operator":"Exists"}}}`)),
		Entry("an integer where an annotation has a string", "spec.podTemplate.metadata.annotations", template(`{"metadata":{"annotations":{"a":1}}}`)),
		Entry("a word that Kubernetes does not know", "spec.podTemplate.spec.containers[0].imagePullPolicy", template(inBroker(`"imagePullPolicy":"Sometimes"`))),
		Entry("a quantity that is none", "spec.podTemplate.spec.containers[0].resources.limits.cpu", template(inBroker(`"resources":{"limits":{"cpu":"much"}}`))),
		Entry("a selecting label", "spec.podTemplate must not change the labels", template(`{"metadata":{"labels":{"app.kubernetes.io/instance":"other"}}}`)),
		Entry("an annotation of the operator", "must not change annotations that begin with posthorn.io/", template(`{"metadata":{"annotations":{"posthorn.io/config":"x"}}}`)),
		Entry("the service account", "must not change serviceAccountName", template(`{"spec":{"serviceAccountName":"admin"}}`)),
		Entry("the restart policy", "must not change restartPolicy", template(`{"spec":{"restartPolicy":"Never"}}`)),
		Entry("the host's name", "must not change hostname", template(`{"spec":{"hostname":"x"}}`)),
		Entry("a deadline", "must not change activeDeadlineSeconds", template(`{"spec":{"activeDeadlineSeconds":60}}`)),
		Entry("the data's volume", "must not change the volumes config and data", template(`{"spec":{"volumes":[{"name":"data","emptyDir":{}}]}}`)),
		Entry("the broker's image", "must not change the broker's image", template(inBroker(`"image":"other"`))),
		Entry("the broker's arguments", "must not change the broker's command and arguments", template(inBroker(`"args":["serve"]`))),
		Entry("a setting in the environment", "that begin with POSTHORN_", template(inBroker(`"env":[{"name":"POSTHORN_DATA_DIR","value":"/tmp"}]`))),
		Entry("the data's mount", "the volumes mounted at", template(inBroker(`"volumeMounts":[{"mountPath":"/var/lib/posthorn","name":"x"}]`))),
		Entry("a port of the broker", "must not change the broker's ports", template(inBroker(`"ports":[{"name":"amqp","containerPort":1}]`))),
		Entry("a container outside a list", "spec.podTemplate.spec.containers", template(`{"spec":{"containers":{"name":"posthorn"}}}`)),
		Entry("an image with a blank", "spec.image", func(c *posthornv1.BrokerCluster) { c.Spec.Image = "a b" }),
		Entry("a name too long for host names", "at most 40", func(c *posthornv1.BrokerCluster) { c.Name = strings.Repeat("a", 41) }),
		Entry("a name with a dot", "at most 40", func(c *posthornv1.BrokerCluster) { c.Name = "a.b" }),
		Entry("an unknown upgrade mode", "Unsupported value", func(c *posthornv1.BrokerCluster) { c.Spec.Upgrade.Mode = "Yolo" }),
		Entry("a negative step timeout", "cannot be negative", func(c *posthornv1.BrokerCluster) { c.Spec.Upgrade.StepTimeout = &metav1.Duration{Duration: -1} }),
		Entry("an unknown flag policy", "Unsupported value", func(c *posthornv1.BrokerCluster) { c.Spec.FeatureFlags.Policy = "Never" }),
		Entry("an unknown scale-down policy", "Unsupported value", func(c *posthornv1.BrokerCluster) { c.Spec.ScaleDown.Policy = "Maybe" }),
		Entry("an unknown rebalancing", "Unsupported value", func(c *posthornv1.BrokerCluster) { c.Spec.Placement.Rebalance = "Often" }),
		Entry("more members than nodes", "cannot be more than replicas", func(c *posthornv1.BrokerCluster) { c.Spec.Placement.QuorumReplicas = 5 }),
		Entry("an unknown budget", "Unsupported value", func(c *posthornv1.BrokerCluster) { c.Spec.PodDisruptionBudget.Mode = "Maybe" }),
		Entry("an unknown Service type", "Unsupported value", func(c *posthornv1.BrokerCluster) { c.Spec.Service.Type = corev1.ServiceTypeExternalName }),
	)

	It("refuses changes of immutable fields of a BrokerCluster", func() {
		cluster := newCluster(newNamespace(nil))
		cluster.Spec.Paused, cluster.Spec.ScaleDown.Policy = true, "Deny"
		create(cluster)
		for words, change := range map[string]func(*posthornv1.BrokerCluster){
			"replicas cannot be lowered":            func(c *posthornv1.BrokerCluster) { c.Spec.Replicas = 1 },
			"storage.size cannot be lowered":        func(c *posthornv1.BrokerCluster) { c.Spec.Storage.Size = resource.MustParse("512Mi") },
			"storage.storageClassName is immutable": func(c *posthornv1.BrokerCluster) { name := "fast"; c.Spec.Storage.StorageClassName = &name },
			"replicas must be odd":                  func(c *posthornv1.BrokerCluster) { c.Spec.Replicas = 4 },
		} {
			Expect(k8s.Get(ctx, client.ObjectKeyFromObject(cluster), cluster)).To(Succeed())
			changed := cluster.DeepCopy()
			change(changed)
			refusedWith(k8s.Patch(ctx, changed, client.MergeFrom(cluster)), words)
		}
	})

	DescribeTable("Queue", func(words string, change func(*posthornv1.Queue)) {
		q := &posthornv1.Queue{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "q"}, Spec: posthornv1.QueueSpec{ClusterRef: posthornv1.ClusterReference{Name: "c"}}}
		change(q)
		refusedWith(k8s.Create(ctx, q, client.DryRunAll), words)
	},
		Entry("no cluster", "spec.clusterRef: Invalid value: set exactly one of name and connectionSecret", func(q *posthornv1.Queue) { q.Spec.ClusterRef.Name = "" }),
		Entry("unknown type", "Unsupported value", func(q *posthornv1.Queue) { q.Spec.Type = "mirrored" }),
		Entry("reserved name", "reserved for the broker", func(q *posthornv1.Queue) { q.Spec.Name = "amq.mine" }),
		Entry("name too long", "spec.name", func(q *posthornv1.Queue) { q.Spec.Name = strings.Repeat("n", 256) }),
		Entry("replicated classic queue", "one replica", func(q *posthornv1.Queue) { q.Spec.Type, q.Spec.Replicas = "classic", 3 }),
		Entry("negative replicas", "spec.replicas", func(q *posthornv1.Queue) { q.Spec.Replicas = -3 }),
		Entry("unknown reclaim policy", "Unsupported value", func(q *posthornv1.Queue) { q.Spec.ReclaimPolicy = "Shred" }),
		Entry("an integer that is a string", "x-delivery-limit must be an integer of at least -1", arguments("x-delivery-limit", `"lots"`)),
		Entry("an integer that is not whole", "x-max-length must be an integer of at least 0", arguments("x-max-length", `1.5`)),
		Entry("an integer that is a list", "x-expires must be an integer of at least 1 and at most 315360000000", arguments("x-expires", `[1]`)),
		Entry("an integer that is too small", "x-expires must be an integer of at least 1", arguments("x-expires", `0`)),
		Entry("an integer that is too large", "at most 315360000000", arguments("x-message-ttl", `315360000001`)),
		Entry("a word that is not one of those", "x-overflow must be one of drop-head, reject-publish, reject-publish-dlx", arguments("x-overflow", `"drop-tail"`)),
		Entry("a choice that is an integer", "x-overflow must be one of", arguments("x-overflow", `1`)),
		Entry("a string that is an integer", "x-dead-letter-exchange must be a string", arguments("x-dead-letter-exchange", `1`)),
		Entry("a boolean that is a string", "x-single-active-consumer must be true or false", arguments("x-single-active-consumer", `"yes"`)),
		Entry("a routing key without its exchange", "x-dead-letter-routing-key needs x-dead-letter-exchange", arguments("x-dead-letter-routing-key", `"a"`)),
		Entry("an argument of classic queues", "a quorum queue has no x-max-priority", arguments("x-max-priority", `10`)),
		Entry("an argument of quorum queues", "a classic queue has no x-delivery-limit", func(q *posthornv1.Queue) {
			q.Spec.Type = "classic"
			arguments("x-delivery-limit", `10`)(q)
		}),
		Entry("the argument of the type", "they come from spec.type and spec.replicas", arguments("x-queue-type", `"quorum"`)),
	)

	It("refuses changes of immutable fields of a Queue", func() {
		q := &posthornv1.Queue{ObjectMeta: metav1.ObjectMeta{Namespace: newNamespace(nil), Name: "q"}, Spec: posthornv1.QueueSpec{ClusterRef: posthornv1.ClusterReference{Name: "c"}}}
		create(q)
		for words, change := range map[string]func(*posthornv1.Queue){
			"clusterRef is immutable": func(q *posthornv1.Queue) { q.Spec.ClusterRef.Namespace = "elsewhere" },
			"name is immutable":       func(q *posthornv1.Queue) { q.Spec.Name = "other" },
			"vhost is immutable":      func(q *posthornv1.Queue) { q.Spec.Vhost = "other" },
			"type is immutable":       func(q *posthornv1.Queue) { q.Spec.Type = "classic" },
		} {
			Expect(k8s.Get(ctx, client.ObjectKeyFromObject(q), q)).To(Succeed())
			changed := q.DeepCopy()
			change(changed)
			refusedWith(k8s.Patch(ctx, changed, client.MergeFrom(q)), words)
		}
	})

	DescribeTable("Policy", func(words string, change func(*posthornv1.Policy)) {
		p := &posthornv1.Policy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}, Spec: posthornv1.PolicySpec{
			ClusterRef: posthornv1.ClusterReference{Name: "c"}, Pattern: "^a", Definition: map[string]apiextensionsv1.JSON{"max-length": value("1")},
		}}
		change(p)
		refusedWith(k8s.Create(ctx, p, client.DryRunAll), words)
	},
		Entry("no pattern", "spec.pattern", func(p *posthornv1.Policy) { p.Spec.Pattern = "" }),
		Entry("a pattern that is not closed", "must be a regular expression", func(p *posthornv1.Policy) { p.Spec.Pattern = "^(a" }),
		Entry("a range without an end", "must be a regular expression", func(p *posthornv1.Policy) { p.Spec.Pattern = "[a-" }),
		Entry("no definition", "spec.definition", func(p *posthornv1.Policy) { p.Spec.Definition = map[string]apiextensionsv1.JSON{} }),
		Entry("unknown target", "Unsupported value", func(p *posthornv1.Policy) { p.Spec.ApplyTo = "everything" }),
		Entry("an unknown key", "spec.definition: the broker knows no key max-size; it knows ", definition("max-size", `10`)),
		Entry("an argument's name", "the broker knows no key x-max-length", definition("x-max-length", `10`)),
		Entry("an integer that is a string", "max-length must be an integer of at least 0", definition("max-length", `"10"`)),
		Entry("an integer that is too large", "queue-version must be an integer of at least 1 and at most 2", definition("queue-version", `3`)),
		Entry("a word that is not one of those", "overflow must be one of drop-head, reject-publish, reject-publish-dlx", definition("overflow", `"drop-tail"`)),
		Entry("a string that is a list", "dead-letter-exchange must be a string", definition("dead-letter-exchange", `["a"]`)),
		Entry("a key that operator policies lack", "an operator policy cannot have dead-letter-exchange", func(p *posthornv1.Policy) {
			p.Spec.Scope = "Operator"
			definition("dead-letter-exchange", `"a"`)(p)
		}),
		Entry("operator policy for exchanges", "an operator policy applies to", func(p *posthornv1.Policy) { p.Spec.Scope, p.Spec.ApplyTo = "Operator", "exchanges" }),
	)

	DescribeTable("User", func(words string, change func(*posthornv1.User)) {
		u := &posthornv1.User{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "u"}, Spec: posthornv1.UserSpec{
			ClusterRef: posthornv1.ClusterReference{Name: "c"}, Credentials: posthornv1.CredentialsSpec{Generate: &posthornv1.GenerateSpec{}},
		}}
		change(u)
		refusedWith(k8s.Create(ctx, u, client.DryRunAll), words)
	},
		Entry("two sources of the password", "exactly one", func(u *posthornv1.User) {
			u.Spec.Credentials.SecretRef = &corev1.LocalObjectReference{Name: "s"}
		}),
		Entry("no source of the password", "exactly one", func(u *posthornv1.User) { u.Spec.Credentials.Generate = nil }),
		Entry("a password and a certificate", "exactly one", func(u *posthornv1.User) {
			u.Spec.Credentials.Certificate = &posthornv1.CertificateCredentials{CommonName: "u"}
		}),
		Entry("another username than the certificate's", "leave username out", func(u *posthornv1.User) {
			u.Spec.Username = "other"
			u.Spec.Credentials = posthornv1.CredentialsSpec{Certificate: &posthornv1.CertificateCredentials{CommonName: "u"}}
		}),
		Entry("short password", "length", func(u *posthornv1.User) { u.Spec.Credentials.Generate.Length = 4 }),
		Entry("username with a blank", "spec.username", func(u *posthornv1.User) { u.Spec.Username = "a b" }),
		Entry("tag with a comma", "spec.tags", func(u *posthornv1.User) { u.Spec.Tags = []posthornv1.UserTag{"management,administrator"} }),
		Entry("unknown tag", "supported values: \"administrator\"", func(u *posthornv1.User) { u.Spec.Tags = []posthornv1.UserTag{"wizard"} }),
		Entry("a permission that is no regular expression", "must be a regular expression", func(u *posthornv1.User) {
			u.Spec.Permissions = []posthornv1.UserPermission{{Vhost: "/", Read: "*"}}
		}),
		Entry("a topic permission that is no regular expression", "must be a regular expression", func(u *posthornv1.User) {
			u.Spec.TopicPermissions = []posthornv1.UserTopicPermission{{Vhost: "/", Exchange: "amq.topic", Write: "a)"}}
		}),
		Entry("two permissions for a vhost", "Duplicate value", func(u *posthornv1.User) {
			u.Spec.Permissions = []posthornv1.UserPermission{{Vhost: "/"}, {Vhost: "/"}}
		}),
		Entry("negative limit", "spec.limits", func(u *posthornv1.User) { u.Spec.Limits.Connections = -1 }),
		Entry("adoption by likeness", "Unsupported value", func(u *posthornv1.User) { u.Spec.Adoption = "IfMatching" }),
	)

	It("accepts every argument, key and setting that the broker knows", func() {
		for kind, all := range map[string]map[string]string{
			"quorum": {
				"x-delivery-limit": "-1", "x-max-length": "0", "x-max-length-bytes": "9007199254740993", "x-max-in-memory-length": "1",
				"x-max-in-memory-bytes": "1", "x-expires": "60000", "x-message-ttl": "0", "x-overflow": `"reject-publish"`,
				"x-dead-letter-exchange": `""`, "x-dead-letter-routing-key": `"a"`, "x-dead-letter-strategy": `"at-least-once"`,
				"x-single-active-consumer": "true", "x-queue-leader-locator": `"balanced"`, "x-consumer-timeout": "1", "x-quorum-target-group-size": "3",
				"x-message-deduplication": "true", "x-deduplication-window": "600000", "x-message-groups": "true",
			},
			"classic": {"x-max-priority": "255", "x-queue-mode": `"lazy"`, "x-queue-version": "2", "x-queue-master-locator": `"random"`},
			"stream": {
				"x-max-length-bytes": "1", "x-max-age": `"7D"`, "x-stream-max-segment-size-bytes": "500000000", "x-stream-filter-size-bytes": "255",
				"x-queue-leader-locator": `"client-local"`,
			},
		} {
			q := &posthornv1.Queue{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "q"}, Spec: posthornv1.QueueSpec{
				ClusterRef: posthornv1.ClusterReference{Name: "c"}, Type: kind, Arguments: map[string]apiextensionsv1.JSON{},
			}}
			for name, json := range all {
				q.Spec.Arguments[name] = value(json)
			}
			Expect(k8s.Create(ctx, q, client.DryRunAll)).To(Succeed())
		}
		p := &posthornv1.Policy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}, Spec: posthornv1.PolicySpec{
			ClusterRef: posthornv1.ClusterReference{Name: "c"}, Pattern: "^a", Scope: "Operator",
			Definition: map[string]apiextensionsv1.JSON{"max-length": value("1"), "overflow": value(`"drop-head"`), "delivery-limit": value("-1")},
		}}
		Expect(k8s.Create(ctx, p, client.DryRunAll)).To(Succeed())
		p.Spec.Scope = "User"
		p.Spec.Definition["dead-letter-exchange"], p.Spec.Definition["stream-filter-size-bytes"] = value(`"a"`), value("16")
		Expect(k8s.Create(ctx, p, client.DryRunAll)).To(Succeed())
		p.Spec.ApplyTo, p.Spec.Definition = "streams", map[string]apiextensionsv1.JSON{
			"max-age": value(`"12h"`), "max-length-bytes": value("1"), "stream-max-segment-size-bytes": value("1"), "stream-filter-size-bytes": value("16"),
		}
		Expect(k8s.Create(ctx, p, client.DryRunAll)).To(Succeed())
		v := &posthornv1.Vhost{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "v"}, Spec: posthornv1.VhostSpec{
			ClusterRef: posthornv1.ClusterReference{Name: "c"}, DefaultQueueType: "stream",
		}}
		Expect(k8s.Create(ctx, v, client.DryRunAll)).To(Succeed())
		c := newCluster("default")
		c.Spec.Config = map[string]posthornv1.ConfigValue{"log.level": "debug", "loopback_users.guest": "false", "mqtt.vhost": "/",
			"advertised_listeners.amqp/ssl": "[2001:db8::1]:30671", "advertised_listeners.http/web-mqtt": "broker.example.org:30080",
			"stream.advertised_host": "broker.example.org", "stream.advertised_tls_port": "30551", "advertised_listeners.stream/ssl": "broker.example.org:30551"}
		c.Spec.Protocols = []posthornv1.Protocol{"amqp", "web-amqp", "mqtt", "stream"}
		Expect(k8s.Create(ctx, c, client.DryRunAll)).To(Succeed())
	})

	DescribeTable("pod templates that the API server accepts", func(json string) {
		cluster := newCluster("default")
		template(json)(cluster)
		Expect(strictly(cluster)).To(Succeed())
		var stored any
		Expect(yaml.Unmarshal(cluster.Spec.PodTemplate.Raw, &stored)).To(Succeed())
		var given any
		Expect(yaml.Unmarshal([]byte(json), &given)).To(Succeed())
		Expect(stored).To(Equal(given), "nothing is left out")
	},
		Entry("where pods go", `{"spec":{"priorityClassName":"high","nodeSelector":{"a":"b"},"tolerations":[{"operator":"Exists","tolerationSeconds":5}],"runtimeClassName":"gvisor"}}`),
		Entry("affinity", `{"spec":{"affinity":{"podAntiAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[{"topologyKey":"kubernetes.io/hostname","labelSelector":{"matchExpressions":[{"key":"a","operator":"In","values":["b"]}]}}]}}}}`),
		Entry("null, which removes a field", `{"spec":{"securityContext":{"runAsUser":null,"fsGroup":null},"topologySpreadConstraints":null}}`),
		Entry("directives", `{"spec":{"topologySpreadConstraints":[{"$patch":"replace"}],"securityContext":{"$patch":"replace","runAsNonRoot":true}}}`),
		Entry("another container", `{"metadata":{"labels":{"team":"a"}},"spec":{"containers":[{"name":"side","image":"x","command":["x"],"args":["y"],"env":[{"name":"POSTHORN_X","value":"1"}],"ports":[{"name":"amqp","containerPort":1}]}],"initContainers":[{"name":"first","image":"x"}]}}`),
		Entry("fields of the broker's container", inBroker(`"env":[{"name":"TZ","valueFrom":{"configMapKeyRef":{"name":"a","key":"b"}}}],"resources":{"limits":{"cpu":2,"memory":"1Gi"}},"livenessProbe":{"periodSeconds":30,"httpGet":{"port":"probes"}},"lifecycle":{"preStop":{"sleep":{"seconds":5}}}`)),
		Entry("volumes", `{"spec":{"volumes":[{"name":"x","secret":{"secretName":"x","items":[{"key":"a","path":"b"}]}},{"name":"y","ephemeral":{"volumeClaimTemplate":{"metadata":{"labels":{"a":"b"}},"spec":{"resources":{"requests":{"storage":"1Gi"}}}}}},{"name":"z","projected":{"sources":[{"serviceAccountToken":{"path":"x","expirationSeconds":3600}}]}}]}}`),
	)

	It("only warns about arguments that the broker ignores", func() {
		warnings := &warningTexts{}
		config := rest.CopyConfig(apiConfig)
		config.WarningHandler = warnings
		warned, err := client.New(config, client.Options{Scheme: k8s.Scheme()})
		Expect(err).NotTo(HaveOccurred())
		warningsOf := func(object client.Object) func() []string {
			return func() []string {
				warnings.texts = nil
				copied, is := object.DeepCopyObject().(client.Object)
				Expect(is).To(BeTrue())
				Expect(warned.Create(ctx, copied, client.DryRunAll)).To(Succeed())
				return warnings.texts
			}
		}
		meta, ref := metav1.ObjectMeta{Namespace: "default", Name: "q"}, posthornv1.ClusterReference{Name: "c"}
		q := &posthornv1.Queue{ObjectMeta: meta, Spec: posthornv1.QueueSpec{ClusterRef: ref}}
		arguments("x-delivery-limt", "5")(q)
		Eventually(warningsOf(q)).Should(ConsistOf(ContainSubstring("spec.arguments: the broker ignores x-delivery-limt, which it does not know")))
		s := &posthornv1.SuperStream{ObjectMeta: meta, Spec: posthornv1.SuperStreamSpec{
			ClusterRef: ref, Partitions: 1, Arguments: map[string]apiextensionsv1.JSON{"x-max-ages": value(`"7D"`)},
		}}
		Eventually(warningsOf(s)).Should(ConsistOf(ContainSubstring("spec.arguments: the broker ignores x-max-ages, which it does not know")))
		p := &posthornv1.Policy{ObjectMeta: meta, Spec: posthornv1.PolicySpec{
			ClusterRef: ref, Pattern: "^a", ApplyTo: "streams", Definition: map[string]apiextensionsv1.JSON{"max-age": value(`"7D"`), "message-ttl": value("1")},
		}}
		Eventually(warningsOf(p)).Should(ConsistOf(ContainSubstring("streams do not support message-ttl, so the policy applies to none of them")))
		p.Spec.ApplyTo = "classic_queues"
		Expect(warningsOf(p)()).To(ConsistOf(ContainSubstring("classic queues do not support max-age, so")))
		p.Spec.ApplyTo = "queues"
		Expect(warningsOf(p)()).To(BeEmpty())
	})

	It("still allows changes and deletion of an object that was stored with an unknown key", func() {
		q := &posthornv1.Queue{ObjectMeta: metav1.ObjectMeta{Namespace: newNamespace(nil), Name: "q"}, Spec: posthornv1.QueueSpec{ClusterRef: posthornv1.ClusterReference{Name: "c"}}}
		skipValidation(q)
		arguments("x-delivery-limit", `"lots"`)(q)
		create(q)
		change(q, func(q *posthornv1.Queue) { q.Annotations = nil })
		change(q, func(q *posthornv1.Queue) { q.Spec.ReclaimPolicy = "Delete" })
		Expect(k8s.Get(ctx, client.ObjectKeyFromObject(q), q)).To(Succeed())
		changed := q.DeepCopy()
		arguments("x-delivery-limit", `"many"`)(changed)
		refusedWith(k8s.Patch(ctx, changed, client.MergeFrom(q)), "x-delivery-limit must be an integer")
		Expect(k8s.Delete(ctx, q)).To(Succeed())
		Eventually(gone(q)).Should(BeTrue())
	})

	// The broker decides about patterns with syntax that CEL does not know.
	DescribeTable("patterns that the API server accepts", func(pattern string) {
		p := &posthornv1.Policy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}, Spec: posthornv1.PolicySpec{
			ClusterRef: posthornv1.ClusterReference{Name: "c"}, Pattern: pattern, Definition: map[string]apiextensionsv1.JSON{"max-length": value("1")},
		}}
		Expect(k8s.Create(ctx, p, client.DryRunAll)).To(Succeed())
		u := &posthornv1.User{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "u"}, Spec: posthornv1.UserSpec{
			ClusterRef: posthornv1.ClusterReference{Name: "c"}, Credentials: posthornv1.CredentialsSpec{Generate: &posthornv1.GenerateSpec{}},
			Permissions: []posthornv1.UserPermission{{Vhost: "/", Configure: pattern, Write: pattern, Read: ""}},
		}}
		Expect(k8s.Create(ctx, u, client.DryRunAll)).To(Succeed())
	},
		Entry("all", ".*"), Entry("a literal dot", `^amq\.`), Entry("choices", "^(a|b)-[0-9]{1,3}$"), Entry("look-ahead", "^(?!amq)"),
		Entry("a reference back", `(a)\1`), Entry("a possessive quantifier", "a++"), Entry("many", "a{1001}"),
	)
})
