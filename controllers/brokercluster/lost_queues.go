// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

// setQueuesLost reports queues whose only copy was on a lost disk. A person has to delete them before they can be declared
// again.
func (out *decided) setQueuesLost(in *inputs, seen *observed) {
	conditions := &out.status.Conditions
	if !seen.lostKnown {
		return
	}
	if len(seen.lost) == 0 {
		meta.RemoveStatusCondition(conditions, posthornv1.ConditionQueuesLost)
		return
	}
	var lost []string
	for _, queue := range seen.lost {
		lost = append(lost, fmt.Sprintf("%s (was on %s)", queueName(queue.Vhost, queue.Name), queue.Node))
	}
	message := fmt.Sprintf("the only copy of %d queues was on a lost disk: %s; delete them to declare them again", len(seen.lost), strings.Join(firstFew(lost), ", "))
	before := meta.FindStatusCondition(*conditions, posthornv1.ConditionQueuesLost)
	if before == nil || before.Message != message {
		out.warnOfChange("QueuesLost", "Observe", "%s", message)
	}
	out.setCondition(in, posthornv1.ConditionQueuesLost, metav1.ConditionTrue, "LastCopyLost", message)
}
