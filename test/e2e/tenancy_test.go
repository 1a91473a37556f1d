// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/names"
)

const (
	// messaging is the label of namespaces that may use the cluster.
	messaging = "messaging"
	// Two teams, each with a namespace and a vhost of that name.
	team, otherTeam = "e2e-team-a", "e2e-team-b"
	// shortTeam is a prefix of their names.
	shortTeam = "e2e-team"
	// developer is a service account of a team that may edit the objects in its namespace.
	developer = "developer"
)

// teamOwn are a team's own objects, of every kind that a team may have.
const teamOwn = `
apiVersion: posthorn.io/v1alpha1
kind: Vhost
metadata: {name: own}
spec: {clusterRef: {name: c, namespace: e2e}, name: TEAM, limits: {maxQueues: 100}, reclaimPolicy: DeleteIfEmpty}
---
apiVersion: posthorn.io/v1alpha1
kind: User
metadata: {name: app}
spec:
  clusterRef: {name: c, namespace: e2e}
  credentials: {generate: {}}
---
apiVersion: posthorn.io/v1alpha1
kind: Permission
metadata: {name: app}
spec: {clusterRef: {name: c, namespace: e2e}, vhost: TEAM, userRef: {name: app}, configure: "", write: ".*", read: ".*"}
---
apiVersion: posthorn.io/v1alpha1
kind: TopicPermission
metadata: {name: app}
spec: {clusterRef: {name: c, namespace: e2e}, vhost: TEAM, userRef: {name: app}, exchange: events, write: ".*", read: ".*"}
---
apiVersion: posthorn.io/v1alpha1
kind: Exchange
metadata: {name: events}
spec: {clusterRef: {name: c, namespace: e2e}, vhost: TEAM, type: topic, reclaimPolicy: Delete}
---
apiVersion: posthorn.io/v1alpha1
kind: Binding
metadata: {name: orders}
spec: {clusterRef: {name: c, namespace: e2e}, vhost: TEAM, source: events, destination: orders, routingKey: order.#}
---
apiVersion: posthorn.io/v1alpha1
kind: Queue
metadata: {name: orders}
spec: {clusterRef: {name: c, namespace: e2e}, vhost: TEAM, reclaimPolicy: Delete}
`

// teamTries are objects that name objects of another team, or of the owner.
var teamTries = map[string]client.Object{
	"hers":       &posthornv1.User{Spec: posthornv1.UserSpec{Username: team + "-app"}},
	"vhost":      &posthornv1.User{Spec: posthornv1.UserSpec{Permissions: []posthornv1.UserPermission{{Vhost: team, Read: ".*"}}}},
	"her-queue":  &posthornv1.Queue{Spec: posthornv1.QueueSpec{Vhost: team, Name: "orders", Adoption: posthornv1.AdoptTakeover}},
	"her-vhost":  &posthornv1.Vhost{Spec: posthornv1.VhostSpec{Name: team, Adoption: posthornv1.AdoptTakeover, ReclaimPolicy: "Delete"}},
	"permission": &posthornv1.Permission{Spec: posthornv1.PermissionSpec{Vhost: team, User: otherTeam + "-app", Read: ".*"}},
	"her-policy": &posthornv1.Policy{Spec: posthornv1.PolicySpec{Vhost: team, Pattern: ".*"}},
	"root-queue": &posthornv1.Queue{Spec: posthornv1.QueueSpec{Vhost: "/", Name: mainQueue}},
	"boss":       &posthornv1.User{Spec: posthornv1.UserSpec{Tags: []posthornv1.UserTag{"administrator"}}},
	"spy":        &posthornv1.User{Spec: posthornv1.UserSpec{Tags: []posthornv1.UserTag{"monitoring"}}},
	"owner":      &posthornv1.User{Spec: posthornv1.UserSpec{Username: "admin"}},
}

