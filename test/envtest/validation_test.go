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
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

// refusedWith expects the API server to refuse with certain words.
func refusedWith(err error, words string) {
	GinkgoHelper()
	Expect(err).To(HaveOccurred())
	Expect(apierrors.IsInvalid(err)).To(BeTrue(), "%v", err)
	Expect(err.Error()).To(ContainSubstring(words))
}

var _ = Describe("bad input is refused by the API server", func() {
	DescribeTable("BrokerCluster", func(words string, change func(*posthornv1.BrokerCluster)) {
		cluster := newCluster("default")
		change(cluster)
		refusedWith(k8s.Create(ctx, cluster, client.DryRunAll), words)
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
		Entry("a protocol that nobody knows", "Unsupported value", func(c *posthornv1.BrokerCluster) { c.Spec.Protocols = []posthornv1.Protocol{"gopher"} }),
		Entry("a protocol that is not there yet", "no stream listener", func(c *posthornv1.BrokerCluster) { c.Spec.Protocols = []posthornv1.Protocol{"amqp", "stream"} }),
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

	It("refuses changes of what is immutable in a BrokerCluster", func() {
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
		Entry("no cluster", "spec.clusterRef.name", func(q *posthornv1.Queue) { q.Spec.ClusterRef.Name = "" }),
		Entry("a stream", "streams are not supported by this version", func(q *posthornv1.Queue) { q.Spec.Type = "stream" }),
		Entry("unknown type", "Unsupported value", func(q *posthornv1.Queue) { q.Spec.Type = "mirrored" }),
		Entry("reserved name", "broker's own", func(q *posthornv1.Queue) { q.Spec.Name = "amq.mine" }),
		Entry("name too long", "spec.name", func(q *posthornv1.Queue) { q.Spec.Name = strings.Repeat("n", 256) }),
		Entry("replicated classic queue", "one replica", func(q *posthornv1.Queue) { q.Spec.Type, q.Spec.Replicas = "classic", 3 }),
		Entry("negative replicas", "spec.replicas", func(q *posthornv1.Queue) { q.Spec.Replicas = -3 }),
		Entry("unknown reclaim policy", "Unsupported value", func(q *posthornv1.Queue) { q.Spec.ReclaimPolicy = "Shred" }),
	)

	It("refuses changes of what is immutable in a Queue", func() {
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
			u.Spec.Permissions = []posthornv1.Permission{{Vhost: "/", Read: "*"}}
		}),
		Entry("a topic permission that is no regular expression", "must be a regular expression", func(u *posthornv1.User) {
			u.Spec.TopicPermissions = []posthornv1.TopicPermission{{Vhost: "/", Exchange: "amq.topic", Write: "a)"}}
		}),
		Entry("two permissions for a vhost", "Duplicate value", func(u *posthornv1.User) {
			u.Spec.Permissions = []posthornv1.Permission{{Vhost: "/"}, {Vhost: "/"}}
		}),
		Entry("negative limit", "spec.limits", func(u *posthornv1.User) { u.Spec.Limits.Connections = -1 }),
		Entry("adoption by likeness", "Unsupported value", func(u *posthornv1.User) { u.Spec.Adoption = "IfMatching" }),
	)

	// The broker has the last word about patterns: what another dialect knows is left to it.
	DescribeTable("patterns that the API server takes", func(pattern string) {
		p := &posthornv1.Policy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}, Spec: posthornv1.PolicySpec{
			ClusterRef: posthornv1.ClusterReference{Name: "c"}, Pattern: pattern, Definition: map[string]apiextensionsv1.JSON{"max-length": value("1")},
		}}
		Expect(k8s.Create(ctx, p, client.DryRunAll)).To(Succeed())
		u := &posthornv1.User{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "u"}, Spec: posthornv1.UserSpec{
			ClusterRef: posthornv1.ClusterReference{Name: "c"}, Credentials: posthornv1.CredentialsSpec{Generate: &posthornv1.GenerateSpec{}},
			Permissions: []posthornv1.Permission{{Vhost: "/", Configure: pattern, Write: pattern, Read: ""}},
		}}
		Expect(k8s.Create(ctx, u, client.DryRunAll)).To(Succeed())
	},
		Entry("all", ".*"), Entry("a literal dot", `^amq\.`), Entry("choices", "^(a|b)-[0-9]{1,3}$"), Entry("look-ahead", "^(?!amq)"),
		Entry("a reference back", `(a)\1`), Entry("a possessive quantifier", "a++"), Entry("many", "a{1001}"),
	)
})
