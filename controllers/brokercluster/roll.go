// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/names"
)

// rollPoll is the interval of queries to the nodes while a roll waits for them.
const rollPoll = 3 * time.Second

// rollStateOf collects the input of decideRoll.
func rollStateOf(seen *observed) rollState {
	sts := seen.sts
	state := rollState{
		RevisionKnown: sts != nil && sts.Status.ObservedGeneration >= sts.Generation && sts.Status.UpdateRevision != "",
	}
	for i := range seen.members {
		state.Members = append(state.Members, seen.members[i].rollMember)
	}
	return state
}

// decideRollStep decides the next step of the roll, which may have to wait for a person.
func (out *decided) decideRollStep(in *inputs, seen *observed) {
	wanted := decideRoll(rollStateOf(seen))
	out.step = out.stepStateOf(in, seen, wanted)
	out.roll = decideStep(wanted, out.step)
	if out.roll.Action != rollDone {
		out.requeueWithin(rollPoll)
	}
}

// roll decides the next step of the roll and takes it.
func (r *reconciliation) roll(ctx context.Context) error {
	r.out.decideRollStep(&r.in, &r.seen)
	m := r.seen.member(r.out.roll.Pod)
	if m == nil || m.pod == nil {
		return nil
	}
	switch r.out.roll.Action {
	case rollDrain:
		return r.drainNode(ctx, m, r.seen.sts.Status.UpdateRevision)
	case rollReplace:
		return r.replacePod(ctx, m)
	case rollRevive:
		return r.reviveNode(ctx, m, r.out.roll.Reason)
	default:
		return nil
	}
}

// drainNode records the purpose of a drain on the pod, then drains its node. The record comes first, so that the
// operator ends every drain that it has begun.
func (r *reconciliation) drainNode(ctx context.Context, m *memberView, purpose string) error {
	if err := r.annotatePod(ctx, m.pod, purpose); err != nil {
		return err
	}
	node, err := r.connectTo(ctx, m)
	if err != nil {
		return err
	}
	if _, err := node.Drain(ctx, m.Name); err != nil {
		return fmt.Errorf("draining %s: %w", m.Name, err)
	}
	if purpose == names.DrainingForRemoval {
		r.out.note("Draining", "ScaleDown", "moving leaders away from %s before it is removed", m.Name)
		return nil
	}
	r.out.note("Draining", "Roll", "moving leaders away from %s before it is replaced", m.Name)
	return nil
}

// reviveNode ends the maintenance mode of a node.
func (r *reconciliation) reviveNode(ctx context.Context, m *memberView, reason string) error {
	node, err := r.connectTo(ctx, m)
	if err != nil {
		return err
	}
	switch err := node.Revive(ctx, m.Name); {
	case err == nil, broker.IsNotFound(err):
	case !m.Ready && !broker.IsAnswer(err):
		// The node is starting, or its process has ended; the status reports which.
		log.FromContext(ctx).V(1).Info("cannot revive the node yet", "node", m.Name, "reason", err.Error())
		return nil
	default:
		return fmt.Errorf("reviving %s: %w", m.Name, err)
	}
	if err := r.annotatePod(ctx, m.pod, ""); err != nil {
		return err
	}
	r.out.note("Revived", "Roll", "ended the drain of %s: %s", m.Name, reason)
	return nil
}

// replacePod deletes the pod only if it has not changed since it was observed: one that was restarted meanwhile stays.
func (r *reconciliation) replacePod(ctx context.Context, m *memberView) error {
	uid, version := m.pod.UID, m.pod.ResourceVersion
	err := r.Client.Delete(ctx, m.pod, client.Preconditions(metav1.Preconditions{UID: &uid, ResourceVersion: &version}))
	if err = client.IgnoreNotFound(err); err != nil {
		return fmt.Errorf("replacing %s: %w", m.Name, err)
	}
	r.out.note("Replacing", "Roll", "replacing %s: %s", m.Name, r.out.roll.Reason)
	return nil
}

// annotatePod sets the annotation that says why the operator drains a pod, or deletes it when purpose is empty.
func (r *reconciliation) annotatePod(ctx context.Context, pod *corev1.Pod, purpose string) error {
	if pod.Annotations[names.AnnotationDraining] == purpose {
		return nil
	}
	changed := pod.DeepCopy()
	if purpose == "" {
		delete(changed.Annotations, names.AnnotationDraining)
	} else {
		metav1.SetMetaDataAnnotation(&changed.ObjectMeta, names.AnnotationDraining, purpose)
	}
	if err := r.Client.Patch(ctx, changed, client.MergeFrom(pod)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("recording the drain on pod %s: %w", pod.Name, err)
	}
	return nil
}

// connectTo returns a client of one node.
func (r *reconciliation) connectTo(ctx context.Context, m *memberView) (broker.Client, error) {
	nodes, err := r.Brokers.Nodes(ctx, r.in.key())
	if err != nil {
		return nil, err
	}
	return nodes(m.Name, m.listener)
}