// keepTeamsApart lets one team try to reach another's objects, with kubectl and the permissions of an editor of its
// own namespace.
func keepTeamsApart() {
	pods, err := brokerPods()
	Expect(err).NotTo(HaveOccurred())
	owner, err := ask(&pods[0])
	Expect(err).NotTo(HaveOccurred())
	for _, name := range []string{team, otherTeam} {
		makeTeam(name)
		said, err := as(name, strings.ReplaceAll(teamOwn, "TEAM", name), "apply", "-f", "-")
		Expect(err).NotTo(HaveOccurred(), said)
	}
	for _, name := range []string{team, otherTeam} {
		in := func(object string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: name, Name: object} }
		for _, object := range []client.Object{
			&posthornv1.Vhost{ObjectMeta: in("own")}, &posthornv1.User{ObjectMeta: in("app")}, &posthornv1.Permission{ObjectMeta: in("app")},
			&posthornv1.TopicPermission{ObjectMeta: in("app")}, &posthornv1.Exchange{ObjectMeta: in("events")},
			&posthornv1.Queue{ObjectMeta: in("orders")}, &posthornv1.Binding{ObjectMeta: in("orders")},
		} {
			Eventually(readiness(object)).Should(HavePrefix("True "), "%T", object)
		}
	}
	before := hers(owner)
	refuseLongerNames()
	refuseInOtherNamespaces()
	refuseInOwnNamespace()
	Expect(hers(owner)).To(Equal(before))
	for _, name := range []string{"vhost", "boss", "spy"} {
		_, err := owner.GetUser(ctx, otherTeam+"-"+name)
		Expect(broker.IsNotFound(err)).To(BeTrue(), "%s: %v", name, err)
	}

	// Their own credentials give no access elsewhere.
	var binding corev1.Secret
	Expect(k8s.Get(ctx, client.ObjectKey{Namespace: otherTeam, Name: "app-binding"}, &binding)).To(Succeed())
	secret := &corev1.Secret{ObjectMeta: meta("team-b"), Type: binding.Type, Data: binding.Data}
	secret.Data["vhost"] = []byte(team)
	Expect(k8s.Create(ctx, secret)).To(Succeed())
	DeferCleanup(func() { Expect(k8s.Delete(ctx, secret)).To(Succeed()) })
	code, said := start("team-b", work{command: "run", queue: "orders", messages: 10, rate: 10, pubs: 1, secret: secret.Name}).ended()
	Expect(code).To(Equal(exitRefused), said)
	Expect(said).To(ContainSubstring(team))
}

// makeTeam creates a team's namespace, and an editor of it.
func makeTeam(name string) {
	GinkgoHelper()
	makeNamespace(name, messaging)
	DeferCleanup(func() {
		Expect(k8s.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})).To(Succeed())
	})
	inTeam := metav1.ObjectMeta{Namespace: name, Name: developer}
	Expect(k8s.Create(ctx, &corev1.ServiceAccount{ObjectMeta: inTeam})).To(Succeed())
	Expect(k8s.Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: inTeam, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: name, Name: developer}},
	})).To(Succeed())
	Eventually(func() (string, error) { return as(name, "", "auth", "can-i", "create", "queues.posthorn.io") }).Should(Equal("yes\n"))
}

// as runs kubectl in a team's namespace as its developer.
func as(name, input string, args ...string) (string, error) {
	user := fmt.Sprintf("--as=system:serviceaccount:%s:%s", name, developer)
	command := exec.Command(filepath.Join(root, "hack", "kubectl"), append([]string{user, "-n", name}, args...)...)
	command.Stdin = strings.NewReader(input)
	said, err := command.CombinedOutput()
	return string(said), err
}

// hers returns the first team's objects in the broker.
func hers(owner broker.Client) []any {
	GinkgoHelper()
	user, err := owner.GetUser(ctx, team+"-app")
	Expect(err).NotTo(HaveOccurred())
	permissions, err := owner.ListPermissions(ctx, team+"-app")
	Expect(err).NotTo(HaveOccurred())
	queue, err := owner.GetQueue(ctx, team, "orders")
	Expect(err).NotTo(HaveOccurred())
	policies, err := owner.ListPolicies(ctx, broker.UserPolicies, team)
	Expect(err).NotTo(HaveOccurred())
	return []any{user, permissions, queue.Type, queue.Arguments, policies}
}

