// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestBrokerNameDependsOnNamespaceAndCredentials(t *testing.T) {
	own, other := ClusterReference{Name: "c"}, ClusterReference{Name: "c", Namespace: "mq"}
	certificate := CredentialsSpec{Certificate: &CertificateCredentials{CommonName: "team.lamp"}}
	for name, c := range map[string]struct {
		namespace, name string
		spec            UserSpec
		want            string
	}{
		"beside the cluster":                         {"mq", "app", UserSpec{ClusterRef: own}, "mq-app"},
		"beside the cluster, which is named in full": {"mq", "order-app", UserSpec{ClusterRef: other}, "mq-order-app"},
		"beside the cluster, with dashes":            {"mq", "order-app", UserSpec{ClusterRef: own}, "mq-order-app"},
		"of a tenant":                                {"team", "app", UserSpec{ClusterRef: other}, "team-app"},
		"of a tenant, with a dash":                   {"team", "order-app", UserSpec{ClusterRef: other}, "team-order-app"},
		"of a tenant, with a dot":                    {"team", "order.app", UserSpec{ClusterRef: other}, "team-order.app"},
		"given":                                      {"team", "order-app", UserSpec{ClusterRef: other, Username: "team-app"}, "team-app"},
		"of a certificate":                           {"team", "order-app", UserSpec{ClusterRef: other, Credentials: certificate}, "team.lamp"},
	} {
		user := User{ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: c.name}, Spec: c.spec}
		if got := user.BrokerName(); got != c.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}
