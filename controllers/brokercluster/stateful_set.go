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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/names"
)

// loadStatefulSet reads the StatefulSet and settles which image is to run.
func (s *scope) loadStatefulSet(ctx context.Context) error {
	var sts appsv1.StatefulSet
	err := s.Client.Get(ctx, s.key(), &sts)
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return fmt.Errorf("reading the StatefulSet: %w", err)
	default:
		if err := s.mayChange(&sts); err != nil {
			return err
		}
		s.sts = &sts
	}
	s.image = imageOf(&s.cluster.Spec, s.sts, s.ImageRepository, s.DefaultImage)
	s.protocols = protocolsOf(s.cluster, s.sts, s.DefaultProtocols)
	s.version = versionOf(&s.cluster.Spec, s.image)
	s.judgeVersion()
	return s.settleSize(ctx)
}

// ensureStatefulSet keeps the StatefulSet. Its pod template is made anew only when what it is made
// from changed, or when somebody else changed it: not because this version of the operator would
// make a different one.
func (s *scope) ensureStatefulSet(ctx context.Context) error {
	inputs := inputsOf(s.cluster, s.image, s.protocols)
	wanted, err := inputs.digest()
	if err != nil {
		return err
	}
	template, err := buildTemplate(s.cluster, inputs)
	if err != nil {
		return err
	}
	if s.holdTemplate(wanted) {
		return nil
	}
	accepted, err := s.settingsAccepted(ctx, &template, inputs)
	if err != nil {
		return err
	}
	if s.sts == nil {
		if !accepted {
			return nil
		}
		sts := newStatefulSet(s.cluster, template, wanted)
		s.label(sts)
		applySizes(sts, s.sizes)
		if err := controllerutil.SetControllerReference(s.cluster, sts, s.Scheme); err != nil {
			return fmt.Errorf("owning the StatefulSet: %w", err)
		}
		if err := s.Client.Create(ctx, sts); err != nil {
			return refused(err, "making the StatefulSet")
		}
		s.childCreated(sts)
		return s.recordTemplate(ctx, sts)
	}
	sts := s.sts.DeepCopy()
	s.label(sts)
	scaled := whenScaled(s.sts, s.condemned)
	applyMutable(sts, s.cluster)
	sts.Spec.PersistentVolumeClaimRetentionPolicy.WhenScaled = scaled
	applySizes(sts, s.sizes)
	stored, err := templateDigest(&s.sts.Spec.Template)
	if err != nil {
		return err
	}
	if accepted && (sts.Annotations[names.AnnotationInputs] != wanted || sts.Annotations[names.AnnotationStored] != stored) {
		sts.Spec.Template = template
		metav1.SetMetaDataAnnotation(&sts.ObjectMeta, names.AnnotationInputs, wanted)
	}
	if !equality.Semantic.DeepEqual(sts, s.sts) {
		if err := s.Client.Update(ctx, sts); err != nil {
			return refused(err, "updating the StatefulSet")
		}
		if s.sts.Annotations[names.AnnotationInputs] == wanted && s.sts.Annotations[names.AnnotationStored] != stored {
			s.childUpdated(sts)
		}
	}
	if !accepted {
		s.sts = sts
		return nil
	}
	return s.recordTemplate(ctx, sts)
}

// holdTemplate says whether the StatefulSet waits: new pods could not start with a certificate that is
// not there or of no use. Pods that have one already run on with what they have in memory.
func (s *scope) holdTemplate(inputs string) bool {
	if s.cluster.Spec.TLS == nil || s.serving.usable || (s.sts != nil && s.sts.Annotations[names.AnnotationInputs] == inputs) {
		return false
	}
	held := s.serving.finding
	s.held = &held
	return true
}

// recordTemplate notes what the template looks like as stored, defaults filled in, so that a change
// by anybody else shows. Annotations do not count as a new generation of the StatefulSet.
func (s *scope) recordTemplate(ctx context.Context, sts *appsv1.StatefulSet) error {
	s.sts = sts
	stored, err := templateDigest(&sts.Spec.Template)
	if err != nil || sts.Annotations[names.AnnotationStored] == stored {
		return err
	}
	before := client.MergeFrom(sts.DeepCopy())
	metav1.SetMetaDataAnnotation(&sts.ObjectMeta, names.AnnotationStored, stored)
	if err := s.Client.Patch(ctx, sts, before); err != nil {
		return fmt.Errorf("noting the pod template: %w", err)
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

// refused turns the API server's refusal of what the spec leads to into a terminal error.
func refused(err error, doing string) error {
	if apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) {
		return terminal("Refused", "%s: %w", doing, err)
	}
	return fmt.Errorf("%s: %w", doing, err)
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

// applyMutable sets what may change without a restart.
func applyMutable(sts *appsv1.StatefulSet, cluster *posthornv1.BrokerCluster) {
	replicas := cluster.Spec.Replicas
	sts.Spec.Replicas = &replicas
	sts.Spec.UpdateStrategy = appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType}
	sts.Spec.PersistentVolumeClaimRetentionPolicy = &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{
		WhenDeleted: appsv1.PersistentVolumeClaimRetentionPolicyType(cluster.Spec.Storage.WhenDeleted),
		WhenScaled:  appsv1.RetainPersistentVolumeClaimRetentionPolicyType,
	}
}

// whenScaled keeps the policy Delete, which removeNode sets, until the pod of the removed node is gone. At any
// other time the policy is Retain: somebody else who scales the StatefulSet then deletes no volume.
func whenScaled(sts *appsv1.StatefulSet, condemned bool) appsv1.PersistentVolumeClaimRetentionPolicyType {
	policy := sts.Spec.PersistentVolumeClaimRetentionPolicy
	if condemned && policy != nil {
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
