// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"context"
	"encoding/json"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/names"
)

// ensureStatefulSet keeps the StatefulSet. It rebuilds the pod template only when its inputs changed or when somebody else
// changed it, and not because this version of the operator would build a different one.
func (r *reconciliation) ensureStatefulSet(ctx context.Context) error {
	next, err := r.nextTemplate(ctx)
	if err != nil || next == nil {
		return err
	}
	template, wanted, accepted := next.template, next.digest, next.accepted
	if r.seen.sts == nil {
		if !accepted {
			return nil
		}
		sts := newStatefulSet(r.in.cluster, template, wanted)
		setLabels(sts, r.in.cluster)
		applySizes(sts, r.out.sizes)
		if err := controllerutil.SetControllerReference(r.in.cluster, sts, r.Scheme); err != nil {
			return fmt.Errorf("setting the owner of the StatefulSet: %w", err)
		}
		if err := r.Client.Create(ctx, sts); err != nil {
			return refused(err, "creating the StatefulSet")
		}
		r.noteCreation(sts)
		return r.recordTemplate(ctx, sts)
	}
	if !accepted && isHibernated(r.seen.sts) {
		// Nodes that woke with the settings of the template would be rolled to the wanted ones afterwards, and some settings,
		// like the number of shards, have to be the same on all nodes.
		r.out.sizes.stayHibernated(r.seen.sts)
	}
	sts := r.seen.sts.DeepCopy()
	setLabels(sts, r.in.cluster)
	scaled := whenScaled(r.seen.sts, r.seen.isScalingDown(&r.in))
	applyMutable(sts, r.in.cluster)
	sts.Spec.PersistentVolumeClaimRetentionPolicy.WhenScaled = scaled
	applySizes(sts, r.out.sizes)
	stored, err := templateDigest(&r.seen.sts.Spec.Template)
	if err != nil {
		return err
	}
	lacksLive := r.in.cluster.Spec.ExternalListeners != nil && !mountsConfigMap(&sts.Spec.Template.Spec, names.LiveConfigMap(r.in.cluster.Name))
	if accepted && (lacksLive || sts.Annotations[names.AnnotationInputs] != wanted || sts.Annotations[names.AnnotationStored] != stored) {
		sts.Spec.Template = template
		metav1.SetMetaDataAnnotation(&sts.ObjectMeta, names.AnnotationInputs, wanted)
	}
	if !equality.Semantic.DeepEqual(sts, r.seen.sts) {
		if err := r.Client.Update(ctx, sts); err != nil {
			return refused(err, "updating the StatefulSet")
		}
		if r.seen.sts.Annotations[names.AnnotationInputs] == wanted && r.seen.sts.Annotations[names.AnnotationStored] != stored {
			r.noteUpdate(sts)
		}
	}
	if !accepted {
		r.seen.sts = sts
		return nil
	}
	return r.recordTemplate(ctx, sts)
}

// nextTemplate is the pod template that the spec asks for.
type nextTemplate struct {
	template corev1.PodTemplateSpec
	// digest of its inputs.
	digest string
	// accepted: a pod has checked its settings.
	accepted bool
}

// nextTemplate returns the pod template that the spec asks for; nil when it has to wait for a certificate.
func (r *reconciliation) nextTemplate(ctx context.Context) (*nextTemplate, error) {
	checked := r.out.templateInputs(&r.in)
	var err error
	if r.out.revision, err = r.chooseRevision(ctx, checked); err != nil {
		return nil, err
	}
	inputs := checked
	if r.out.revision != revisionRestart {
		inputs.Config = r.seen.templateSettings()
	}
	next := &nextTemplate{}
	if next.digest, err = inputs.digest(); err != nil {
		return nil, err
	}
	if next.template, err = buildTemplate(r.in.cluster, inputs); err != nil {
		return nil, err
	}
	if r.out.holdTemplate(&r.in, &r.seen, next.digest) {
		return nil, nil
	}
	next.accepted, err = r.checkRevision(ctx, &next.template, inputs, checked)
	return next, err
}

