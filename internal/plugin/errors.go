// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
)

// right is a right to do something with objects of Kubernetes.
type right struct {
	verb string
	// resource, with its group after a dot and its subresource after a slash.
	resource string
	// name of the object; empty for all.
	name string
}

// check returns the command that checks the right.
func (r right) check(namespace string) string {
	resource, subresource, _ := strings.Cut(r.resource, "/")
	if r.name != "" {
		resource += "/" + r.name
	}
	command := fmt.Sprintf("kubectl auth can-i %s %s --namespace %s", r.verb, resource, namespace)
	if subresource != "" {
		command += " --subresource=" + subresource
	}
	return command
}

// explain adds the action that failed to an error of the API server, and the remedy where there is one.
func (s *Session) explain(err error, action string, needed right) error {
	switch {
	case isForbidden(err):
		return fmt.Errorf("%s in namespace %s: you lack the right to %s %s; ask an administrator for it, and check it with: %s",
			action, s.Namespace, needed.verb, needed.resource, needed.check(s.Namespace))
	case meta.IsNoMatchError(err):
		return fmt.Errorf("%s: this Kubernetes cluster does not know the kind BrokerCluster; install the operator, or choose another cluster with --context", action)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("%s: the API server refused your credentials; log in again, or choose another context with --context: %w", action, err)
	}
	return fmt.Errorf("%s in namespace %s: %w", action, s.Namespace, err)
}

// isForbidden reports whether the API server refused a request for lack of a right. Connections to pods lose the type of
// the error.
func isForbidden(err error) bool {
	return apierrors.IsForbidden(err) || strings.Contains(err.Error(), " is forbidden: User ")
}
