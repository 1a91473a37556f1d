// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
)

// maxPrintedQueues bounds the rows of unavailable queues in a table.
const maxPrintedQueues = 20

// table writes the report for people.
func (r *Report) table(out io.Writer) error {
	var text strings.Builder
	version := cmp.Or(r.Version, "none yet")
	if r.TargetVersion != "" && r.TargetVersion != r.Version {
		version += " to " + r.TargetVersion
	}
	fmt.Fprintf(&text, "Cluster %s in namespace %s: %s, %d of %d nodes ready, version %s\n", r.Name, r.Namespace, r.Phase, r.ReadyNodes, r.WantedNodes, version)
	if len(r.Waits) == 0 {
		text.WriteString("\nThe operator waits for nothing.\n")
	} else {
		text.WriteString("\nThe operator waits for:\n")
	}
	for _, wait := range r.Waits {
		wait.write(&text)
	}
	text.WriteString("\n")
	rows := [][]string{{"NODE", "STATE", "MACHINE", "ZONE", "VERSION", "LEADERS", "ALARMS", "MESSAGE"}}
	for i := range r.Nodes {
		rows = append(rows, r.Nodes[i].row())
	}
	writeRows(&text, rows)
	text.WriteString("\n")
	rows = [][]string{{"CONDITION", "STATUS", "REASON", "SINCE", "MESSAGE"}}
	for _, c := range r.Conditions {
		rows = append(rows, []string{c.Type, c.Status, c.Reason, age(&c.Since), c.Message})
	}
	writeRows(&text, rows)
	r.writeQueues(&text)
	if r.Unknown != "" {
		fmt.Fprintf(&text, "\nLeaders, alarms and queues are unknown: %s\n", r.Unknown)
	}
	_, err := io.WriteString(out, text.String())
	return err
}

func (r *Report) writeQueues(text *strings.Builder) {
	switch {
	case r.Queues == nil:
		return
	case len(r.Queues) == 0:
		text.WriteString("\nAll queues are available.\n")
		return
	}
	fmt.Fprintf(text, "\n%d queues are not available:\n", len(r.Queues))
	rows := [][]string{{"VHOST", "QUEUE", "TYPE", "STATE", "MEMBERS"}}
	for _, q := range r.Queues[:min(len(r.Queues), maxPrintedQueues)] {
		rows = append(rows, []string{q.Vhost, q.Name, q.Type, q.State, strings.Join(q.Members, ", ")})
	}
	writeRows(text, rows)
	if rest := len(r.Queues) - maxPrintedQueues; rest > 0 {
		fmt.Fprintf(text, "and %d more; --output json lists all\n", rest)
	}
}

func (w *Wait) write(text *strings.Builder) {
	fmt.Fprintf(text, "- %s (%s%s)", w.For, w.Reason, prefixed(", for ", age(w.Since)))
	if w.Message != "" {
		text.WriteString(": " + w.Message)
	}
	text.WriteString("\n")
	if len(w.Queues) > 0 {
		fmt.Fprintf(text, "  queues: %s\n", strings.Join(w.Queues, ", "))
	}
	if w.Remedy != "" {
		fmt.Fprintf(text, "  to continue: %s\n", w.Remedy)
	}
}

func (n *NodeReport) row() []string {
	const unknown = "?"
	state := n.State
	if n.Maintenance != nil && *n.Maintenance {
		state += ", in maintenance"
	}
	if n.QuorumCritical {
		state += ", quorum critical"
	}
	leaders, alarms := unknown, unknown
	if n.Leaders != nil {
		leaders = strconv.Itoa(*n.Leaders)
	}
	if n.Alarms != nil {
		alarms = cmp.Or(strings.Join(n.Alarms, ", "), "none")
	}
	return []string{n.Name, state, n.Machine, n.Zone, n.Version, leaders, alarms, n.Message}
}

// writeRows aligns the columns. An empty cell is a dash, except in the last column.
func writeRows(text *strings.Builder, rows [][]string) {
	table := tabwriter.NewWriter(text, 0, 0, 3, ' ', 0)
	for _, row := range rows {
		for i, cell := range row[:len(row)-1] {
			row[i] = strings.ReplaceAll(cmp.Or(cell, "-"), "\t", " ")
		}
		line := strings.TrimRight(strings.Join(row, "\t"), "\t")
		_, _ = fmt.Fprintln(table, line) // A strings.Builder returns no error.
	}
	_ = table.Flush()
}

// age returns the time since a moment; empty when it is nil.
func age(since *metav1.Time) string {
	if since == nil || since.IsZero() {
		return ""
	}
	return duration.HumanDuration(time.Since(since.Time))
}

// prefixed returns a text with a prefix; empty when the text is.
func prefixed(prefix, text string) string {
	if text == "" {
		return ""
	}
	return prefix + text
}