// checkRevision reports whether the StatefulSet may get the pod template. New settings that running nodes load do not change
// the template; a pod checks them all the same.
func (r *reconciliation) checkRevision(ctx context.Context, template *corev1.PodTemplateSpec, inputs, checked templateInputs) (bool, error) {
	if r.out.revision != revisionReload {
		return r.checkSettings(ctx, template, inputs)
	}
	candidate, err := buildTemplate(r.in.cluster, checked)
	if err != nil {
		return false, err
	}
	if _, err := r.checkSettings(ctx, &candidate, checked); err != nil {
		return false, err
	}
	return true, nil
}

// holdTemplate reports whether the pod template has to wait: new pods cannot start while their certificate is missing or
// unusable. Existing pods continue with the certificate that they have loaded.
func (out *decided) holdTemplate(in *inputs, seen *observed, inputs string) bool {
	if in.cluster.Spec.TLS == nil || seen.serving.usable || (seen.sts != nil && seen.sts.Annotations[names.AnnotationInputs] == inputs) {
		return false
	}
	held := seen.serving.finding
	out.held = &held
	return true
}

// recordTemplate records the digest of the template as stored, with defaults filled in, so that a later change by somebody
// else is detected. Annotations do not change the generation of the StatefulSet.
func (r *reconciliation) recordTemplate(ctx context.Context, sts *appsv1.StatefulSet) error {
	r.seen.sts = sts
	stored, err := templateDigest(&sts.Spec.Template)
	if err != nil || sts.Annotations[names.AnnotationStored] == stored {
		return err
	}
	before := client.MergeFrom(sts.DeepCopy())
	metav1.SetMetaDataAnnotation(&sts.ObjectMeta, names.AnnotationStored, stored)
	if err := r.Client.Patch(ctx, sts, before); err != nil {
		return fmt.Errorf("recording the pod template: %w", err)
	}
	return nil
}

func templateDigest(template *corev1.PodTemplateSpec) (string, error) {
	data, err := json.Marshal(template)
	if err != nil {
		return "", fmt.Errorf("encoding the pod template: %w", err)
	}
	return digest(data), nil
}

func newStatefulSet(cluster *posthornv1.BrokerCluster, template corev1.PodTemplateSpec, inputs string) *appsv1.StatefulSet {
	sts := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{
			Name: cluster.Name, Namespace: cluster.Namespace,
			Annotations: map[string]string{names.AnnotationInputs: inputs},
		},
		Spec: appsv1.StatefulSetSpec{
			ServiceName:          names.NodesService(cluster.Name),
			PodManagementPolicy:  appsv1.ParallelPodManagement,
			Selector:             &metav1.LabelSelector{MatchLabels: names.Selector(cluster.Name)},
			Template:             template,
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{dataClaim(cluster)},
		},
	}
	applyMutable(sts, cluster)
	return sts
}

// applyMutable sets the fields that may change without a restart.
func applyMutable(sts *appsv1.StatefulSet, cluster *posthornv1.BrokerCluster) {
	replicas := cluster.Spec.Replicas
	sts.Spec.Replicas = &replicas
	sts.Spec.UpdateStrategy = appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType}
	sts.Spec.PersistentVolumeClaimRetentionPolicy = &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{
		WhenDeleted: appsv1.PersistentVolumeClaimRetentionPolicyType(cluster.Spec.Storage.WhenDeleted),
		WhenScaled:  appsv1.RetainPersistentVolumeClaimRetentionPolicyType,
	}
}

// whenScaled keeps the policy Delete, which removeNode sets, until the pod of the removed node is gone. At any other time the
// policy is Retain, so that no volume is deleted when somebody else scales the StatefulSet.
func whenScaled(sts *appsv1.StatefulSet, isScalingDown bool) appsv1.PersistentVolumeClaimRetentionPolicyType {
	policy := sts.Spec.PersistentVolumeClaimRetentionPolicy
	if isScalingDown && policy != nil {
		return policy.WhenScaled
	}
	return appsv1.RetainPersistentVolumeClaimRetentionPolicyType
}

func dataClaim(cluster *posthornv1.BrokerCluster) corev1.PersistentVolumeClaim {
	return corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: dataVolume, Labels: names.Labels(cluster.Name)},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			StorageClassName: cluster.Spec.Storage.StorageClassName,
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: cluster.Spec.Storage.Size},
			},
		},
	}
}
