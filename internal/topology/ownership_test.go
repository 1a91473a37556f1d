// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
)

func queueAt(name string, second int64, claim string) *posthornv1.Queue {
	q := &posthornv1.Queue{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, CreationTimestamp: metav1.NewTime(time.Unix(second, 0))}}
	q.Status.Claim = claim
	return q
}

func TestRivalIsTheOwnerOrTheOlderResource(t *testing.T) {
	cases := []struct {
		name        string
		self, other *posthornv1.Queue
		loses       bool
	}{
		{"older wins", queueAt("b", 1, ""), queueAt("a", 2, ""), false},
		{"younger loses", queueAt("a", 2, ""), queueAt("b", 1, ""), true},
		{"same second: by name", queueAt("b", 1, ""), queueAt("a", 1, ""), true},
		{"same second: owner keeps it", queueAt("b", 1, "x"), queueAt("a", 1, ""), false},
		{"owner wins over older", queueAt("a", 1, ""), queueAt("b", 2, "x"), true},
		{"both own: older wins", queueAt("a", 2, "x"), queueAt("b", 1, "x"), true},
		{"a claim on something else does not count", queueAt("a", 1, ""), queueAt("b", 2, "y"), false},
	}
	for _, c := range cases {
		if _, loses := rival(c.self, "x", []*posthornv1.Queue{c.other}); loses != c.loses {
			t.Errorf("%s: loses %v", c.name, loses)
		}
		if _, loses := rival(c.other, "x", []*posthornv1.Queue{c.self}); loses == c.loses {
			t.Errorf("%s: not decided the same way from the other side", c.name)
		}
	}
}

func TestMayAdoptFollowsItsTable(t *testing.T) {
	same := func() (Difference, error) { return Difference{}, nil }
	differs := func() (Difference, error) { return Difference{Mutable: []string{"a"}}, nil }
	cases := []struct {
		policy posthornv1.AdoptionPolicy
		diff   func() (Difference, error)
		home   bool
		want   string
	}{
		{posthornv1.AdoptNever, same, true, ReasonConflict},
		{"", same, true, ReasonConflict},
		{posthornv1.AdoptIfMatching, same, false, ""},
		{posthornv1.AdoptIfMatching, differs, true, ReasonConflict},
		{posthornv1.AdoptTakeover, differs, true, ""},
		{posthornv1.AdoptTakeover, same, false, ReasonNotAllowed},
	}
	for _, c := range cases {
		err := mayAdopt(c.policy, c.home, c.diff)
		var refusal *Refusal
		got := ""
		if errors.As(err, &refusal) {
			got = refusal.Reason
		}
		if got != c.want || (err == nil) != (c.want == "") {
			t.Errorf("%s home=%v: %v, want %q", c.policy, c.home, err, c.want)
		}
	}
}

func TestIdentityIsUnambiguous(t *testing.T) {
	seen := map[string][]string{}
	for _, parts := range [][]string{{"/", "a"}, {"", "/a"}, {"/a", ""}, {"a", "b/c"}, {"a/b", "c"}, {"a", "b", "c"}, {"%2F", "a"}} {
		id := Identity(parts...)
		if other, taken := seen[id]; taken {
			t.Errorf("%q and %q are both %q", parts, other, id)
		}
		seen[id] = parts
	}
}

func TestTenantMayUseOnlyVhostsOfItsNamespace(t *testing.T) {
	tenant := Tenant{Namespace: "a", VhostPrefix: "t-"}
	for vhost, may := range map[string]bool{"t-a": true, "t-a.x": true, "t-a-b": false, "t-ab": false, "a": false, "/": false, "": false, "t-": false} {
		if tenant.MayUseVhost(vhost) != may {
			t.Errorf("%q: %v", vhost, !may)
		}
	}
	for username, may := range map[string]bool{
		"a-u": true, "a-b-u": true, "a-u@x:y": true,
		"a": false, "": false, "ab-u": false, "root": false, "-a-u": false, "a.u": false,
	} {
		if tenant.MayNameUser(username) != may {
			t.Errorf("%q: %v", username, !may)
		}
	}
	if home := (Tenant{Home: true, Namespace: "a"}); !home.MayUseVhost("/") || !home.MayNameUser("root") {
		t.Error("the cluster's own namespace is held back")
	}
}

