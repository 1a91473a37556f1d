// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

func at(t *testing.T, text string) time.Time {
	t.Helper()
	parsed, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

func scheduleOf(t *testing.T, text, zone string) schedule {
	t.Helper()
	parsed, err := parseSchedule(&posthornv1.ScheduledBackupSpec{Schedule: text, TimeZone: zone})
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

func TestInvalidSchedulesNameTheFieldAndTheRemedy(t *testing.T) {
	for name, test := range map[string]struct{ schedule, zone, words string }{
		"words":             {"every night", "UTC", `spec.schedule: "every night" is not a schedule in cron format, such as 30 2 * * *`},
		"four fields":       {"0 2 * *", "UTC", "spec.schedule"},
		"a minute too late": {"60 2 * * *", "UTC", "spec.schedule"},
		"a zone in it":      {"TZ=UTC 0 2 * * *", "UTC", "put it into spec.timeZone"},
		"an unknown zone":   {"0 2 * * *", "Europe/Atlantis", `spec.timeZone: "Europe/Atlantis" is not a name of the IANA database`},
		"the local zone":    {"0 2 * * *", "Local", "spec.timeZone"},
	} {
		_, err := parseSchedule(&posthornv1.ScheduledBackupSpec{Schedule: test.schedule, TimeZone: test.zone})
		if err == nil || !strings.Contains(err.Error(), test.words) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestLastTimeOfASchedule(t *testing.T) {
	for name, test := range map[string]struct{ schedule, zone, after, until, want string }{
		"no time has passed":                {"0 2 * * *", "UTC", "2026-01-01T02:00:00Z", "2026-01-02T01:59:59Z", ""},
		"a time that is now":                {"0 2 * * *", "UTC", "2026-01-01T02:00:00Z", "2026-01-02T02:00:00Z", "2026-01-02T02:00:00Z"},
		"the last of several":               {"0 2 * * *", "UTC", "2026-01-01T02:00:00Z", "2026-01-09T12:00:00Z", "2026-01-09T02:00:00Z"},
		"the last of 500,000":               {"* * * * *", "UTC", "2025-01-01T00:00:00Z", "2026-01-01T00:00:30Z", "2026-01-01T00:00:00Z"},
		"one that is years ago":             {"0 0 1 3 *", "UTC", "2020-01-01T00:00:00Z", "2026-01-01T00:00:00Z", "2025-03-01T00:00:00Z"},
		"one on 29 February":                {"0 0 29 2 *", "UTC", "2020-01-01T00:00:00Z", "2026-01-01T00:00:00Z", "2024-02-29T00:00:00Z"},
		"a day that does not exist":         {"0 0 30 2 *", "UTC", "2020-01-01T00:00:00Z", "2026-01-01T00:00:00Z", ""},
		"a time zone in winter":             {"0 2 * * *", "Europe/Berlin", "2026-01-01T00:00:00Z", "2026-01-01T12:00:00Z", "2026-01-01T01:00:00Z"},
		"a time zone in summer":             {"0 2 * * *", "Europe/Berlin", "2026-06-30T12:00:00Z", "2026-07-01T12:00:00Z", "2026-07-01T00:00:00Z"},
		"an hour that the clock leaves out": {"30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", "2026-03-29T12:00:00Z", ""},
	} {
		found := scheduleOf(t, test.schedule, test.zone).last(at(t, test.after), at(t, test.until))
		got := ""
		if !found.IsZero() {
			got = found.UTC().Format(time.RFC3339)
		}
		if got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}

// backupsOf returns Backups with these phases, the oldest first.
func backupsOf(phases ...posthornv1.JobPhase) []posthornv1.Backup {
	out := make([]posthornv1.Backup, len(phases))
	for i, phase := range phases {
		out[i].Name = fmt.Sprintf("b%d", i)
		out[i].CreationTimestamp = metav1.Unix(int64(1000+i), 0)
		out[i].Status.Phase = phase
	}
	return out
}

func TestDecisionOfASchedule(t *testing.T) {
	const done, bad, runs = posthornv1.JobCompleted, posthornv1.JobFailed, posthornv1.JobRunning
	keep := func(n int32) *int32 { return &n }
	for name, test := range map[string]struct {
		last, now string
		suspend   bool
		keep      *int32
		phases    []posthornv1.JobPhase
		due       string
		pruned    string
	}{
		"before the time":                    {"2026-01-01T02:00:00Z", "2026-01-02T01:00:00Z", false, nil, nil, "", ""},
		"at the time":                        {"2026-01-01T02:00:00Z", "2026-01-02T02:00:00Z", false, nil, nil, "2026-01-02T02:00:00Z", ""},
		"one for all missed times":           {"2026-01-01T02:00:00Z", "2026-01-31T01:00:00Z", false, nil, nil, "2026-01-30T02:00:00Z", ""},
		"the first one":                      {"", "2026-01-01T02:00:00Z", false, nil, nil, "2026-01-01T02:00:00Z", ""},
		"suspended":                          {"2026-01-01T02:00:00Z", "2026-01-09T02:00:00Z", true, nil, nil, "", ""},
		"the one before runs":                {"2026-01-01T02:00:00Z", "2026-01-02T02:00:00Z", false, nil, []posthornv1.JobPhase{done, runs}, "", ""},
		"the one before waits":               {"2026-01-01T02:00:00Z", "2026-01-02T02:00:00Z", false, nil, []posthornv1.JobPhase{""}, "", ""},
		"the one before failed":              {"2026-01-01T02:00:00Z", "2026-01-02T02:00:00Z", false, nil, []posthornv1.JobPhase{bad}, "2026-01-02T02:00:00Z", ""},
		"all are kept":                       {"2026-01-01T02:00:00Z", "2026-01-02T01:00:00Z", false, nil, []posthornv1.JobPhase{done, done, done}, "", ""},
		"the oldest ones go":                 {"2026-01-01T02:00:00Z", "2026-01-02T01:00:00Z", false, keep(2), []posthornv1.JobPhase{done, done, bad, done, runs, done}, "", "b0 b1"},
		"the last success stays":             {"2026-01-01T02:00:00Z", "2026-01-02T01:00:00Z", false, keep(1), []posthornv1.JobPhase{done, bad, bad, bad, bad, bad}, "", "b1 b2"},
		"also if zero were to stay":          {"2026-01-01T02:00:00Z", "2026-01-02T01:00:00Z", false, keep(0), []posthornv1.JobPhase{done, done}, "", "b0"},
		"surplus ones go while it is paused": {"2026-01-01T02:00:00Z", "2026-01-09T02:00:00Z", true, keep(1), []posthornv1.JobPhase{done, done}, "", "b0"},
	} {
		object := &posthornv1.ScheduledBackup{Spec: posthornv1.ScheduledBackupSpec{Suspend: test.suspend, Keep: test.keep}}
		object.CreationTimestamp = metav1.NewTime(at(t, "2026-01-01T00:00:00Z"))
		if test.last != "" {
			object.Status.LastScheduleTime = &metav1.Time{Time: at(t, test.last)}
		}
		decided := decide(object, scheduleOf(t, "0 2 * * *", "UTC"), backupsOf(test.phases...), at(t, test.now))
		due, pruned := "", []string{}
		if !decided.due.IsZero() {
			due = decided.due.UTC().Format(time.RFC3339)
		}
		for _, each := range decided.prune {
			pruned = append(pruned, each.Name)
		}
		if due != test.due || strings.Join(pruned, " ") != test.pruned {
			t.Errorf("%s: due %q and prune %q, want %q and %q", name, due, pruned, test.due, test.pruned)
		}
		if decided.next.IsZero() != test.suspend {
			t.Errorf("%s: the next time is %s", name, decided.next)
		}
	}
}
