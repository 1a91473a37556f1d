// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package envtest

import (
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/names"
)

// orders of deletion: c the cluster, v a vhost, q a queue, x an exchange, b a binding, p a policy, u a user, m a
// permission, t a topic permission, s the Secrets.
var orders = []string{"cvqxbpumts", "qxbpumtvcs", "scvqpumtbx", "svqpuxbtmc", "umtcsvpqbx", "puvqtmbxsc"}

var _ = Describe("a namespace with all kinds of objects", func() {
	// Without a namespace controller and a garbage collector the spec deletes the contents of the namespace one kind
	// after the other, like the namespace controller, whose order is not defined.
	DescribeTable("is deleted completely", func(brokerUp bool) {
		for _, order := range orders {
			w := newWorld()
			q := w.queue("orders", func(q *posthornv1.Queue) { q.Spec.ReclaimPolicy = "Delete" })
			p, u := w.policy("bound"), w.user("app")
			v := w.vhost("extra", func(v *posthornv1.Vhost) { v.Spec.ReclaimPolicy = "Delete" })
			x := w.exchange("events", func(x *posthornv1.Exchange) { x.Spec.ReclaimPolicy = "Delete" })
			b, t := w.bindingOf("b"), w.topicPermission("t")
			m := w.permission("m", func(p *posthornv1.Permission) { p.Spec.Vhost = "extra" })
			all := map[string]client.Object{"v": v, "q": q, "x": x, "b": b, "p": p, "u": u, "m": m, "t": t}
			for _, object := range []client.Object{v, q, x, b, p, u, m, t} {
				create(object)
				Eventually(ready(object)).Should(HavePrefix("True"))
			}
			w.broker.SetDown(!brokerUp)
			Expect(k8s.Delete(ctx, namespaceObject(w.namespace))).To(Succeed())
			for _, what := range strings.Split(order, "") {
				switch what {
				case "c":
					Expect(k8s.Delete(ctx, w.cluster())).To(Succeed())
				case "s":
					for _, name := range []string{names.OperatorSecret(clusterName), names.DefaultUserSecret(clusterName), u.BindingName()} {
						secret := &corev1.Secret{}
						secret.Namespace, secret.Name = w.namespace, name
						Expect(client.IgnoreNotFound(k8s.Delete(ctx, secret))).To(Succeed())
					}
				default:
					Expect(k8s.Delete(ctx, all[what])).To(Succeed())
				}
			}
			for _, object := range all {
				Eventually(gone(object)).Should(BeTrue(), "%s of order %s", object.GetName(), order)
			}
		}
	},
		Entry("while the broker answers", true),
		Entry("while it does not", false),
	)

	It("is deleted independently of a tenant's objects, and the tenant's namespace independently of the cluster's", func() {
		w := newWorld(open)
		ns := newNamespace(map[string]string{"messaging": "yes"})
		own := "t-" + ns
		w.broker.AddVhost(own)
		q := w.queue("orders", func(q *posthornv1.Queue) {
			q.Namespace, q.Spec.Vhost, q.Spec.ReclaimPolicy = ns, own, "Delete"
		})
		create(q)
		Eventually(ready(q)).Should(HavePrefix("True"))
		w.broker.SetDown(true)
		Expect(k8s.Delete(ctx, w.cluster())).To(Succeed())
		Expect(k8s.Delete(ctx, q)).To(Succeed())
		Eventually(gone(q)).Should(BeTrue())
	})
})

