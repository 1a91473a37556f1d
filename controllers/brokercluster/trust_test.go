// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"crypto/x509"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/broker/brokertest"
	"posthorn.io/posthorn/internal/connect"
)

func TestDecideTrustFollowsItsTable(t *testing.T) {
	now := time.Unix(1_000_000, 0).UTC()
	trust := func(secret, roots string, superseded time.Time) connect.Trust {
		return connect.Trust{Secret: secret, Name: "c.mq.svc", Roots: roots, Superseded: superseded}
	}
	never, lately, long := time.Time{}, now.Add(-supersededGrace), now.Add(-supersededGrace-time.Second)
	list := func(trusts ...connect.Trust) []connect.Trust { return trusts }
	cases := map[string]struct {
		noted, current []connect.Trust
		mounted        []string
		want           []connect.Trust
	}{
		"the first":                          {nil, list(trust("a", "1", never)), []string{"a"}, list(trust("a", "1", never))},
		"no change":                        {list(trust("a", "1", never)), list(trust("a", "1", never)), []string{"a"}, list(trust("a", "1", never))},
		"renewed":                            {list(trust("a", "1", never)), list(trust("a", "2", never)), []string{"a"}, list(trust("a", "2", never), trust("a", "1", now))},
		"renewed a while ago":                {list(trust("a", "1", lately)), list(trust("a", "2", never)), []string{"a"}, list(trust("a", "2", never), trust("a", "1", lately))},
		"renewed long ago":                   {list(trust("a", "1", long)), list(trust("a", "2", never)), []string{"a"}, list(trust("a", "2", never))},
		"taken back":                         {list(trust("a", "2", never), trust("a", "1", lately)), list(trust("a", "1", never)), []string{"a"}, list(trust("a", "1", never), trust("a", "2", now))},
		"the Secret is gone":                 {list(trust("a", "1", never)), nil, []string{"a"}, list(trust("a", "1", never))},
		"another Secret, not rolled yet":     {list(trust("a", "1", never)), list(trust("b", "2", never), trust("a", "1", never)), []string{"b", "a"}, list(trust("b", "2", never), trust("a", "1", never))},
		"another, and the old one is gone":   {list(trust("a", "1", never)), list(trust("b", "2", never)), []string{"b", "a"}, list(trust("b", "2", never), trust("a", "1", never))},
		"another, rolled":                    {list(trust("b", "2", never), trust("a", "1", never)), list(trust("b", "2", never)), []string{"b"}, list(trust("b", "2", never), trust("a", "1", now))},
		"TLS is over":                        {list(trust("a", "1", long)), nil, nil, nil},
		"more than anybody needs":            {list(trust("a", "1", lately), trust("a", "2", lately), trust("a", "3", lately), trust("a", "4", lately)), list(trust("a", "5", never)), []string{"a"}, list(trust("a", "5", never), trust("a", "1", lately), trust("a", "2", lately), trust("a", "3", lately))},
		"another name, the same certificate": {list(connect.Trust{Secret: "a", Name: "x", Roots: "1"}), list(trust("a", "1", never)), []string{"a"}, list(trust("a", "1", never), connect.Trust{Secret: "a", Name: "x", Roots: "1", Superseded: now})},
	}
	for name, c := range cases {
		if got := decideTrust(c.noted, c.current, c.mounted, now); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// podOf returns a pod that was created for a spec.
func podOf(t *testing.T, ready bool, tls *posthornv1.TLSSpec) *corev1.Pod {
	t.Helper()
	cluster := testCluster()
	cluster.Spec.TLS = tls
	template, err := buildTemplate(cluster, inputsOf(cluster, "i", nil))
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{Spec: template.Spec}
	if ready {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	return pod
}

func TestPortsOfAPodDecideItsListener(t *testing.T) {
	cases := map[string]struct {
		tls     *posthornv1.TLSSpec
		portSet portSet
		secret  string
	}{
		"without TLS": {nil, portSet{plain: true}, ""},
		"with TLS":    {&posthornv1.TLSSpec{}, portSet{true, true}, "c-tls"},
		"only TLS":    {&posthornv1.TLSSpec{SecretName: "mine", DisablePlaintext: true}, portSet{secure: true}, "mine"},
	}
	for name, c := range cases {
		pod := podOf(t, true, c.tls)
		if got := managementPortsOf(pod); got != c.portSet {
			t.Errorf("%s: %v", name, got)
		}
		if got := mountedSecret(pod); got != c.secret {
			t.Errorf("%s: mounts %q", name, got)
		}
		broker := pod.Spec.Containers[0]
		for _, probe := range []*corev1.Probe{broker.StartupProbe, broker.LivenessProbe, broker.ReadinessProbe} {
			// The probes have a port of their own, which clients of the HTTP API cannot fill.
			if probe.HTTPGet.Scheme != corev1.URISchemeHTTP || probe.HTTPGet.Port.StrVal != probesPort || !hasPort(broker.Ports, probesPort) {
				t.Errorf("%s: probe %v", name, probe.HTTPGet)
			}
		}
	}
}

func hasPort(ports []corev1.ContainerPort, name string) bool {
	return slices.ContainsFunc(ports, func(p corev1.ContainerPort) bool { return p.Name == name })
}

// earlierPodOf returns a pod that was created before the listener for the operator existed.
func earlierPodOf(t *testing.T, ready bool, tls *posthornv1.TLSSpec) *corev1.Pod {
	t.Helper()
	pod := podOf(t, ready, tls)
	broker := &pod.Spec.Containers[0]
	broker.Ports = withoutPort(broker.Ports, operatorPort)
	return pod
}

func TestServiceListenerIsTheBestOfReadyPods(t *testing.T) {
	tls := &posthornv1.TLSSpec{}
	plain, secure, own := earlierPodOf(t, true, nil), earlierPodOf(t, true, tls), podOf(t, true, nil)
	plainAway, secureAway, ownAway := earlierPodOf(t, false, nil), earlierPodOf(t, false, tls), podOf(t, false, tls)
	going := podOf(t, true, tls)
	going.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	cases := map[string]struct {
		pods   []*corev1.Pod
		toCome connect.Listener
		want   connect.Listener
	}{
		"no pod, none to come with TLS":    {nil, connect.Plain, connect.Plain},
		"no pod, a new cluster":            {nil, connect.Operator, connect.Operator},
		"none ready":                       {[]*corev1.Pod{plainAway}, connect.Operator, connect.Plain},
		"none ready, one has TLS":          {[]*corev1.Pod{plainAway, secureAway}, connect.Plain, connect.Secure},
		"none ready, one has ours":         {[]*corev1.Pod{secureAway, ownAway}, connect.Plain, connect.Operator},
		"a roll that has begun":            {[]*corev1.Pod{plain, plain, ownAway}, connect.Operator, connect.Plain},
		"a roll that has one ready":        {[]*corev1.Pod{plain, secure, own}, connect.Operator, connect.Operator},
		"a roll away from it, nearly over": {[]*corev1.Pod{plain, plain, going}, connect.Plain, connect.Plain},
		"all have TLS":                     {[]*corev1.Pod{secure, secureAway}, connect.Operator, connect.Secure},
		"all have ours":                    {[]*corev1.Pod{own, ownAway}, connect.Operator, connect.Operator},
	}
	for name, c := range cases {
		pods := map[string]*corev1.Pod{}
		for i, pod := range c.pods {
			pods[string(rune('a'+i))] = pod
		}
		if got := serviceListener(pods, c.toCome); got != c.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestNodesAndOperatorHaveSeparateCAs(t *testing.T) {
	own, nodes := operatorCertificate("mq", "c"), internodeCertificate("mq", "c")
	if own.authority == nodes.authority || slices.Contains(own.leaf.Usages, x509.ExtKeyUsageServerAuth) {
		t.Errorf("%+v", own)
	}
	pod := podOf(t, true, &posthornv1.TLSSpec{})
	for _, source := range pod.Spec.Volumes[0].Projected.Sources {
		if source.Secret == nil || source.Secret.Name != own.secret {
			continue
		}
		if len(source.Secret.Items) != 1 || source.Secret.Items[0].Key != caKey {
			t.Errorf("pods are given the operator's key: %v", source.Secret.Items)
		}
		return
	}
	t.Error("pods do not know the operator's authority")
}

func TestIsDefaultUserComparesWithTheSecret(t *testing.T) {
	server := brokertest.Start("admin", "secret")
	t.Cleanup(server.Close)
	user, _ := server.User("admin")
	for name, c := range map[string]struct {
		change   func(*broker.User)
		password string
		want     bool
	}{
		"as it was made":           {func(*broker.User) {}, "secret", true},
		"another password":         {func(*broker.User) {}, "other", false},
		"without a password":       {func(u *broker.User) { u.PasswordHash = "" }, "secret", false},
		"without its tag":          {func(u *broker.User) { u.Tags = broker.Tags{"monitoring"} }, "secret", false},
		"with a tag more":          {func(u *broker.User) { u.Tags = broker.Tags{"administrator", "mine"} }, "secret", true},
		"a hash that nobody knows": {func(u *broker.User) { u.HashingAlgorithm = "unknown" }, "secret", true},
	} {
		changed := user
		c.change(&changed)
		if got := isDefaultUser(changed, c.password); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
