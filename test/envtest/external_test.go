// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package envtest

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/broker/brokertest"
	"posthorn.io/posthorn/internal/names"
	"posthorn.io/posthorn/internal/pki"
	"posthorn.io/posthorn/internal/topology"
)

// connectionName is the name of the connection Secret of an external world.
const connectionName = "outside"

// external is a namespace with the connection Secret of a fake broker that no operator runs.
type external struct {
	*world
	secret *corev1.Secret
}

// newExternal creates a namespace and the connection Secret of its broker.
func newExternal(changes ...func(*corev1.Secret)) *external {
	GinkgoHelper()
	server := brokertest.Start("admin", "admin-password")
	DeferCleanup(server.Close)
	for _, node := range []string{"n-0", "n-1", "n-2"} {
		server.SetNode(node, true)
	}
	w := &external{world: &world{namespace: newNamespace(nil), broker: server}}
	w.secret = &corev1.Secret{ObjectMeta: w.meta(connectionName), Data: map[string][]byte{
		"uri": []byte(server.URL()), "username": []byte("admin"), "password": []byte("admin-password"),
	}}
	create(changed(w.secret, changes))
	return w
}

// ref refers to the connection Secret.
func (w *external) ref() posthornv1.ClusterReference {
	return posthornv1.ClusterReference{ConnectionSecret: &posthornv1.ConnectionSecretReference{Name: connectionName}}
}

// outside makes an object refer to the connection Secret.
func (w *external) outside(object client.Object) client.Object {
	switch o := object.(type) {
	case *posthornv1.Vhost:
		o.Spec.ClusterRef = w.ref()
	case *posthornv1.Queue:
		o.Spec.ClusterRef = w.ref()
	case *posthornv1.SuperStream:
		o.Spec.ClusterRef = w.ref()
	case *posthornv1.Exchange:
		o.Spec.ClusterRef = w.ref()
	case *posthornv1.Binding:
		o.Spec.ClusterRef = w.ref()
	case *posthornv1.Policy:
		o.Spec.ClusterRef = w.ref()
	case *posthornv1.User:
		o.Spec.ClusterRef = w.ref()
	case *posthornv1.Permission:
		o.Spec.ClusterRef = w.ref()
	case *posthornv1.TopicPermission:
		o.Spec.ClusterRef = w.ref()
	default:
		Fail("no kind of the topology")
	}
	return object
}

// point changes the connection Secret.
func (w *external) point(key, value string) {
	GinkgoHelper()
	change(w.secret, func(s *corev1.Secret) { s.Data[key] = []byte(value) })
}

// other starts another server than a broker and returns its URL and the number of its requests.
func other(handler http.HandlerFunc) (string, *atomic.Int32) {
	requests := &atomic.Int32{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		handler(w, r)
	}))
	DeferCleanup(server.Close)
	return server.URL, requests
}

