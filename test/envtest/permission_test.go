// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package envtest

import (
	"net/http"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
)

// in sets the vhost of a Permission.
func in(vhost string) func(*posthornv1.Permission) {
	return func(p *posthornv1.Permission) { p.Spec.Vhost = vhost }
}

func topicWrite(w *world, user, exchange string) func() string {
	return func() string {
		p, found := w.broker.TopicPermission("/", user, exchange)
		if !found {
			return "none"
		}
		return p.Write
	}
}

// nextSecond waits until a new object is younger than the existing ones: creation times are whole seconds.
func nextSecond(object client.Object) {
	GinkgoHelper()
	Eventually(func() bool { return time.Now().Unix() > object.GetCreationTimestamp().Unix() }).Should(BeTrue())
}

var _ = Describe("Permission", func() {
	It("waits until its User is Ready, and is granted, changed and revoked", func() {
		w := newWorld()
		w.broker.AddVhost("two")
		p := w.permission("p", in("two"))
		create(p)
		Eventually(ready(p)).Should(HavePrefix("False UserNotFound: User " + w.namespace + "/app does not exist"))
		u := w.user("app", func(u *posthornv1.User) {
			u.Spec.Credentials = posthornv1.CredentialsSpec{SecretRef: &corev1.LocalObjectReference{Name: "given"}}
		})
		create(u)
		Eventually(ready(u)).Should(HavePrefix("False SecretNotFound"))
		Eventually(ready(p)).Should(HavePrefix("False UserNotReady: User " + w.namespace + "/app is not Ready"))
		Expect(conditionOf(p, posthornv1.ConditionStalled)()).To(Equal("absent"), "it is no failure")
		name := w.namespace + "-app"
		Expect(permission(w, "two", name)()).To(Equal("none"))
		create(&corev1.Secret{ObjectMeta: w.meta("given"), StringData: map[string]string{"password": "a-given-password"}})
		Eventually(ready(p)).Should(HavePrefix("True"))
		Expect(p.Status.User).To(Equal(name))
		Expect(permission(w, "two", name)()).To(Equal(`"" ".*" ""`))
		Expect(permission(w, "/", name)()).To(Equal(`"" ".*" "^a"`), "the User's own permission stays")
		Consistently(permission(w, "two", name)).Should(Equal(`"" ".*" ""`), "the User does not revoke it")
		puts := len(w.broker.Calls("/api/permissions/", http.MethodPut))
		Consistently(func() int { return len(w.broker.Calls("/api/permissions/", http.MethodPut)) }).Should(Equal(puts), "nothing is written when nothing differs")
		change(p, func(p *posthornv1.Permission) { p.Spec.Read = "^r" })
		Eventually(permission(w, "two", name)).Should(Equal(`"" ".*" "^r"`))
		Eventually(ready(p)).Should(HavePrefix("True"), "what differs before is no drift")
		w.broker.SetPermission(broker.Permission{Vhost: "two", User: name, Configure: ".*"})
		Eventually(permission(w, "two", name)).Should(Equal(`"" ".*" "^r"`))
		Eventually(eventsOf(p, "DriftCorrected")).Should(Equal(1))
		Expect(k8s.Delete(ctx, p)).To(Succeed())
		Eventually(gone(p)).Should(BeTrue())
		Expect(permission(w, "two", name)()).To(Equal("none"))
		Expect(ready(u)()).To(HavePrefix("True"))
	})

	It("is for a user that no User made, and waits for it and for the vhost", func() {
		w := newWorld()
		p := w.permission("p", in("two"), func(p *posthornv1.Permission) { p.Spec.UserRef, p.Spec.User = nil, "legacy" })
		create(p)
		Eventually(ready(p)).Should(Equal(`False VhostNotFound: the broker has no vhost "two"`))
		create(w.vhost("two"))
		Eventually(ready(p)).Should(HavePrefix(`False UserNotFound: waits for user "legacy"`))
		w.broker.SetUser("legacy", "x")
		Eventually(ready(p)).Should(HavePrefix("True"))
		Expect(permission(w, "two", "legacy")()).To(Equal(`"" ".*" ""`))
	})

	It("is adopted when it matches, changed with Takeover, and belongs to the older of two objects", func() {
		w := newWorld()
		w.broker.SetUser("legacy", "x")
		w.broker.SetPermission(broker.Permission{Vhost: "/", User: "legacy", Read: "^x"})
		of := func(p *posthornv1.Permission) { p.Spec.UserRef, p.Spec.User = nil, "legacy" }
		p := w.permission("p", of)
		create(p)
		Eventually(ready(p)).Should(And(HavePrefix("False Conflict"), ContainSubstring("differs in write, read")))
		change(p, func(p *posthornv1.Permission) { p.Spec.Adoption = posthornv1.AdoptTakeover })
		Eventually(ready(p)).Should(HavePrefix("True"))
		Expect(permission(w, "/", "legacy")()).To(Equal(`"" ".*" ""`))
		second := w.permission("second", of, func(p *posthornv1.Permission) { p.Spec.Read = ".*" })
		create(second)
		Eventually(ready(second)).Should(And(HavePrefix("False Conflict"), ContainSubstring("is claimed by "+w.namespace+"/p")))
		Expect(k8s.Delete(ctx, second)).To(Succeed())
		Eventually(gone(second)).Should(BeTrue())
		Expect(permission(w, "/", "legacy")()).To(Equal(`"" ".*" ""`))
		change(p, func(p *posthornv1.Permission) { p.Spec.ReclaimPolicy = "Retain" })
		Expect(k8s.Delete(ctx, p)).To(Succeed())
		Eventually(gone(p)).Should(BeTrue())
		Expect(permission(w, "/", "legacy")()).To(Equal(`"" ".*" ""`))
	})

	It("that is younger than a User with a permission in the same vhost is in conflict until the User drops it", func() {
		w := newWorld()
		u := w.user("app")
		create(u)
		Eventually(ready(u)).Should(HavePrefix("True"))
		name := w.namespace + "-app"
		nextSecond(u)
		p := w.permission("p")
		create(p)
		Eventually(ready(p)).Should(And(HavePrefix("False Conflict"), ContainSubstring("spec.permissions of User "+w.namespace+"/app, which is older")))
		Eventually(conditionOf(p, posthornv1.ConditionConflict)).Should(HavePrefix("True"))
		Expect(permission(w, "/", name)()).To(Equal(`"" ".*" "^a"`))
		change(u, func(u *posthornv1.User) { u.Spec.Permissions = nil })
		Eventually(ready(p)).Should(HavePrefix("True"))
		Eventually(permission(w, "/", name)).Should(Equal(`"" ".*" ""`))
		Consistently(permission(w, "/", name)).Should(Equal(`"" ".*" ""`))
		change(u, func(u *posthornv1.User) { u.Spec.Permissions = []posthornv1.UserPermission{{Vhost: "/", Read: "^z"}} })
		Eventually(ready(p)).Should(HavePrefix("False Conflict"))
		Eventually(permission(w, "/", name)).Should(Equal(`"" "" "^z"`))
		Expect(k8s.Delete(ctx, p)).To(Succeed())
		Eventually(gone(p)).Should(BeTrue())
		Consistently(permission(w, "/", name)).Should(Equal(`"" "" "^z"`))
	})

	It("that is older than the User takes precedence, and the User says so", func() {
		w := newWorld()
		p := w.permission("p")
		create(p)
		Eventually(ready(p)).Should(HavePrefix("False UserNotFound"))
		nextSecond(p)
		u := w.user("app")
		create(u)
		Eventually(ready(p)).Should(HavePrefix("True"))
		Eventually(ready(u)).Should(Equal(`False Conflict: vhost "/" of spec.permissions is set by Permission ` + w.namespace + `/p, which is older; remove it from this User or delete the other object`))
		Expect(conditionOf(u, posthornv1.ConditionConflict)()).To(HavePrefix("True"))
		Expect(conditionOf(u, posthornv1.ConditionCredentialsSynced)()).To(HavePrefix("True"))
		Expect(conditionOf(u, posthornv1.ConditionPermissionsSynced)()).To(HavePrefix("False"))
		name := w.namespace + "-app"
		Consistently(permission(w, "/", name)).Should(Equal(`"" ".*" ""`))
		Expect(k8s.Delete(ctx, p)).To(Succeed())
		Eventually(ready(u)).Should(HavePrefix("True"))
		Eventually(permission(w, "/", name)).Should(Equal(`"" ".*" "^a"`))
	})

	It("goes with its User, and refuses another user under the same reference", func() {
		w := newWorld()
		u := w.user("app", func(u *posthornv1.User) { u.Spec.Username, u.Spec.Permissions = "first", nil })
		p := w.permission("p")
		create(u)
		create(p)
		Eventually(ready(p)).Should(HavePrefix("True"))
		Expect(k8s.Delete(ctx, u)).To(Succeed())
		Eventually(gone(u)).Should(BeTrue())
		Eventually(ready(p)).Should(HavePrefix("False UserNotFound"))
		again := w.user("app", func(u *posthornv1.User) { u.Spec.Username, u.Spec.Permissions = "second", nil })
		create(again)
		Eventually(ready(p)).Should(HavePrefix(`False ImmutableChange: User ` + w.namespace + `/app was "first" in the broker and is now "second"`))
		Expect(permission(w, "/", "second")()).To(Equal("none"))
		Expect(k8s.Delete(ctx, p)).To(Succeed())
		Eventually(gone(p)).Should(BeTrue())
	})

	It("of a tenant grants only inside the tenant's vhosts and users", func() {
		w := newWorld(open)
		label := map[string]string{"messaging": "yes"}
		ns, other := newNamespace(label), newNamespace(label)
		for _, vhost := range []string{"t-" + ns, "t-" + other} {
			w.broker.AddVhost(vhost)
		}
		w.broker.SetUser(other+"-app", "x")
		w.broker.SetUser("admin2", "x", "administrator")
		attacks := map[string][2]string{"root": {"/", ns + "-app"}, "other": {"t-" + other, ns + "-app"}, "user": {"t-" + ns, other + "-app"}, "admin": {"t-" + ns, "admin2"}}
		w.broker.SetUser(ns+"-app", "x")
		for name, names := range attacks {
			p := w.permission(name, in(names[0]), func(p *posthornv1.Permission) {
				p.Namespace, p.Spec.UserRef, p.Spec.User, p.Spec.Adoption = ns, nil, names[1], posthornv1.AdoptTakeover
			})
			create(p)
			Eventually(ready(p)).Should(HavePrefix("False NotAllowed"), name)
			t := w.topicPermission(name, func(p *posthornv1.TopicPermission) {
				p.Namespace, p.Spec.UserRef, p.Spec.User, p.Spec.Vhost = ns, nil, names[1], names[0]
			})
			create(t)
			Eventually(ready(t)).Should(HavePrefix("False NotAllowed"), name)
			Expect(permission(w, names[0], names[1])()).To(Equal("none"), name)
		}
		own := w.permission("own", in("t-"+ns), func(p *posthornv1.Permission) { p.Namespace, p.Spec.UserRef, p.Spec.User = ns, nil, ns+"-app" })
		create(own)
		Eventually(ready(own)).Should(HavePrefix("True"))

		By("ending with the tenancy")
		owner := w.permission("owner", in("t-"+ns), func(p *posthornv1.Permission) { p.Spec.UserRef, p.Spec.User = nil, other+"-app" })
		create(owner)
		Eventually(ready(owner)).Should(HavePrefix("True"), "the cluster's own namespace may grant anything")
		change(namespaceObject(ns), func(n *corev1.Namespace) { n.Labels["messaging"] = "no" })
		Eventually(ready(own)).Should(HavePrefix("False NotAllowed"))
		Eventually(permission(w, "t-"+ns, ns+"-app")).Should(Equal("none"))
		Expect(w.broker.Calls("/api/connections/username/"+ns+"-app", http.MethodDelete)).NotTo(BeEmpty())
		Expect(permission(w, "t-"+ns, other+"-app")()).NotTo(Equal("none"))
		change(namespaceObject(ns), func(n *corev1.Namespace) { n.Labels["messaging"] = "yes" })
		Eventually(permission(w, "t-"+ns, ns+"-app")).Should(Equal(`"" ".*" ""`))
	})

	It("of the cluster's namespace keeps a tenant's user in a vhost that the tenant may not name", func() {
		w := newWorld(open)
		ns := newNamespace(map[string]string{"messaging": "yes"})
		u := w.user("app", func(u *posthornv1.User) { u.Namespace, u.Spec.Permissions = ns, nil })
		create(u)
		Eventually(ready(u)).Should(HavePrefix("True"))
		p := w.permission("p", func(p *posthornv1.Permission) { p.Spec.UserRef, p.Spec.User = nil, ns+"-app" })
		create(p)
		Eventually(ready(p)).Should(HavePrefix("True"))
		Consistently(permission(w, "/", ns+"-app")).Should(Equal(`"" ".*" ""`))
		foreign := w.permission("foreign", func(p *posthornv1.Permission) { p.Namespace, p.Spec.UserRef, p.Spec.User = ns, nil, ns+"-app" })
		create(foreign)
		Eventually(ready(foreign)).Should(HavePrefix("False NotAllowed"))
		Expect(ready(p)()).To(HavePrefix("True"))
	})

	It("is not held up by a User whose cluster is another one", func() {
		w := newWorld()
		u := w.user("app", func(u *posthornv1.User) { u.Spec.ClusterRef.Name = "other" })
		create(u)
		p := w.permission("p")
		create(p)
		Eventually(ready(p)).Should(And(HavePrefix("False"), ContainSubstring("is a user of BrokerCluster "+w.namespace+"/other")))
	})
})

