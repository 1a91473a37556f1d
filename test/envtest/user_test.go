// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package envtest

import (
	"fmt"
	"net/http"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
)

func namespaceObject(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// binding reads a user's binding Secret.
func (w *world) binding(user string) *corev1.Secret {
	GinkgoHelper()
	var secret corev1.Secret
	Expect(k8s.Get(ctx, w.key(user+"-binding"), &secret)).To(Succeed())
	return &secret
}

func permission(w *world, vhost, user string) func() string {
	return func() string {
		p, found := w.broker.Permission(vhost, user)
		if !found {
			return "none"
		}
		return fmt.Sprintf("%q %q %q", p.Configure, p.Write, p.Read)
	}
}

var _ = Describe("User", func() {
	It("gets a password, permissions and limits, and a binding", func() {
		w := newWorld()
		u := w.user("app", func(u *posthornv1.User) {
			u.Spec.Tags = []posthornv1.UserTag{"management"}
			u.Spec.TopicPermissions = []posthornv1.UserTopicPermission{{Vhost: "/", Exchange: "amq.topic", Write: "^w", Read: "^r"}}
			u.Spec.Limits = posthornv1.UserLimits{Connections: 10, Channels: 20}
		})
		create(u)
		Eventually(ready(u)).Should(HavePrefix("True"))
		name := w.namespace + "-app"
		Expect(u.Status.Username).To(Equal(name))
		Expect(u.Status.Binding.Name).To(Equal("app-binding"))
		Expect(u.Status.CredentialVersion).NotTo(BeEmpty())
		secret := w.binding("app")
		Expect(secret.Type).To(BeEquivalentTo("servicebinding.io/rabbitmq"))
		Expect(metav1.IsControlledBy(secret, u)).To(BeTrue())
		password := string(secret.Data["password"])
		Expect(password).To(HaveLen(32))
		Expect(string(secret.Data["uri"])).To(Equal(fmt.Sprintf("amqp://%s:%s@c.%s.svc:5672/%%2F", name, password, w.namespace)))
		for key, want := range map[string]string{"type": "rabbitmq", "provider": "posthorn", "port": "5672", "username": name, "host": "c." + w.namespace + ".svc"} {
			Expect(string(secret.Data[key])).To(Equal(want), key)
		}
		Expect(w.broker.Accepts(name, password)).To(BeTrue())
		made, _ := w.broker.User(name)
		Expect(made.Tags).To(Equal(broker.Tags{"management"}))
		Expect(permission(w, "/", name)()).To(Equal(`"" ".*" "^a"`))
		topic, found := w.broker.TopicPermission("/", name, "amq.topic")
		Expect(found).To(BeTrue())
		Expect(topic.Write).To(Equal("^w"))
		Expect(w.broker.Limit(name, "max-connections")).To(BeEquivalentTo(10))
		Expect(w.broker.Limit(name, "max-channels")).To(BeEquivalentTo(20))
		for _, kind := range []string{posthornv1.ConditionCredentialsSynced, posthornv1.ConditionPermissionsSynced} {
			Expect(conditionOf(u, kind)()).To(HavePrefix("True"))
		}
		Expect(fmt.Sprint(u.Status)).NotTo(ContainSubstring(password))

		puts := len(w.broker.Calls("/api/users/", http.MethodPut))
		Consistently(func() int { return len(w.broker.Calls("/api/users/", http.MethodPut)) }).Should(Equal(puts), "nothing is written when nothing differs")

		Expect(k8s.Delete(ctx, u)).To(Succeed())
		Eventually(gone(u)).Should(BeTrue())
		_, found = w.broker.User(name)
		Expect(found).To(BeFalse())
	})

	It("is rotated by editing the binding Secret", func() {
		w := newWorld()
		u := w.user("app")
		create(u)
		Eventually(ready(u)).Should(HavePrefix("True"))
		name, old := w.namespace+"-app", string(w.binding("app").Data["password"])
		version := u.Status.CredentialVersion
		change(w.binding("app"), func(s *corev1.Secret) { s.Data["password"] = []byte("a new one") })
		Eventually(func() bool { return w.broker.Accepts(name, "a new one") }).Should(BeTrue())
		Expect(w.broker.Accepts(name, old)).To(BeFalse())
		Eventually(func() string { _ = ready(u)(); return u.Status.CredentialVersion }).ShouldNot(Equal(version))
		Expect(string(w.binding("app").Data["uri"])).To(ContainSubstring(":a%20new%20one@"))
		Expect(eventsOf(u, "DriftCorrected")()).To(Equal(0), "a rotation is no drift")
	})

	It("uses the password of a given Secret, and follows its changes", func() {
		w := newWorld()
		u := w.user("app", func(u *posthornv1.User) {
			u.Spec.Credentials = posthornv1.CredentialsSpec{SecretRef: &corev1.LocalObjectReference{Name: "given"}}
		})
		create(u)
		Eventually(ready(u)).Should(HavePrefix("False SecretNotFound"))
		given := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "given"}}
		create(given)
		Eventually(ready(u)).Should(HavePrefix("False InvalidSecret"))
		change(given, func(s *corev1.Secret) { s.Data = map[string][]byte{"password": []byte("first")} })
		Eventually(ready(u)).Should(HavePrefix("True"))
		name := w.namespace + "-app"
		Expect(w.broker.Accepts(name, "first")).To(BeTrue())
		change(given, func(s *corev1.Secret) { s.Data = map[string][]byte{"password": []byte("second")} })
		Eventually(func() bool { return w.broker.Accepts(name, "second") }).Should(BeTrue())
		Eventually(func() string { return string(w.binding("app").Data["password"]) }).Should(Equal("second"))
	})

	It("is corrected when somebody changes password, tags or permissions in the broker", func() {
		w := newWorld()
		u := w.user("app")
		create(u)
		Eventually(ready(u)).Should(HavePrefix("True"))
		name, password := w.namespace+"-app", string(w.binding("app").Data["password"])
		w.broker.SetUser(name, "backdoor", "administrator")
		w.broker.AddVhost("secret")
		w.broker.SetPermission(broker.Permission{Vhost: "secret", User: name, Read: ".*"})
		w.broker.SetPermission(broker.Permission{Vhost: "/", User: name, Configure: ".*"})
		Eventually(func() bool { return w.broker.Accepts(name, password) }).Should(BeTrue())
		Eventually(permission(w, "secret", name)).Should(Equal("none"))
		Eventually(permission(w, "/", name)).Should(Equal(`"" ".*" "^a"`))
		made, _ := w.broker.User(name)
		Expect(made.Tags).To(BeEmpty())
		Eventually(eventsOf(u, "DriftCorrected")).Should(BeNumerically(">=", 1))
	})

	It("grants and revokes permissions and topic permissions with its spec", func() {
		w := newWorld()
		w.broker.AddVhost("two")
		u := w.user("app", func(u *posthornv1.User) {
			u.Spec.TopicPermissions = []posthornv1.UserTopicPermission{{Vhost: "/", Exchange: "one", Write: "w"}, {Vhost: "/", Exchange: "two", Write: "w"}}
		})
		create(u)
		Eventually(ready(u)).Should(HavePrefix("True"))
		name := w.namespace + "-app"
		change(u, func(u *posthornv1.User) {
			u.Spec.Permissions = []posthornv1.UserPermission{{Vhost: "two", Write: "^x"}}
			u.Spec.TopicPermissions = u.Spec.TopicPermissions[:1]
			u.Spec.Limits.Connections = 3
		})
		Eventually(permission(w, "two", name)).Should(Equal(`"" "^x" ""`))
		Eventually(ready(u)).Should(HavePrefix("True"))
		Expect(permission(w, "/", name)()).To(Equal("none"))
		_, one := w.broker.TopicPermission("/", name, "one")
		_, two := w.broker.TopicPermission("/", name, "two")
		Expect(one).To(BeTrue())
		Expect(two).To(BeFalse())
		Expect(w.broker.Limit(name, "max-connections")).To(BeEquivalentTo(3))
		change(u, func(u *posthornv1.User) { u.Spec.Limits.Connections = 0 })
		Eventually(func() int64 { return w.broker.Limit(name, "max-connections") }).Should(BeZero())
	})

	It("reports set credentials and refused permissions separately", func() {
		w := newWorld()
		u := w.user("app", func(u *posthornv1.User) {
			u.Spec.Permissions = []posthornv1.UserPermission{{Vhost: "missing", Read: ".*"}}
		})
		create(u)
		Eventually(ready(u)).Should(And(HavePrefix("False BrokerRefused"), ContainSubstring("vhost_or_user_not_found")))
		Expect(conditionOf(u, posthornv1.ConditionCredentialsSynced)()).To(HavePrefix("True"))
		Expect(conditionOf(u, posthornv1.ConditionPermissionsSynced)()).To(HavePrefix("False"))
	})

	It("adopts an existing user only with the policy Takeover", func() {
		w := newWorld()
		w.broker.SetUser("boss", "hers", "administrator")
		u := w.user("app", func(u *posthornv1.User) { u.Spec.Username = "boss" })
		create(u)
		Eventually(ready(u)).Should(HavePrefix("False Conflict"))
		Expect(w.broker.Accepts("boss", "hers")).To(BeTrue())
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "app-binding"}}
		Expect(gone(secret)()).To(BeTrue(), "no Secret with a password that does not work")
		change(u, func(u *posthornv1.User) { u.Spec.Adoption = posthornv1.AdoptTakeover })
		Eventually(ready(u)).Should(HavePrefix("True"))
		Expect(w.broker.Accepts("boss", "hers")).To(BeFalse())
	})

	It("has no password when it logs in with a certificate", func() {
		w := newWorld()
		u := w.user("app", func(u *posthornv1.User) {
			u.Spec.Credentials = posthornv1.CredentialsSpec{Certificate: &posthornv1.CertificateCredentials{CommonName: "app.example.test"}}
		})
		create(u)
		Eventually(ready(u)).Should(HavePrefix("True"))
		Expect(u.Status.Username).To(Equal("app.example.test"))
		made, found := w.broker.User("app.example.test")
		Expect(found).To(BeTrue())
		Expect(made.PasswordHash).To(BeEmpty())
		Expect(w.binding("app").Data).NotTo(Or(HaveKey("password"), HaveKey("uri")))
		w.broker.SetUser("app.example.test", "backdoor")
		Eventually(func() bool { return w.broker.Accepts("app.example.test", "backdoor") }).Should(BeFalse())
	})

	It("keeps a Secret that it does not own", func() {
		w := newWorld()
		foreign := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "app-binding"}, Data: map[string][]byte{"password": []byte("mine")}}
		create(foreign)
		u := w.user("app")
		create(u)
		Eventually(ready(u)).Should(And(HavePrefix("False Conflict"), ContainSubstring("Secret app-binding")))
		Expect(k8s.Get(ctx, client.ObjectKeyFromObject(foreign), foreign)).To(Succeed())
		Expect(foreign.Data).To(HaveLen(1))
		_, found := w.broker.User(w.namespace + "-app")
		Expect(found).To(BeFalse())
	})

	It("of a tenant loses access when its namespace loses the label, and gets it back", func() {
		w := newWorld(open)
		ns := newNamespace(map[string]string{"messaging": "yes"})
		own := "t-" + ns
		w.broker.AddVhost(own)
		u := w.user("app", func(u *posthornv1.User) {
			u.Namespace, u.Spec.Permissions = ns, []posthornv1.UserPermission{{Vhost: own, Write: ".*", Read: ".*"}}
		})
		create(u)
		Eventually(ready(u)).Should(HavePrefix("True"))
		name := ns + "-app"
		label := func(value string) {
			namespace := namespaceObject(ns)
			change(namespace, func(n *corev1.Namespace) { n.Labels["messaging"] = value })
		}
		label("no")
		Eventually(ready(u)).Should(HavePrefix("False NotAllowed"))
		Eventually(permission(w, own, name)).Should(Equal("none"))
		found, _ := w.broker.User(name)
		Expect(found.PasswordHash).To(BeEmpty())
		Expect(w.broker.Calls("/api/connections/username/"+name, http.MethodDelete)).NotTo(BeEmpty())
		Expect(conditionOf(u, posthornv1.ConditionPermissionsSynced)()).To(HavePrefix("False"))
		label("yes")
		Eventually(ready(u)).Should(HavePrefix("True"))
		Expect(permission(w, own, name)()).To(Equal(`"" ".*" ".*"`))
		secret := &corev1.Secret{}
		Expect(k8s.Get(ctx, client.ObjectKey{Namespace: ns, Name: "app-binding"}, secret)).To(Succeed())
		Expect(w.broker.Accepts(name, string(secret.Data["password"]))).To(BeTrue())
	})

	It("records an Event about a binding Secret that it restored or repaired", func() {
		w := newWorld()
		u := w.user("app")
		create(u)
		Eventually(ready(u)).Should(HavePrefix("True"))
		Expect(eventsOf(u, "BindingRestored")()).To(BeZero())
		secret := w.binding("app")
		Expect(k8s.Delete(ctx, secret)).To(Succeed())
		Eventually(eventsOf(u, "BindingRestored")).Should(Equal(1))
		restored := w.binding("app")
		Expect(restored.UID).NotTo(Equal(secret.UID))
		Eventually(func() bool { return w.broker.Accepts(w.namespace+"-app", string(restored.Data["password"])) }).Should(BeTrue())
		Expect(eventsOf(u, "BindingUpdated")()).To(BeZero())
		change(restored, func(s *corev1.Secret) { s.Data["host"] = []byte("elsewhere.test") })
		Eventually(eventsOf(u, "BindingUpdated")).Should(Equal(1))
		Expect(string(w.binding("app").Data["host"])).To(Equal("c." + w.namespace + ".svc"))
		Consistently(eventsOf(u, "BindingUpdated")).Should(Equal(1))
	})

	It("of a tenant cannot have higher limits than the cluster's owner allows", func() {
		w := newWorld(open, func(c *posthornv1.BrokerCluster) {
			c.Spec.Tenancy.UserLimits = &posthornv1.UserLimits{Connections: 5, Channels: 50}
		})
		ns := newNamespace(map[string]string{"messaging": "yes"})
		u := w.user("app", func(u *posthornv1.User) {
			u.Namespace, u.Spec.Permissions = ns, nil
			u.Spec.Limits = posthornv1.UserLimits{Connections: 1000, Channels: 20}
		})
		create(u)
		Eventually(ready(u)).Should(HavePrefix("True"))
		name := ns + "-app"
		limits := func() string {
			return fmt.Sprint(w.broker.Limit(name, "max-connections"), w.broker.Limit(name, "max-channels"))
		}
		Expect(limits()).To(Equal("5 20"))
		Expect(*u.Status.Limits).To(Equal(posthornv1.UserLimits{Connections: 5, Channels: 20}))
		Eventually(conditionOf(u, posthornv1.ConditionLimitsCapped)).Should(Equal(
			"True TenancyUserLimits: 5 of 1000 connections: spec.tenancy.userLimits of BrokerCluster " + w.namespace + "/c is lower than spec.limits, and in force"))
		change(u, func(u *posthornv1.User) { u.Spec.Limits = posthornv1.UserLimits{} })
		Eventually(limits).Should(Equal("5 50"))
		Eventually(conditionOf(u, posthornv1.ConditionLimitsCapped)).Should(HavePrefix("False AsSpecified"))
		w.changeCluster(func(c *posthornv1.BrokerCluster) { c.Spec.Tenancy.UserLimits.Connections = 2 })
		Eventually(limits).Should(Equal("2 50"))
	})
})
