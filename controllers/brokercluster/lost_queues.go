// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

// setQueuesLost reports queues whose only copy was on a lost disk. They wait for a person: deleting one lets it be declared
// anew.
func (s *scope) setQueuesLost() {
	conditions := &s.cluster.Status.Conditions
	if !s.lostKnown {
		return
	}
	if len(s.lost) == 0 {
		meta.RemoveStatusCondition(conditions, posthornv1.ConditionQueuesLost)
		return
	}
	var lost []string
	for _, queue := range s.lost {
		lost = append(lost, fmt.Sprintf("%s (was on %s)", queueName(queue.Vhost, queue.Name), queue.Node))
	}
	message := fmt.Sprintf("the only copy of %d queues was on a lost disk: %s; delete them to declare them anew", len(s.lost), strings.Join(firstFew(lost), ", "))
	before := meta.FindStatusCondition(*conditions, posthornv1.ConditionQueuesLost)
	if before == nil || before.Message != message {
		s.event(corev1.EventTypeWarning, "QueuesLost", "Observe", "%s", message)
	}
	s.set(posthornv1.ConditionQueuesLost, metav1.ConditionTrue, "LastCopyLost", message)
}