var _ = Describe("tenants against each other", func() {
	It("cannot reach each other's user, vhost, queue or policy by any name, adoption or deletion", func() {
		w := newWorld(open)
		label := map[string]string{"messaging": "yes"}
		a, b := newNamespace(label), newNamespace(label)
		w.broker.AddVhost("t-" + a)
		w.broker.AddVhost("t-" + b)
		queueOf := w.queue("orders", func(q *posthornv1.Queue) { q.Namespace, q.Spec.Vhost = a, "t-"+a })
		policyOf := w.policy("bound", func(p *posthornv1.Policy) { p.Namespace, p.Spec.Vhost = a, "t-"+a })
		userOf := w.user("app", func(u *posthornv1.User) {
			u.Namespace, u.Spec.Permissions = a, []posthornv1.UserPermission{{Vhost: "t-" + a, Read: ".*"}}
		})
		for _, object := range []client.Object{queueOf, policyOf, userOf} {
			create(object)
			Eventually(ready(object)).Should(HavePrefix("True"))
		}
		before, _ := w.broker.User(a + "-app")
		held, _ := w.broker.Policy(broker.UserPolicies, "t-"+a, "bound")

		var attacks []client.Object
		for i, adoption := range []posthornv1.AdoptionPolicy{posthornv1.AdoptIfMatching, posthornv1.AdoptNever, posthornv1.AdoptTakeover} {
			name := string(rune('a' + i))
			attacks = append(attacks,
				w.queue("q"+name, func(q *posthornv1.Queue) {
					q.Namespace, q.Spec.Vhost, q.Spec.Name, q.Spec.Adoption, q.Spec.ReclaimPolicy = b, "t-"+a, "orders", adoption, "Delete"
				}),
				w.policy("p"+name, func(p *posthornv1.Policy) {
					p.Namespace, p.Spec.Vhost, p.Spec.Name, p.Spec.Adoption, p.Spec.Priority = b, "t-"+a, "bound", adoption, 100
				}))
		}
		for name, modify := range map[string]func(*posthornv1.User){
			"name":     func(u *posthornv1.User) { u.Spec.Username = a + "-app" },
			"takeover": func(u *posthornv1.User) { u.Spec.Username, u.Spec.Adoption = a+"-app", posthornv1.AdoptTakeover },
			"permission": func(u *posthornv1.User) {
				u.Spec.Permissions = []posthornv1.UserPermission{{Vhost: "t-" + a, Read: ".*"}}
			},
			"topic": func(u *posthornv1.User) {
				u.Spec.TopicPermissions = []posthornv1.UserTopicPermission{{Vhost: "t-" + a, Exchange: "amq.topic", Read: ".*"}}
			},
			"certificate": func(u *posthornv1.User) {
				u.Spec.Credentials = posthornv1.CredentialsSpec{Certificate: &posthornv1.CertificateCredentials{CommonName: a + "-app"}}
			},
			"admin": func(u *posthornv1.User) { u.Spec.Tags = []posthornv1.UserTag{"administrator"} },
		} {
			attacks = append(attacks, w.user("u"+name, func(u *posthornv1.User) { u.Namespace, u.Spec.Permissions = b, nil; modify(u) }))
		}
		for _, attack := range attacks {
			create(attack)
			Eventually(ready(attack)).Should(HavePrefix("False NotAllowed"), attack.GetName())
			Expect(k8s.Delete(ctx, attack)).To(Succeed())
			Eventually(gone(attack)).Should(BeTrue(), attack.GetName())
		}
		for _, attack := range attacks {
			if u, is := attack.(*posthornv1.User); is {
				_, made := w.broker.User(u.BrokerName())
				Expect(made).To(Equal(u.BrokerName() == a+"-app"), u.Name)
			}
		}
		Expect(w.there("t-"+a, "orders")()).To(BeTrue())
		after, _ := w.broker.User(a + "-app")
		Expect(after).To(Equal(before))
		now, _ := w.broker.Policy(broker.UserPolicies, "t-"+a, "bound")
		Expect(now).To(Equal(held))
		for _, object := range []client.Object{queueOf, policyOf, userOf} {
			Expect(ready(object)()).To(HavePrefix("True"))
		}
	})

	It("cannot take names of a namespace of which theirs is a prefix", func() {
		w := newWorld(open)
		label := map[string]string{"messaging": "yes"}
		short := newNamespace(label)
		long := short + "-b"
		squat := func(name, username string) *posthornv1.User {
			return w.user(name, func(u *posthornv1.User) { u.Namespace, u.Spec.Username, u.Spec.Permissions = short, username, nil })
		}
		queueOf := func(namespace string) *posthornv1.Queue {
			return w.queue("orders", func(q *posthornv1.Queue) { q.Namespace, q.Spec.Vhost = namespace, "t-"+long })
		}
		reaching := queueOf(short)
		create(reaching)
		Eventually(ready(reaching)).Should(HavePrefix("False NotAllowed"))
		early := squat("b-early", "")
		create(early)
		Eventually(ready(early)).Should(HavePrefix("True"))
		Expect(early.Status.Username).To(Equal(long + "-early"))

		makeNamespace(metav1.ObjectMeta{Name: long}, label)
		w.broker.AddVhost("t-" + long)
		queue := queueOf(long)
		create(queue)
		Eventually(ready(queue)).Should(HavePrefix("True"), "an older object that is refused holds up nobody")
		attacks := []*posthornv1.User{squat("one", long+"-app"), squat("b-app", ""), squat("two", long+"-"), squat("three", long+".app")}
		for _, attack := range attacks[:3] {
			create(attack)
			Eventually(ready(attack)).Should(HavePrefix("False NotAllowed"), attack.BrokerName())
		}
		create(attacks[3])
		Eventually(ready(attacks[3])).Should(HavePrefix("True"), "no other namespace could name it")

		theirs := w.user("app", func(u *posthornv1.User) { u.Namespace, u.Spec.Permissions = long, nil })
		create(theirs)
		Eventually(ready(theirs)).Should(HavePrefix("True"))
		Expect(theirs.Status.Username).To(Equal(long + "-app"))
		before, _ := w.broker.User(long + "-app")
		for name, adoption := range map[string]posthornv1.AdoptionPolicy{"never": posthornv1.AdoptNever, "takeover": posthornv1.AdoptTakeover} {
			again := squat(name, long+"-app")
			again.Spec.Adoption = adoption
			create(again)
			Eventually(ready(again)).Should(HavePrefix("False NotAllowed"), name)
			Expect(k8s.Delete(ctx, again)).To(Succeed())
			Eventually(gone(again)).Should(BeTrue())
		}
		after, _ := w.broker.User(long + "-app")
		Expect(after).To(Equal(before))

		By("leaving what was there before the namespace with the one who has it")
		late := w.user("early", func(u *posthornv1.User) { u.Namespace, u.Spec.Permissions = long, nil })
		create(late)
		Eventually(ready(late)).Should(HavePrefix("False Conflict"))
		Expect(k8s.Delete(ctx, early)).To(Succeed())
		Eventually(gone(early)).Should(BeTrue())
		Eventually(ready(late)).Should(HavePrefix("True"))
	})
})
