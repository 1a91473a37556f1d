// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package user

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/topology"
)

func TestPermissionIsSetByTheOlderObject(t *testing.T) {
	at := func(name string, second int64) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "n", Name: name, CreationTimestamp: metav1.NewTime(time.Unix(second, 0))}
	}
	user := &posthornv1.User{ObjectMeta: at("app", 5)}
	for name, c := range map[string]struct {
		permission metav1.ObjectMeta
		state      topology.GrantState
		both, set  bool
	}{
		"owned, and not listed by the User":       {at("p", 9), topology.GrantOwned, false, true},
		"not owned, and not listed by the User":   {at("p", 1), topology.GrantAllowed, false, false},
		"refused, and not listed by the User":     {at("p", 1), topology.GrantRefused, false, false},
		"older":                                   {at("p", 1), topology.GrantAllowed, true, true},
		"older, and owned":                        {at("p", 1), topology.GrantOwned, true, true},
		"older, and refused":                      {at("p", 1), topology.GrantRefused, true, false},
		"younger":                                 {at("p", 9), topology.GrantAllowed, true, false},
		"younger, and owned before the User's":    {at("p", 9), topology.GrantOwned, true, false},
		"of the same second, and an earlier name": {at("a", 5), topology.GrantAllowed, true, true},
		"of the same second, and a later name":    {at("z", 5), topology.GrantAllowed, true, false},
		"of the same second and name":             {at("app", 5), topology.GrantAllowed, true, false},
	} {
		p := &posthornv1.Permission{ObjectMeta: c.permission}
		if got := isSetBy(p, user, c.state, c.both); got != c.set {
			t.Errorf("%s: %v", name, got)
		}
	}
}
