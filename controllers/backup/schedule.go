// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"fmt"
	"slices"
	"strings"
	"time"

	// The time zones, for an image without the database.
	_ "time/tzdata"

	"github.com/robfig/cron/v3"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

// keptFailures is the number of failed Backups that stay when spec.keep is set.
const keptFailures = 3

// schedule is a parsed schedule in its time zone.
type schedule struct {
	cron cron.Schedule
	zone *time.Location
}

// parseSchedule parses spec.schedule and spec.timeZone.
func parseSchedule(spec *posthornv1.ScheduledBackupSpec) (schedule, error) {
	if strings.EqualFold(spec.TimeZone, "local") {
		return schedule{}, fmt.Errorf("spec.timeZone: %q is not a name of the IANA database, such as Europe/Berlin", spec.TimeZone)
	}
	zone, err := time.LoadLocation(spec.TimeZone)
	if err != nil {
		return schedule{}, fmt.Errorf("spec.timeZone: %q is not a name of the IANA database, such as Europe/Berlin", spec.TimeZone)
	}
	if strings.Contains(spec.Schedule, "=") {
		return schedule{}, fmt.Errorf("spec.schedule: %q has a time zone; put it into spec.timeZone", spec.Schedule)
	}
	parsed, err := cron.ParseStandard(spec.Schedule)
	if err != nil {
		return schedule{}, fmt.Errorf("spec.schedule: %q is not a schedule in cron format, such as 30 2 * * *: %w", spec.Schedule, err)
	}
	return schedule{cron: parsed, zone: zone}, nil
}

// after returns the first time of the schedule after a time; zero when there is none, such as for 30 February.
func (s schedule) after(at time.Time) time.Time { return s.cron.Next(at.In(s.zone)) }

// searchWindows are the periods in which the last time of a schedule is searched, one after the other. So a schedule with a
// time in each minute is not followed through the years that the operator did not run.
var searchWindows = []time.Duration{2 * time.Hour, 50 * time.Hour, 35 * 24 * time.Hour, 370 * 24 * time.Hour, 10 * 366 * 24 * time.Hour}

// last returns the last time of the schedule after one time and not after another; zero when there is none.
func (s schedule) last(after, until time.Time) time.Time {
	var found time.Time
	for _, window := range searchWindows {
		from := until.Add(-window)
		if from.Before(after) {
			from = after
		}
		for at := s.after(from); !at.IsZero() && !at.After(until); at = s.after(at) {
			found = at
		}
		if !found.IsZero() || from.Equal(after) {
			return found
		}
	}
	return found
}

// decision is what a ScheduledBackup does next.
type decision struct {
	// due is the time of the schedule for which a Backup is created; zero when none is.
	due time.Time
	// next is the next time of the schedule; zero when there is none, or it is suspended.
	next time.Time
	// active is the name of a Backup that has not ended; empty when there is none.
	active string
	// prune are the Backups to delete, also in the store.
	prune []*posthornv1.Backup
	// newest, newestSuccess are the newest Backup and the newest completed one; nil when there is none.
	newest, newestSuccess *posthornv1.Backup
}

// decide returns what a ScheduledBackup does next.
//
//	it is suspended                                     | nothing
//	no time has passed since the last Backup            | wait for the next time
//	times have passed, and the last Backup has not ended | wait until it ends
//	times have passed                                   | one Backup, for the last of them
func decide(object *posthornv1.ScheduledBackup, parsed schedule, backups []posthornv1.Backup, now time.Time) decision {
	out := decision{}
	slices.SortFunc(backups, func(a, b posthornv1.Backup) int {
		if byTime := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); byTime != 0 {
			return byTime
		}
		return strings.Compare(a.Name, b.Name)
	})
	var completed, failures []*posthornv1.Backup
	for i := range backups {
		backup := &backups[i]
		switch phase := backup.Status.Phase; {
		case backup.DeletionTimestamp != nil:
			continue
		case phase == posthornv1.JobCompleted:
			completed = append(completed, backup)
			out.newestSuccess = backup
		case phase == posthornv1.JobFailed:
			failures = append(failures, backup)
		default:
			out.active = backup.Name
		}
		out.newest = backup
	}
	if keep := object.Spec.Keep; keep != nil {
		out.prune = slices.Concat(completed[:max(0, len(completed)-max(1, int(*keep)))], failures[:max(0, len(failures)-keptFailures)])
	}
	if object.Spec.Suspend {
		return out
	}
	since := object.CreationTimestamp.Time
	if last := object.Status.LastScheduleTime; last != nil {
		since = last.Time
	}
	out.next = parsed.after(now)
	if due := parsed.last(since, now); out.active == "" {
		out.due = due
	}
	return out
}
