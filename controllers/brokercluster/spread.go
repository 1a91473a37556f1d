// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"fmt"
	"sort"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

// sharedMachines lists the machines that run more than one of the pods, each with its pods.
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

// setSpread warns when the loss of one machine would stop more than one node.
func (out *decided) setSpread(in *inputs, seen *observed) {
	if seen.members == nil {
		return
	}
	shared := sharedMachines(seen.members)
	if len(shared) == 0 {
		out.setCondition(in, posthornv1.ConditionSpread, metav1.ConditionTrue, "OneNodeAMachine", "every node runs on a machine of its own")
		return
	}
	message := "the loss of one machine stops several nodes: " + strings.Join(shared, ", ")
	if meta.IsStatusConditionTrue(in.cluster.Status.Conditions, posthornv1.ConditionSpread) {
		out.warnOfChange("MachineShared", "Observe", "%s", message)
	}
	out.setCondition(in, posthornv1.ConditionSpread, metav1.ConditionFalse, "MachineShared", message)
}
