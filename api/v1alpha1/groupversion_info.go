// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 defines the custom resources of the group posthorn.io.
//
// +kubebuilder:object:generate=true
// +groupName=posthorn.io
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var (
	// GroupVersion is the group and version of every kind in this package.
	GroupVersion = schema.GroupVersion{Group: "posthorn.io", Version: "v1alpha1"}

	schemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)

	// AddToScheme adds the kinds of this package to a scheme.
	AddToScheme = schemeBuilder.AddToScheme
)

func addKnownTypes(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion,
		&Backup{}, &BackupList{},
		&Binding{}, &BindingList{},
		&BrokerCluster{}, &BrokerClusterList{},
		&Exchange{}, &ExchangeList{},
		&Permission{}, &PermissionList{},
		&Policy{}, &PolicyList{},
		&Queue{}, &QueueList{},
		&Restore{}, &RestoreList{},
		&ScheduledBackup{}, &ScheduledBackupList{},
		&SuperStream{}, &SuperStreamList{},
		&TopicPermission{}, &TopicPermissionList{},
		&User{}, &UserList{},
		&Vhost{}, &VhostList{},
	)
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
