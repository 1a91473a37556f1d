// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/names"
)

// exitRefused is the client's exit code when the broker refuses it for good.
const exitRefused = 3

func refusedWith(err error, words string) {
	GinkgoHelper()
	Expect(apierrors.IsInvalid(err)).To(BeTrue(), "%v", err)
	Expect(err).To(MatchError(ContainSubstring(words)))
}

// skipValidation leaves checks of the API server to the broker.
func skipValidation(object client.Object) {
	object.SetAnnotations(map[string]string{names.AnnotationSkipValidation: "true"})
}

func refuseImpossibleValues() {
	even := newCluster()
	even.Name, even.Spec.Replicas = "even", 2
	refusedWith(k8s.Create(ctx, even), "replicas must be odd")
	small := newCluster()
	small.Name, small.Spec.Storage.Size = "small", resource.MustParse("1Mi")
	refusedWith(k8s.Create(ctx, small), "storage.size must be at least 64Mi")
	taken := newCluster()
	taken.Name, taken.Spec.Config = "taken", map[string]posthornv1.ConfigValue{"cluster.name": "other"}
	refusedWith(k8s.Create(ctx, taken), "set by the operator")
	unknown := newQueue("unknown")
	unknown.Spec.Type = "priority"
	refusedWith(k8s.Create(ctx, unknown), `Unsupported value: "priority"`)
	policy := newPolicy()
	policy.Name, policy.Spec.Pattern = "broken", "^(orders"
	refusedWith(k8s.Create(ctx, policy), "must be a regular expression")
	misspelt := newPolicy()
	misspelt.Name, misspelt.Spec.Definition = "misspelt", map[string]apiextensionsv1.JSON{"max-size": {Raw: []byte("1")}}
	refusedWith(k8s.Create(ctx, misspelt), "the broker knows no key max-size")
	odd := newCluster()
	odd.Name, odd.Spec.Config = "odd", map[string]posthornv1.ConfigValue{unknownSetting: "1"}
	refusedWith(k8s.Create(ctx, odd), "the broker knows no key "+unknownSetting)
	queue := newQueue("argued")
	queue.Spec.Arguments = map[string]apiextensionsv1.JSON{"x-max-length": {Raw: []byte(`"many"`)}}
	refusedWith(k8s.Create(ctx, queue), "x-max-length must be an integer")
	// The status has the broker's own message of the refusal.
	skipValidation(queue)
	Expect(k8s.Create(ctx, queue)).To(Succeed())
	DeferCleanup(func() { Expect(k8s.Delete(ctx, queue)).To(Succeed()) })
	Eventually(readiness(queue)).Should(And(HavePrefix("False BrokerRefused: "), ContainSubstring("x-max-length")))
}

func refuseImmutableChanges() {
	err := changeCluster(func(spec *posthornv1.BrokerClusterSpec) { spec.Storage.Size = resource.MustParse("64Mi") })
	refusedWith(err, "storage.size cannot be lowered")
	err = changeCluster(func(spec *posthornv1.BrokerClusterSpec) {
		spec.Replicas, spec.ScaleDown.Policy = 1, posthornv1.ScaleDownDeny
	})
	refusedWith(err, "replicas cannot be lowered")
	var queue posthornv1.Queue
	Expect(k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: mainQueue}, &queue)).To(Succeed())
	before := queue.DeepCopy()
	queue.Spec.Type = posthornv1.QueueTypeClassic
	refusedWith(k8s.Patch(ctx, &queue, client.MergeFrom(before)), "type is immutable")
}

// newBinding creates a Secret like the application's, with one entry changed.
func newBinding(name, entry, value string) string {
	GinkgoHelper()
	var secret corev1.Secret
	Expect(k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: appUser + "-binding"}, &secret)).To(Succeed())
	other := &corev1.Secret{ObjectMeta: meta(name), Type: secret.Type, Data: secret.Data}
	other.Data[entry] = []byte(value)
	Expect(k8s.Create(ctx, other)).To(Succeed())
	DeferCleanup(func() { Expect(k8s.Delete(ctx, other)).To(Succeed()) })
	return name
}

func refuseWrongPassword() {
	secret := newBinding("wrong-password", "password", "not-the-password")
	code, said := start("wrong-password", work{command: "run", queue: mainQueue, messages: 10, rate: 10, pubs: 1, secret: secret}).ended()
	Expect(code).To(Equal(exitRefused), said)
	Expect(said).To(ContainSubstring("403"))
	// HTTP refuses too.
	pods, err := brokerPods()
	Expect(err).NotTo(HaveOccurred())
	_, err = broker.New(broker.Access{
		URL: "http://" + pods[0].Status.PodIP + ":15672", Username: "no-such-user", Password: "x",
	}, podTransport).Overview(ctx)
	Expect(broker.IsUnauthorized(err)).To(BeTrue(), "%v", err)
}

func refuseUnknownVhost() {
	secret := newBinding("unknown-vhost", "vhost", "nowhere")
	code, said := start("unknown-vhost", work{command: "run", queue: mainQueue, messages: 10, rate: 10, secret: secret}).ended()
	Expect(code).To(Equal(exitRefused), said)
	Expect(said).To(And(ContainSubstring("530"), ContainSubstring("nowhere")))
}

// refuseWithoutPermission: the application's user may not declare a queue.
func refuseWithoutPermission() {
	w := work{command: "run", queue: "own", messages: 10, rate: 10, declare: true}
	code, said := start("declare", w).ended()
	Expect(code).To(Equal(exitRefused), said)
	Expect(said).To(And(ContainSubstring("403"), ContainSubstring("ACCESS_REFUSED")))
	_, err := queueOf("own")
	Expect(broker.IsNotFound(err)).To(BeTrue(), "%v", err)
}

// reportUnknownSetting creates a cluster of one node with an unknown setting, and corrects it.
func reportUnknownSetting() {
	startSingles()
	cluster := singleCluster(oddCluster)
	Eventually(readiness(cluster)).Should(And(HavePrefix("False InvalidConfig"), ContainSubstring(unknownSetting)))
	say("%s", readiness(cluster)())
	Eventually(func() error {
		var now posthornv1.BrokerCluster
		if err := k8s.Get(ctx, client.ObjectKeyFromObject(cluster), &now); err != nil {
			return err
		}
		now.Spec.Config = nil
		return k8s.Update(ctx, &now)
	}).Should(Succeed())
	Eventually(readiness(cluster)).Should(HavePrefix("True "), "mended by the spec alone")
	var secret corev1.Secret
	Expect(k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: names.DefaultUserSecret(oddCluster)}, &secret)).To(Succeed())
	Expect(string(secret.Type)).To(Equal(names.BindingType))
	Expect(secret.Data).To(And(HaveKey("host"), HaveKey("port"), HaveKey("username"), HaveKey("password"), HaveKey("uri")))
}
