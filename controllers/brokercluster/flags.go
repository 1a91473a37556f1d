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

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
)

// flagPlan is the state of the feature flags and the changes to it.
type flagPlan struct {
	// Enable are the flags to enable.
	Enable []string
	// Disabled are the stable and required flags that are not enabled.
	Disabled []string
	// Waiting are the disabled flags that are to be enabled and cannot be yet.
	Waiting []string
	// Enabled is the number of enabled flags, experimental ones included.
	Enabled int32
}

// decideFlags decides which flags to enable. Every node runs the same version when it is called.
//
//	state          | stability          | policy, exclude                        | then
//	enabled        | any                | any                                    | counted
//	disabled       | stable or required | EnableStableAfterUpgrade, not excluded | enabled, which cannot be undone
//	disabled       | stable or required | Manual, or excluded                    | reported in the status
//	anything else  | stable or required | EnableStableAfterUpgrade, not excluded | waits until every node reports the flag
//	anything else  | stable or required | Manual, or excluded                    | reported in the status
//	not enabled    | experimental       | any                                    | left alone
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
			case manual || slices.Contains(exclude, flag.Name):
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

// enableFlags enables feature flags when an upgrade is complete, one in each reconciliation, and reports their state. A
// broker without feature flags has none to enable.
func (r *reconciliation) enableFlags(ctx context.Context) error {
	if !r.out.isSettled(&r.in, &r.seen) || !r.seen.hasOneVersion() {
		return nil
	}
	if r.out.isComplete(&r.in, &r.seen) && r.in.cluster.Status.CurrentVersion != r.out.version {
		// From the first flag on the upgrade cannot be undone: the status records first that it is complete.
		r.out.requeueWithin(staleRetry)
		return nil
	}
	b, err := r.Brokers.Cluster(ctx, r.in.key())
	if err != nil {
		return err
	}
	flags, err := b.FeatureFlags(ctx)
	if broker.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading the feature flags: %w", err)
	}
	spec := &r.in.cluster.Spec.FeatureFlags
	plan := decideFlags(spec.Policy == posthornv1.FeatureFlagsManual, spec.Exclude, flags)
	refused := ""
	for len(plan.Enable) > 0 && isRecorded(r.in.cluster.Status.FeatureFlags, plan) {
		name := plan.Enable[0]
		plan.Enable = plan.Enable[1:]
		err := b.EnableFeatureFlag(ctx, name)
		if err == nil {
			plan.Enabled++
			plan.Disabled = without(plan.Disabled, name)
			r.out.note("FeatureFlagEnabled", "Enable", "enabled the feature flag %s", name)
			break
		}
		if !broker.IsTerminal(err) {
			return fmt.Errorf("enabling the feature flag %s: %w", name, err)
		}
		refused = fmt.Sprintf("%s: %v", name, err)
	}
	r.out.setFlags(&r.in, plan, refused)
	return nil
}

// isRecorded reports whether the status has the present state of the flags. The next flag is enabled only after the
// status has recorded the one before.
func isRecorded(status *posthornv1.FeatureFlagsStatus, plan flagPlan) bool {
	return status != nil && status.Enabled == plan.Enabled && slices.Equal(status.Disabled, firstFew(plan.Disabled))
}

// setFlags fills status.featureFlags, with an Event when the disabled flags have changed and none is left to enable.
func (out *decided) setFlags(in *inputs, left flagPlan, refused string) {
	before := in.cluster.Status.FeatureFlags
	status := &posthornv1.FeatureFlagsStatus{Enabled: left.Enabled, Disabled: firstFew(left.Disabled), Message: refused}
	out.featureFlags = status
	switch {
	case len(left.Enable) > 0:
		status.Message = "enabling the flags one after the other"
		out.requeueWithin(staleRetry)
		return
	case len(left.Waiting) > 0 && refused == "":
		status.Message = "waiting until every node reports the flags " + strings.Join(firstFew(left.Waiting), ", ")
		out.requeueWithin(rollPoll)
		return
	}
	if refused == "" && len(left.Disabled) > 0 {
		status.Message = "enable them yourself: spec.featureFlags.policy is Manual, or spec.featureFlags.exclude names them"
	}
	if len(status.Disabled) > 0 && (before == nil || !reflect.DeepEqual(before.Disabled, status.Disabled)) {
		out.warnOfChange("FeatureFlagsDisabled", "Enable", "not enabled: %s (%s); the operator refuses the next minor version until they are", strings.Join(status.Disabled, ", "), status.Message)
	}
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
