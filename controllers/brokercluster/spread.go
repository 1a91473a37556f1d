// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"fmt"
	"sort"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

// sharedMachines lists the machines on which more than one of the pods runs, each with its pods.
func sharedMachines(members []memberView) []string {
	pods := map[string][]string{}
	for i := range members {
		if m := &members[i]; m.Presence == podPresent && m.pod.Spec.NodeName != "" {
			pods[m.pod.Spec.NodeName] = append(pods[m.pod.Spec.NodeName], m.Name)
		}
	}
	var shared []string
	for machine, names := range pods {
		if len(names) > 1 {
			shared = append(shared, fmt.Sprintf("%s on machine %s", strings.Join(names, " and "), machine))
		}
	}
	sort.Strings(shared)
	return shared
}

// setSpread warns when the loss of one machine would take more than one node.
func (s *scope) setSpread() {
	if s.members == nil {
		return
	}
	shared := sharedMachines(s.members)
	if len(shared) == 0 {
		s.set(posthornv1.ConditionSpread, metav1.ConditionTrue, "OneNodeAMachine", "no two nodes run on one machine")
		return
	}
	message := "one machine's loss takes several nodes: " + strings.Join(shared, ", ")
	if meta.IsStatusConditionTrue(s.cluster.Status.Conditions, posthornv1.ConditionSpread) {
		s.event(corev1.EventTypeWarning, "MachineShared", "Observe", "%s", message)
	}
	s.set(posthornv1.ConditionSpread, metav1.ConditionFalse, "MachineShared", message)
}