var _ = Describe("TopicPermission", func() {
	It("is granted beside others of the same user, changed, corrected and revoked alone", func() {
		w := newWorld()
		u := w.user("app", func(u *posthornv1.User) {
			u.Spec.TopicPermissions = []posthornv1.UserTopicPermission{{Vhost: "/", Exchange: "amq.topic", Write: "mine"}}
		})
		create(u)
		t := w.topicPermission("t")
		create(t)
		Eventually(ready(t)).Should(HavePrefix("True"))
		name := w.namespace + "-app"
		Expect(topicWrite(w, name, "events")()).To(Equal("^w"))
		Consistently(topicWrite(w, name, "events")).Should(Equal("^w"), "the User does not revoke it")
		Expect(topicWrite(w, name, "amq.topic")()).To(Equal("mine"))
		change(t, func(t *posthornv1.TopicPermission) { t.Spec.Write = "^x" })
		Eventually(topicWrite(w, name, "events")).Should(Equal("^x"))
		change(u, func(u *posthornv1.User) { u.Spec.TopicPermissions = nil })
		Eventually(topicWrite(w, name, "amq.topic")).Should(Equal("none"))
		Expect(topicWrite(w, name, "events")()).To(Equal("^x"))
		change(u, func(u *posthornv1.User) {
			u.Spec.TopicPermissions = []posthornv1.UserTopicPermission{{Vhost: "/", Exchange: "amq.topic", Write: "mine"}}
		})
		Eventually(topicWrite(w, name, "amq.topic")).Should(Equal("mine"))
		Expect(k8s.Delete(ctx, t)).To(Succeed())
		Eventually(gone(t)).Should(BeTrue())
		Expect(topicWrite(w, name, "events")()).To(Equal("none"))
		Expect(topicWrite(w, name, "amq.topic")()).To(Equal("mine"))
	})

	It("conflicts with a User and with another TopicPermission for the same exchange by age", func() {
		w := newWorld()
		u := w.user("app", func(u *posthornv1.User) {
			u.Spec.TopicPermissions = []posthornv1.UserTopicPermission{{Vhost: "/", Exchange: "events", Write: "mine"}}
		})
		create(u)
		Eventually(ready(u)).Should(HavePrefix("True"))
		nextSecond(u)
		t := w.topicPermission("t")
		create(t)
		Eventually(ready(t)).Should(And(HavePrefix("False Conflict"), ContainSubstring("spec.topicPermissions of User "+w.namespace+"/app")))
		Expect(topicWrite(w, w.namespace+"-app", "events")()).To(Equal("mine"))
		first, second := w.topicPermission("first", forExchange("other")), w.topicPermission("second", forExchange("other"))
		create(first)
		Eventually(ready(first)).Should(HavePrefix("True"))
		create(second)
		Eventually(ready(second)).Should(And(HavePrefix("False Conflict"), ContainSubstring("is claimed by "+w.namespace+"/first")))
		Expect(k8s.Delete(ctx, first)).To(Succeed())
		Eventually(ready(second)).Should(HavePrefix("True"))
	})

	It("that is older than the User takes precedence, is adopted only when equal, and waits for user and vhost", func() {
		w := newWorld()
		t := w.topicPermission("t")
		create(t)
		Eventually(ready(t)).Should(HavePrefix("False UserNotFound"))
		nextSecond(t)
		u := w.user("app", func(u *posthornv1.User) {
			u.Spec.TopicPermissions = []posthornv1.UserTopicPermission{{Vhost: "/", Exchange: "events", Write: "mine"}}
		})
		create(u)
		Eventually(ready(t)).Should(HavePrefix("True"))
		Eventually(ready(u)).Should(And(HavePrefix("False Conflict"), ContainSubstring("TopicPermission "+w.namespace+"/t")))
		legacy := func(name string) *posthornv1.TopicPermission {
			return w.topicPermission(name, func(p *posthornv1.TopicPermission) { p.Spec.UserRef, p.Spec.User = nil, "legacy" })
		}
		l := legacy("legacy")
		create(l)
		Eventually(ready(l)).Should(HavePrefix(`False UserNotFound: waits for user "legacy"`))
		w.broker.SetUser("legacy", "x")
		Eventually(ready(l)).Should(HavePrefix("True"))
		nowhere := legacy("nowhere")
		nowhere.Spec.Vhost = "nowhere"
		create(nowhere)
		Eventually(ready(nowhere)).Should(Equal(`False VhostNotFound: the broker has no vhost "nowhere"`))
	})
})

// forExchange sets the exchange of a TopicPermission.
func forExchange(name string) func(*posthornv1.TopicPermission) {
	return func(p *posthornv1.TopicPermission) { p.Spec.Exchange = name }
}
