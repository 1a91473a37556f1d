// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ensureServiceAccount keeps the account of the pods. It has no permissions and no token.
func (r *reconciliation) ensureServiceAccount(ctx context.Context) error {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: r.in.cluster.Name}}
	return r.ensure(ctx, account, func() error {
		mount := false
		account.AutomountServiceAccountToken = &mount
		return nil
	})
}
