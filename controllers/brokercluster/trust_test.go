// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/connect"
)

func TestDecideTrust(t *testing.T) {
	now := time.Unix(1_000_000, 0).UTC()
	trust := func(secret, roots string, superseded time.Time) connect.Trust {
		return connect.Trust{Secret: secret, Name: "c.mq.svc", Roots: roots, Superseded: superseded}
	}
	never, lately, long := time.Time{}, now.Add(-bearWith), now.Add(-bearWith-time.Second)
	list := func(trusts ...connect.Trust) []connect.Trust { return trusts }
	cases := map[string]struct {
		noted, current []connect.Trust
		mounted        []string
		want           []connect.Trust
	}{
		"the first":                          {nil, list(trust("a", "1", never)), []string{"a"}, list(trust("a", "1", never))},
		"nothing new":                        {list(trust("a", "1", never)), list(trust("a", "1", never)), []string{"a"}, list(trust("a", "1", never))},
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

// podOf a cluster, as it is made for a spec.
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

func TestHowAPodIsAsked(t *testing.T) {
	cases := map[string]struct {
		tls    *posthornv1.TLSSpec
		reach  reach
		secret string
	}{
		"without TLS": {nil, reach{plain: true}, ""},
		"with TLS":    {&posthornv1.TLSSpec{}, reach{true, true}, "c-tls"},
		"only TLS":    {&posthornv1.TLSSpec{SecretName: "mine", DisablePlaintext: true}, reach{secure: true}, "mine"},
	}
	for name, c := range cases {
		pod := podOf(t, true, c.tls)
		if got := reachOf(pod); got != c.reach {
			t.Errorf("%s: %v", name, got)
		}
		if got := mountedSecret(pod); got != c.secret {
			t.Errorf("%s: mounts %q", name, got)
		}
		broker := pod.Spec.Containers[0]
		for _, probe := range []*corev1.Probe{broker.StartupProbe, broker.LivenessProbe, broker.ReadinessProbe} {
			// A port of its own, which clients of the HTTP API cannot fill up.
			if probe.HTTPGet.Scheme != corev1.URISchemeHTTP || probe.HTTPGet.Port.StrVal != probesPort || !hasPort(broker.Ports, probesPort) {
				t.Errorf("%s: probe %v", name, probe.HTTPGet)
			}
		}
	}
}

func hasPort(ports []corev1.ContainerPort, name string) bool {
	return slices.ContainsFunc(ports, func(p corev1.ContainerPort) bool { return p.Name == name })
}

func TestServiceScheme(t *testing.T) {
	tls := &posthornv1.TLSSpec{}
	plain, secure := podOf(t, true, nil), podOf(t, true, tls)
	plainAway, secureAway := podOf(t, false, nil), podOf(t, false, tls)
	going := podOf(t, true, tls)
	going.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	cases := map[string]struct {
		pods   []*corev1.Pod
		wanted bool
		want   bool
	}{
		"no pod, none wanted":               {nil, false, false},
		"no pod, wanted":                    {nil, true, true},
		"none ready, TLS wanted":            {[]*corev1.Pod{plainAway}, true, false},
		"none ready, one has TLS":           {[]*corev1.Pod{plainAway, secureAway}, false, true},
		"a roll that has begun":             {[]*corev1.Pod{plain, plain, secureAway}, true, false},
		"a roll that has one ready":         {[]*corev1.Pod{plain, plain, secure}, true, true},
		"a roll away from TLS":              {[]*corev1.Pod{plain, plain, secure}, false, true},
		"a roll away from TLS, nearly over": {[]*corev1.Pod{plain, plain, going}, false, false},
		"all have TLS":                      {[]*corev1.Pod{secure, secureAway}, true, true},
		"none has TLS":                      {[]*corev1.Pod{plain, plainAway}, true, false},
	}
	for name, c := range cases {
		pods := map[string]*corev1.Pod{}
		for i, pod := range c.pods {
			pods[string(rune('a'+i))] = pod
		}
		if got := serviceScheme(pods, c.wanted); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
