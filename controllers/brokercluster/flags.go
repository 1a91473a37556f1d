// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sort"
	"strings"

	corev1 "k8s.io/api/core/v1"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
)

// flagPlan is what to do about feature flags, and how they stand.
type flagPlan struct {
	// Enable are the flags to enable.
	Enable []string
	// Disabled are the stable and required flags that are not enabled.
	Disabled []string
	// Waiting are those of them that cannot be enabled yet, though they are to be.
	Waiting []string
	// Enabled is how many are, experimental ones too.
	Enabled int32
}

// decideFlags says which flags to enable. It is asked only when every node runs the same version.
//
//	state          | stability          | policy, exclude                | then
//	enabled        | any                | any                            | counted
//	disabled       | stable or required | EnableStableAfterUpgrade, not excluded | enabled, which cannot be undone
//	disabled       | stable or required | Manual, or excluded            | told in the status
//	anything else  | stable or required | EnableStableAfterUpgrade, not excluded | waited for: a node has not told yet that it knows it
//	anything else  | stable or required | Manual, or excluded            | told in the status
//	not enabled    | experimental       | any                            | left alone
func decideFlags(manual bool, exclude []string, flags []broker.FeatureFlag) flagPlan {
	var plan flagPlan
	for _, flag := range flags {
		switch {
		case flag.State == broker.FlagEnabled:
			plan.Enabled++
		case flag.Stability == broker.FlagExperimental:
		default:
			plan.Disabled = append(plan.Disabled, flag.Name)
			switch {
			case manual || contains(exclude, flag.Name):
			case flag.State == broker.FlagDisabled:
				plan.Enable = append(plan.Enable, flag.Name)
			default:
				plan.Waiting = append(plan.Waiting, flag.Name)
			}
		}
	}
	sort.Strings(plan.Disabled)
	sort.Strings(plan.Enable)
	sort.Strings(plan.Waiting)
	return plan
}

// keepFlags enables feature flags when an upgrade is over, one in each attempt, and writes how they
// stand into the status. Brokers that know no feature flags have none.
func (s *scope) keepFlags(ctx context.Context) error {
	t := s.tally()
	if !s.settled(t) || !s.oneVersion() {
		return nil
	}
	if s.complete(t) && s.cluster.Status.CurrentVersion != s.version {
		// From the first flag on there is no way back: that the upgrade is over is written down before.
		s.lookAgain(behind)
		return nil
	}
	b, err := s.Brokers.Cluster(ctx, s.key())
	if err != nil {
		return err
	}
	flags, err := b.FeatureFlags(ctx)
	if broker.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("asking for feature flags: %w", err)
	}
	spec := &s.cluster.Spec.FeatureFlags
	plan := decideFlags(spec.Policy == posthornv1.FeatureFlagsManual, spec.Exclude, flags)
	refused := ""
	for len(plan.Enable) > 0 && told(s.cluster.Status.FeatureFlags, plan) {
		name := plan.Enable[0]
		plan.Enable = plan.Enable[1:]
		err := b.EnableFeatureFlag(ctx, name)
		if err == nil {
			plan.Enabled++
			plan.Disabled = without(plan.Disabled, name)
			s.event(corev1.EventTypeNormal, "FeatureFlagEnabled", "Enable", "enabled the feature flag %s", name)
			break
		}
		if !broker.IsTerminal(err) {
			return fmt.Errorf("enabling the feature flag %s: %w", name, err)
		}
		refused = fmt.Sprintf("%s: %v", name, err)
	}
	s.tellFlags(plan, refused)
	return nil
}

// told says whether a status says how flags stand: none is enabled before what was enabled is told.
func told(status *posthornv1.FeatureFlagsStatus, plan flagPlan) bool {
	return status != nil && status.Enabled == plan.Enabled && slices.Equal(status.Disabled, firstFew(plan.Disabled))
}

// tellFlags writes status.featureFlags, and an Event when flags stay disabled that did not before. Those
// that are left to enable come next.
func (s *scope) tellFlags(left flagPlan, refused string) {
	before := s.cluster.Status.FeatureFlags
	status := &posthornv1.FeatureFlagsStatus{Enabled: left.Enabled, Disabled: firstFew(left.Disabled), Message: refused}
	s.cluster.Status.FeatureFlags = status
	switch {
	case len(left.Enable) > 0:
		status.Message = "being enabled, one after the other"
		s.lookAgain(behind)
		return
	case len(left.Waiting) > 0 && refused == "":
		status.Message = "waiting until every node is known to know " + strings.Join(firstFew(left.Waiting), ", ")
		s.lookAgain(rollPoll)
		return
	}
	if refused == "" && len(left.Disabled) > 0 {
		status.Message = "left to you: featureFlags.policy is Manual, or featureFlags.exclude names them"
	}
	if len(status.Disabled) > 0 && (before == nil || !reflect.DeepEqual(before.Disabled, status.Disabled)) {
		s.event(corev1.EventTypeWarning, "FeatureFlagsDisabled", "Enable", "not enabled: %s (%s); the next minor version is refused until they are", strings.Join(status.Disabled, ", "), status.Message)
	}
}

// oneVersion says that every node has told its version and that all are the same.
func (s *scope) oneVersion() bool {
	for i := range s.members {
		if s.members[i].version == "" || s.members[i].version != s.members[0].version {
			return false
		}
	}
	return len(s.members) > 0
}

func without(list []string, word string) []string {
	var out []string
	for _, each := range list {
		if each != word {
			out = append(out, each)
		}
	}
	return out
}