// TestNoTwoNamespacesNameOneUser tries all short names, because one namespace can be a prefix of another.
func TestNoTwoNamespacesNameOneUser(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	open := map[string]string{"messaging": "yes"}
	namespaces := map[string]map[string]string{"a": open, "b": open, "a-a": open, "a-b": nil, "b-a": open, "a-a-a": open, "ab": open, "a--b": open}
	build := fake.NewClientBuilder().WithScheme(scheme)
	for name, labels := range namespaces {
		build.WithObjects(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}})
	}
	live := build.Build()
	cluster := &posthornv1.BrokerCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "b-b", Name: "c"}}
	cluster.Spec.Tenancy = &posthornv1.TenancySpec{AllowedNamespaces: &metav1.LabelSelector{MatchLabels: open}}
	has := map[string]string{}
	var try func(name string)
	try = func(name string) {
		var may []string
		for namespace := range namespaces {
			longer, err := nearer(context.Background(), live, cluster, namespace, name)
			if err != nil {
				t.Fatal(err)
			}
			if (Tenant{Namespace: namespace, Nearer: longer}).MayNameUser(name) && namespaces[namespace] != nil {
				may = append(may, namespace)
				has[name] = namespace
			}
		}
		if len(may) > 1 {
			t.Errorf("%q is open to %v", name, may)
		}
		if len(name) == 6 {
			return
		}
		for _, next := range []string{"a", "b", "-", "."} {
			try(name + next)
		}
	}
	try("")
	for name, namespace := range map[string]string{
		"a-x": "", "a-a": "a", "a-a-a": "a-a", "a-a-a-": "a-a-a", "a-b-a": "a", "a--b-a": "a--b", "a--a": "a", "b-b-a": "", "b-a-a": "b-a", "ab-a": "ab", "ab.a": "",
	} {
		if has[name] != namespace {
			t.Errorf("%q belongs to %q", name, has[name])
		}
	}
}

func TestClassifyNamesReasonAndRetry(t *testing.T) {
	cases := map[string]struct {
		err  error
		want class
	}{
		"refusal":      {Refuse("R", "no"), class{"R", true, true}},
		"pending":      {Wait("P", "later"), class{"P", false, true}},
		"bad request":  {&broker.APIError{Status: 400}, class{ReasonBrokerRefused, true, true}},
		"unauthorized": {&broker.APIError{Status: 401}, class{ReasonCredentialsRefused, false, false}},
		"reserved": {
			&broker.APIError{Status: 401, Code: "not_authorised", Reason: "exchange name 'amq.x' contains reserved prefix 'amq.*'"},
			class{ReasonBrokerRefused, true, true},
		},
		"too many":     {&broker.APIError{Status: 429}, class{ReasonBrokerUnreachable, false, false}},
		"server error": {&broker.APIError{Status: 503}, class{ReasonBrokerUnreachable, false, false}},
		"network":      {errors.New("connection refused"), class{ReasonBrokerUnreachable, false, false}},
	}
	for name, c := range cases {
		if got := classify(c.err); got != c.want {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestDifferentKeysAreSorted(t *testing.T) {
	got := DifferentKeys("d", map[string]any{"same": int32(1), "changed": "a", "new": true, "deep": []any{1}}, map[string]any{"same": 1.0, "changed": "b", "old": 1, "deep": []any{1.0}})
	if len(got) != 3 || got[0] != "d.changed" || got[1] != "d.new" || got[2] != "d.old" {
		t.Error(got)
	}
}

func TestJitterStaysWithinThePeriod(t *testing.T) {
	for i := 0; i < 1000; i++ {
		if got := jitter(time.Minute); got > time.Minute || got < 48*time.Second {
			t.Fatal(got)
		}
	}
}