var _ = Describe("An external broker", func() {
	It("has objects of all kinds, which are corrected and deleted like those of a BrokerCluster", func() {
		w := newExternal(func(s *corev1.Secret) { s.Data["amqp"] = []byte("amqps://mq.example.org:30671") })
		objects := []client.Object{
			w.vhost("shop", reclaim("Delete")),
			w.queue("orders", func(q *posthornv1.Queue) { q.Spec.ReclaimPolicy = "Delete" }),
			w.exchange("events", func(x *posthornv1.Exchange) { x.Spec.ReclaimPolicy = "Delete" }),
			w.bindingOf("b"), w.policy("bound"), w.user("app", func(u *posthornv1.User) { u.Spec.Permissions = nil }),
			w.permission("p"), w.topicPermission("t"),
			w.superStream("invoices", func(s *posthornv1.SuperStream) { s.Spec.ReclaimPolicy = "Delete" }),
		}
		Expect(objects).To(HaveLen(len(kinds)-1), "every kind but BrokerCluster")
		for _, object := range objects {
			create(w.outside(object))
		}
		for _, object := range objects {
			Eventually(ready(object)).Should(HavePrefix("True"), "%T", object)
		}
		var binding corev1.Secret
		Expect(k8s.Get(ctx, w.key("app-binding"), &binding)).To(Succeed())
		Expect(string(binding.Data["host"])).To(Equal("mq.example.org"))
		Expect(string(binding.Data["uri"])).To(HavePrefix("amqps://" + w.namespace + "-app:"))
		for _, call := range w.broker.Calls("/") {
			Expect(call.Operator).To(BeFalse())
		}
		w.broker.RemoveVhost("shop")
		Eventually(w.hasVhost("shop")).Should(BeTrue())
		Eventually(eventsOf(objects[0], "DriftCorrected")).Should(Equal(1))
		for _, object := range objects {
			Expect(k8s.Delete(ctx, object)).To(Succeed())
		}
		for _, object := range objects {
			Eventually(gone(object)).Should(BeTrue(), "%T", object)
		}
		Expect(w.hasVhost("shop")()).To(BeFalse())
		for _, queue := range []string{"orders", "invoices-0"} {
			Expect(w.there("/", queue)()).To(BeFalse(), queue)
		}
	})

	It("is asked for its nodes when the number of members of a queue changes", func() {
		w := newExternal()
		w.broker.SetQueue(broker.Queue{
			Vhost: "/", Name: "orders", Type: "quorum", Durable: true, Leader: "n-0", Members: []string{"n-0"}, Online: []string{"n-0"},
		})
		q := w.queue("orders", func(q *posthornv1.Queue) { q.Spec.Replicas = 3 })
		create(w.outside(q))
		Eventually(ready(q)).Should(HavePrefix("True"))
		Eventually(func() []string { _ = ready(q)(); return q.Status.Members }).Should(ConsistOf("n-0", "n-1", "n-2"))
	})

	It("that is not usable has the reason in the condition Ready, until the Secret is corrected", func() {
		w := newExternal()
		address := w.broker.URL()
		q := w.queue("orders")
		create(w.outside(q))
		Eventually(ready(q)).Should(HavePrefix("True"))
		page, _ := other(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte("<html>"))
		})
		leak, leaked := other(func(http.ResponseWriter, *http.Request) {})
		redirect, _ := other(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, leak+r.URL.Path, http.StatusTemporaryRedirect)
		})
		large, _ := other(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"name":"` + strings.Repeat("n", 5<<20) + `"}`))
		})
		for _, c := range []struct{ key, value, good, want, stalled string }{
			{"uri", "http" + nowhere, address, "False BrokerUnreachable: .*connection refused", "absent"},
			{"uri", page, address, `False UnexpectedAnswer: .*\(404 Not Found\): it is not JSON; check the address`, "absent"},
			{"uri", redirect, address, "False UnexpectedAnswer: .*it redirects to .*the operator follows no redirect", "absent"},
			{"uri", large, address, "False AnswerTooLarge: .*longer than 4194304 bytes", "absent"},
			{"uri", "ftp://mq", address, "False InvalidSecret: .*key uri must be a URI", "True"},
			{"password", "wrong", "admin-password", "False CredentialsRefused: ", "True"},
		} {
			w.point(c.key, c.value)
			Eventually(ready(q)).Should(MatchRegexp(c.want))
			Expect(conditionOf(q, posthornv1.ConditionStalled)()).To(HavePrefix(c.stalled), c.want)
			w.point(c.key, c.good)
			Eventually(ready(q)).Should(HavePrefix("True"), c.want)
		}
		Expect(leaked.Load()).To(BeZero())
		Expect(k8s.Delete(ctx, w.secret)).To(Succeed())
		Eventually(ready(q)).Should(HavePrefix("False SecretNotFound: Secret " + w.namespace + "/outside of spec.clusterRef.connectionSecret does not exist"))
		w.secret.ResourceVersion, w.secret.UID = "", ""
		create(w.secret)
		Eventually(ready(q)).Should(HavePrefix("True"))
	})

	It("has to show a certificate of the CA in the Secret for the host of the URI", func() {
		authority, err := pki.NewAuthority("outside", time.Now())
		Expect(err).NotTo(HaveOccurred())
		stranger, err := pki.NewAuthority("stranger", time.Now())
		Expect(err).NotTo(HaveOccurred())
		shown := &atomic.Pointer[tls.Certificate]{}
		show := func(signer pki.Pair, host string) {
			GinkgoHelper()
			pair, err := pki.Issue(signer, pki.Leaf{Name: "n", Hosts: []string{host}, Lifetime: time.Hour}, time.Now())
			Expect(err).NotTo(HaveOccurred())
			certificate, err := tls.X509KeyPair(pair.Cert, pair.Key)
			Expect(err).NotTo(HaveOccurred())
			shown.Store(&certificate)
		}
		show(stranger, "localhost")
		w := newExternal()
		w.broker.SetListens(func(string) brokertest.Listens { return brokertest.Listens{Secure: true} })
		address := w.broker.SecureURL("", func() (*tls.Certificate, error) { return shown.Load(), nil })
		address = strings.Replace(address, "127.0.0.1", "localhost", 1)
		change(w.secret, func(s *corev1.Secret) { s.Data["uri"], s.Data["ca.crt"] = []byte(address), authority.Cert })
		q := w.queue("orders")
		create(w.outside(q))
		Eventually(ready(q)).Should(MatchRegexp("False CertificateNotTrusted: .*certificate"))
		Expect(conditionOf(q, posthornv1.ConditionStalled)()).To(HavePrefix("True"))
		show(authority, "mq.example.org")
		Eventually(ready(q)).Should(MatchRegexp("False CertificateNotTrusted: .*localhost"))
		Expect(w.broker.Calls("/")).To(BeEmpty(), "no password is sent to an untrusted broker")
		show(authority, "localhost")
		Eventually(ready(q)).Should(HavePrefix("True"))
	})

	It("serves other namespaces only if its Secret selects them, with the rules of tenants", func() {
		w := newExternal()
		tenant := newNamespace(map[string]string{"messaging": "yes"})
		own := "t-" + tenant
		v := w.vhost("own", func(v *posthornv1.Vhost) { v.Namespace, v.Spec.Name = tenant, own })
		w.outside(v)
		v.Spec.ClusterRef.Namespace = w.namespace
		create(v)
		refusal := "False NotAllowed: Secret " + w.namespace + "/outside does not exist or does not allow namespace " + tenant
		Eventually(ready(v)).Should(HavePrefix(refusal))
		missing := w.vhost("missing", func(v *posthornv1.Vhost) { v.Namespace = tenant })
		w.outside(missing)
		missing.Spec.ClusterRef.Namespace, missing.Spec.ClusterRef.ConnectionSecret.Name = w.namespace, "none"
		create(missing)
		Eventually(ready(missing)).Should(HavePrefix(strings.ReplaceAll(refusal, "/outside", "/none")), "as for a Secret that exists")
		Expect(w.broker.Calls("/")).To(BeEmpty())
		change(w.secret, func(s *corev1.Secret) {
			s.Annotations = map[string]string{names.AnnotationAllowedNamespaces: "messaging=yes", names.AnnotationVhostPrefix: "t-"}
		})
		Eventually(ready(v)).Should(HavePrefix("True"))
		root := w.queue("orders", func(q *posthornv1.Queue) { q.Namespace = tenant })
		w.outside(root)
		root.Spec.ClusterRef.Namespace = w.namespace
		create(root)
		Eventually(ready(root)).Should(And(HavePrefix("False NotAllowed"), ContainSubstring(own)))
		user := w.user("app", func(u *posthornv1.User) {
			u.Namespace, u.Spec.Permissions = tenant, []posthornv1.UserPermission{{Vhost: own, Read: ".*"}}
		})
		w.outside(user)
		user.Spec.ClusterRef.Namespace = w.namespace
		create(user)
		Eventually(ready(user)).Should(HavePrefix("True"))
		change(w.secret, func(s *corev1.Secret) { s.Annotations = nil })
		Eventually(ready(user)).Should(HavePrefix(refusal))
		_, permitted := w.broker.Permission(own, tenant+"-app")
		Expect(permitted).To(BeFalse(), "the access of a user ends with the selection of its namespace")
	})

	It("gives its own user no permissions in virtual hosts of others", func() {
		w := newExternal()
		w.broker.AddForeignVhost("theirs")
		q := w.queue("orders", func(q *posthornv1.Queue) { q.Spec.Vhost = "theirs" })
		create(w.outside(q))
		Eventually(ready(q)).Should(And(HavePrefix("False CredentialsRefused"), ContainSubstring("access virtual host")))
		Expect(w.broker.Calls("/api/permissions", http.MethodPut)).To(BeEmpty())
	})

	It("that is gone does not keep objects from being deleted", func() {
		w := newExternal()
		q, kept := w.queue("orders", func(q *posthornv1.Queue) { q.Spec.ReclaimPolicy = "Delete" }), w.queue("kept")
		for _, q := range []*posthornv1.Queue{q, kept} {
			create(w.outside(q))
			Eventually(ready(q)).Should(HavePrefix("True"))
		}
		Expect(k8s.Delete(ctx, w.secret)).To(Succeed())
		for _, q := range []*posthornv1.Queue{q, kept} {
			Eventually(ready(q)).Should(HavePrefix("False SecretNotFound"))
			Expect(k8s.Delete(ctx, q)).To(Succeed())
			Eventually(gone(q)).Should(BeTrue())
		}
		Eventually(eventsOf(q, "LeftBehind")).Should(Equal(1))
		Expect(eventsOf(kept, "LeftBehind")()).To(BeZero())
		Expect(w.there("/", "orders")()).To(BeTrue())
	})

	It("is never the broker of a BrokerCluster, even if both have one name", func() {
		w := newWorld()
		outer := &external{world: &world{namespace: w.namespace, broker: brokertest.Start("admin", "p")}}
		DeferCleanup(outer.broker.Close)
		outer.broker.SetNode("n-0", true)
		create(&corev1.Secret{ObjectMeta: w.meta(clusterName), Data: map[string][]byte{
			"uri": []byte(outer.broker.URL()), "username": []byte("admin"), "password": []byte("p"),
		}})
		inner, outerQueue := w.queue("inner", func(q *posthornv1.Queue) { q.Spec.Name = "orders" }), w.queue("outer", func(q *posthornv1.Queue) { q.Spec.Name = "orders" })
		outer.outside(outerQueue)
		outerQueue.Spec.ClusterRef.ConnectionSecret.Name = clusterName
		for _, q := range []*posthornv1.Queue{inner, outerQueue} {
			create(q)
		}
		for _, q := range []topology.Object{inner, outerQueue} {
			Eventually(ready(q)).Should(HavePrefix("True"))
		}
		Expect(w.there("/", "orders")()).To(BeTrue())
		Expect(outer.there("/", "orders")()).To(BeTrue())
		Expect(inner.Status.Claim).NotTo(Equal(outerQueue.Status.Claim))
	})
})