// refuseInOtherNamespaces: the API server refuses access to other teams' objects, Secrets and clusters, and writes to
// any status.
func refuseInOtherNamespaces() {
	GinkgoHelper()
	for _, args := range [][]string{
		{"get", "secret", "app-binding", "-n", team},
		{"get", "secret", names.DefaultUserSecret(clusterName), "-n", namespace},
		{"patch", "user.posthorn.io", "app", "-n", team, "--type=merge", "-p", `{"spec":{"tags":["management"]}}`},
		{"delete", "queue.posthorn.io", "orders", "-n", team, "--wait=false"},
		{"patch", "brokercluster", clusterName, "-n", namespace, "--type=merge", "-p", `{"spec":{"tenancy":null}}`},
		{"patch", "user.posthorn.io", "app", "--subresource=status", "--type=merge", "-p", `{"status":{"username":"` + team + `-app"}}`},
	} {
		said, err := as(otherTeam, "", args...)
		Expect(err).To(HaveOccurred(), "%v: %s", args, said)
		Expect(said).To(ContainSubstring("Forbidden"), "%v", args)
	}
}

// refuseLongerNames: a team whose namespace is a prefix of the others' cannot take their names, and they can still
// use them afterwards.
func refuseLongerNames() {
	GinkgoHelper()
	makeTeam(shortTeam)
	ref := posthornv1.ClusterReference{Name: clusterName, Namespace: namespace}
	user := func(namespace, name, username string) *posthornv1.User {
		u := newUser()
		u.Namespace, u.Name, u.Spec.Username, u.Spec.ClusterRef, u.Spec.Permissions = namespace, name, username, ref, nil
		said, err := as(namespace, manifest(u), "create", "-f", "-")
		Expect(err).NotTo(HaveOccurred(), said)
		return u
	}
	for name, username := range map[string]string{"taken": team + "-app", "later": team + "-later"} {
		Eventually(readiness(user(shortTeam, name, username))).Should(HavePrefix("False NotAllowed: "), username)
	}
	Eventually(readiness(user(shortTeam, "a-later", ""))).Should(HavePrefix("False NotAllowed: "), "it would be called as a team's")
	mine := user(shortTeam, "c-later", "")
	becomesReady(mine)
	Expect(mine.Status.Username).To(Equal(shortTeam + "-c-later"))
	theirs := user(team, "later", "")
	becomesReady(theirs)
	Expect(theirs.Status.Username).To(Equal(team + "-later"))
}

// refuseInOwnNamespace: the operator sends no request to the broker for objects that name another team's.
func refuseInOwnNamespace() {
	GinkgoHelper()
	ref := posthornv1.ClusterReference{Name: clusterName, Namespace: namespace}
	generate := posthornv1.CredentialsSpec{Generate: &posthornv1.GenerateSpec{}}
	for name, object := range teamTries {
		object, is := object.DeepCopyObject().(client.Object)
		Expect(is).To(BeTrue())
		object.SetNamespace(otherTeam)
		object.SetName(name)
		switch o := object.(type) {
		case *posthornv1.User:
			o.Spec.ClusterRef, o.Spec.Credentials = ref, generate
		case *posthornv1.Queue:
			o.Spec.ClusterRef = ref
		case *posthornv1.Vhost:
			o.Spec.ClusterRef = ref
		case *posthornv1.Permission:
			o.Spec.ClusterRef = ref
		case *posthornv1.Policy:
			o.Spec.ClusterRef, o.Spec.Definition = ref, newPolicy().Spec.Definition
		}
		said, err := as(otherTeam, manifest(object), "create", "-f", "-")
		Expect(err).NotTo(HaveOccurred(), said)
		Eventually(readiness(object)).Should(HavePrefix("False NotAllowed: "), name)
	}
}
