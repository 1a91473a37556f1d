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

// rollPoll is how often the nodes are asked while a roll waits for them.
const rollPoll = 3 * time.Second

// rollStateOf collects what decideRoll decides from.
func (s *scope) rollStateOf() rollState {
	state := rollState{
		RevisionKnown: s.sts != nil && s.sts.Status.ObservedGeneration >= s.sts.Generation && s.sts.Status.UpdateRevision != "",
	}
	for i := range s.members {
		state.Members = append(state.Members, s.members[i].rollMember)
	}
	return state
}

// roll decides and does one step.
func (s *scope) roll(ctx context.Context) error {
	decided := decideRoll(s.rollStateOf())
	s.step = s.stepOf(decided)
	s.decision = decideStep(decided, s.step)
	if s.decision.Action != rollDone {
		s.lookAgain(rollPoll)
	}
	var m *memberView
	for i := range s.members {
		if s.members[i].Name == s.decision.Pod {
			m = &s.members[i]
		}
	}
	if m == nil || m.pod == nil {
		return nil
	}
	switch s.decision.Action {
	case rollDrain:
		return s.drainNode(ctx, m, s.sts.Status.UpdateRevision)
	case rollReplace:
		return s.replacePod(ctx, m)
	case rollRevive:
		return s.reviveNode(ctx, m, s.decision.Reason)
	default:
		return nil
	}
}

// drainNode notes on the pod what the operator drains it for, then does. The note comes first, so
// that a drain is always one that will be ended.
func (s *scope) drainNode(ctx context.Context, m *memberView, purpose string) error {
	if err := s.annotatePod(ctx, m.pod, purpose); err != nil {
		return err
	}
	node, err := s.node(ctx, m)
	if err != nil {
		return err
	}
	if _, err := node.Drain(ctx, m.Name); err != nil {
		return fmt.Errorf("draining %s: %w", m.Name, err)
	}
	if purpose == names.DrainingForRemoval {
		s.event(corev1.EventTypeNormal, "Draining", "ScaleDown", "moving leaders away from %s before it is removed", m.Name)
		return nil
	}
	s.event(corev1.EventTypeNormal, "Draining", "Roll", "moving leaders away from %s before it is replaced", m.Name)
	return nil
}

func (s *scope) reviveNode(ctx context.Context, m *memberView, reason string) error {
	node, err := s.node(ctx, m)
	if err != nil {
		return err
	}
	switch err := node.Revive(ctx, m.Name); {
	case err == nil, broker.IsNotFound(err):
	case !m.Ready && !broker.IsAnswer(err):
		// It is only just starting, or ends again: the status tells what it is about.
		log.FromContext(ctx).V(1).Info("a node cannot be revived yet", "node", m.Name, "reason", err.Error())
		return nil
	default:
		return fmt.Errorf("reviving %s: %w", m.Name, err)
	}
	if err := s.annotatePod(ctx, m.pod, ""); err != nil {
		return err
	}
	s.event(corev1.EventTypeNormal, "Revived", "Roll", "ended the drain of %s: %s", m.Name, reason)
	return nil
}

// replacePod deletes the pod only while it is as it was looked at: one that has been started again meanwhile stays.
func (s *scope) replacePod(ctx context.Context, m *memberView) error {
	uid, version := m.pod.UID, m.pod.ResourceVersion
	err := s.Client.Delete(ctx, m.pod, client.Preconditions(metav1.Preconditions{UID: &uid, ResourceVersion: &version}))
	if err = client.IgnoreNotFound(err); err != nil {
		return fmt.Errorf("replacing %s: %w", m.Name, err)
	}
	s.event(corev1.EventTypeNormal, "Replacing", "Roll", "replacing %s: %s", m.Name, s.decision.Reason)
	return nil
}

// annotatePod sets or, when purpose is empty, takes away the note that the operator drains a pod.
func (s *scope) annotatePod(ctx context.Context, pod *corev1.Pod, purpose string) error {
	if pod.Annotations[names.AnnotationDraining] == purpose {
		return nil
	}
	changed := pod.DeepCopy()
	if purpose == "" {
		delete(changed.Annotations, names.AnnotationDraining)
	} else {
		metav1.SetMetaDataAnnotation(&changed.ObjectMeta, names.AnnotationDraining, purpose)
	}
	if err := s.Client.Patch(ctx, changed, client.MergeFrom(pod)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("noting the drain on %s: %w", pod.Name, err)
	}
	return nil
}

func (s *scope) node(ctx context.Context, m *memberView) (broker.Client, error) {
	nodes, err := s.Brokers.Nodes(ctx, s.key())
	if err != nil {
		return nil, err
	}
	return nodes(m.Name, m.listener)
}
