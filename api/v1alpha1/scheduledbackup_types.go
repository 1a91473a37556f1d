// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ScheduledBackupSpec creates Backups at certain times.
type ScheduledBackupSpec struct {
	// Schedule in cron format: minute, hour, day of the month, month, day of the week; or @hourly, @daily,
	// @weekly, @monthly, @yearly.
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="self.startsWith('@') ? self in ['@yearly', '@annually', '@monthly', '@weekly', '@daily', '@midnight', '@hourly'] : self.matches('^[^ =]+( [^ =]+){4}$')",message="schedule must have five fields separated by single blanks (minute, hour, day of the month, month, day of the week), such as 30 2 * * *, or be @hourly, @daily, @weekly, @monthly or @yearly; put the time zone into timeZone"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^[^ =]+( [^ =]+){4}$') || (self.split(' ')[0].matches('^([*]|[0-5]?[0-9](-[0-5]?[0-9])?)(/[1-9][0-9]?)?(,([*]|[0-5]?[0-9](-[0-5]?[0-9])?)(/[1-9][0-9]?)?)*$') && self.split(' ')[1].matches('^([*]|([01]?[0-9]|2[0-3])(-([01]?[0-9]|2[0-3]))?)(/[1-9][0-9]?)?(,([*]|([01]?[0-9]|2[0-3])(-([01]?[0-9]|2[0-3]))?)(/[1-9][0-9]?)?)*$'))",message="schedule: the minute must be from 0 to 59, and the hour from 0 to 23, with *, lists (1,2), ranges (1-5) and steps (*/5)"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^[^ =]+( [^ =]+){4}$') || (self.split(' ')[2].matches('^([*?]|(0?[1-9]|[12][0-9]|3[01])(-(0?[1-9]|[12][0-9]|3[01]))?)(/[1-9][0-9]?)?(,(0?[1-9]|[12][0-9]|3[01])(-(0?[1-9]|[12][0-9]|3[01]))?(/[1-9][0-9]?)?)*$') && self.split(' ')[3].matches('(?i)^([*]|(0?[1-9]|1[0-2]|[a-z]{3})(-(0?[1-9]|1[0-2]|[a-z]{3}))?)(/[1-9][0-9]?)?(,(0?[1-9]|1[0-2]|[a-z]{3})(-(0?[1-9]|1[0-2]|[a-z]{3}))?(/[1-9][0-9]?)?)*$') && self.split(' ')[4].matches('(?i)^([*?]|([0-6]|[a-z]{3})(-([0-6]|[a-z]{3}))?)(/[1-9])?(,([0-6]|[a-z]{3})(-([0-6]|[a-z]{3}))?(/[1-9])?)*$'))",message="schedule: the day of the month must be from 1 to 31, the month from 1 to 12 or jan to dec, and the day of the week from 0 (Sunday) to 6 or sun to sat"
	Schedule string `json:"schedule"`

	// TimeZone of the schedule, such as Europe/Berlin, as in the IANA database.
	// +optional
	// +kubebuilder:default="Etc/UTC"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z][A-Za-z0-9_+/-]*$') && self.lowerAscii() != 'local'",message="timeZone must be a name of the IANA database, such as Europe/Berlin"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^[A-Za-z][A-Za-z0-9_+/-]*$') || timestamp('2000-01-01T00:00:00Z').getHours(self) >= 0",message="timeZone must be a name of the IANA database, such as Europe/Berlin"
	TimeZone string `json:"timeZone,omitempty"`

	// Suspend creates no Backups. When it is unset, one Backup makes up for the times that have passed.
	// +optional
	Suspend bool `json:"suspend,omitempty"`

	// Template is the spec of the Backups.
	Template BackupSpec `json:"template"`

	// Keep is the number of completed Backups that stay. When there are more, the operator deletes the oldest ones,
	// also in the store. It then also keeps only the newest three that failed. All stay when it is absent.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	Keep *int32 `json:"keep,omitempty"`
}

// ScheduledBackupStatus is the observed state.
type ScheduledBackupStatus struct {
	// ObservedGeneration is the generation of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// LastScheduleTime is the time of the schedule of the last Backup.
	// +optional
	LastScheduleTime *metav1.Time `json:"lastScheduleTime,omitempty"`

	// NextScheduleTime is the next time of the schedule; absent while it is suspended.
	// +optional
	NextScheduleTime *metav1.Time `json:"nextScheduleTime,omitempty"`

	// LastBackup is the name of the newest Backup.
	// +optional
	LastBackup string `json:"lastBackup,omitempty"`

	// LastSuccessfulBackup is the name of the newest completed Backup.
	// +optional
	LastSuccessfulBackup string `json:"lastSuccessfulBackup,omitempty"`

	// LastSuccessfulTime is when the newest completed Backup completed.
	// +optional
	LastSuccessfulTime *metav1.Time `json:"lastSuccessfulTime,omitempty"`

	// Conditions: Ready is False when the schedule is invalid or the last Backup failed.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ScheduledBackup creates Backups at certain times. The Backups stay when it is deleted.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=psb,categories=posthorn
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 200",message="metadata.name must have at most 200 characters: the names of its Backups have the time too"
// +kubebuilder:printcolumn:name="Cluster",type=string,JSONPath=`.spec.template.clusterRef.name`
// +kubebuilder:printcolumn:name="Schedule",type=string,JSONPath=`.spec.schedule`
// +kubebuilder:printcolumn:name="Suspend",type=boolean,JSONPath=`.spec.suspend`
// +kubebuilder:printcolumn:name="Last",type=date,JSONPath=`.status.lastScheduleTime`
// +kubebuilder:printcolumn:name="Last Success",type=date,JSONPath=`.status.lastSuccessfulTime`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ScheduledBackup struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the wanted state.
	Spec ScheduledBackupSpec `json:"spec"`
	// Status is the observed state.
	// +optional
	Status ScheduledBackupStatus `json:"status,omitempty"`
}

// ScheduledBackupList is a list of ScheduledBackup.
// +kubebuilder:object:root=true
type ScheduledBackupList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ScheduledBackup `json:"items"`
}
