// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"posthorn.io/posthorn/internal/broker"
)

// Refusal ends an attempt; trying again gives the same until something changes.
type Refusal struct {
	Reason  string
	Message string
}

func (r *Refusal) Error() string { return r.Message }

// Refuse makes a Refusal.
func Refuse(reason, format string, args ...any) error {
	return &Refusal{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// Pending ends an attempt that waits for something in Kubernetes which is being watched.
type Pending struct {
	Reason  string
	Message string
	// RetryAfter is when to try again where no watch tells; 0 is the resync period.
	RetryAfter time.Duration
}

func (p *Pending) Error() string { return p.Message }

// Wait makes a Pending.
func Wait(reason, format string, args ...any) error {
	return &Pending{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// Reasons of the condition Ready.
const (
	ReasonInSync             = "InSync"
	ReasonConflict           = "Conflict"
	ReasonNotAllowed         = "NotAllowed"
	ReasonClusterNotFound    = "ClusterNotFound"
	ReasonBrokerRefused      = "BrokerRefused"
	ReasonBrokerUnreachable  = "BrokerUnreachable"
	ReasonCredentialsRefused = "CredentialsRefused"
	ReasonImmutable          = "ImmutableChange"
	ReasonInvalid            = "Invalid"
	ReasonDeleting           = "Deleting"
	ReasonVhostNotFound      = "VhostNotFound"
	ReasonClusterHibernated  = "ClusterHibernated"
	// ReasonChangePending and ReasonChangeNotVisible: the broker accepted a change and its answers do not
	// show it, for a moment or for longer than maxInvisible.
	ReasonChangePending    = "ChangePending"
	ReasonChangeNotVisible = "ChangeNotVisible"
)

// class of a failure: its reason, and whether only a change can help.
type class struct {
	reason string
	// stalled: shown as Stalled; tried again with the resync, not at once.
	stalled bool
	// quiet: not an error to be logged and backed off from.
	quiet bool
}

func classify(err error) class {
	var refusal *Refusal
	var pending *Pending
	switch {
	case errors.As(err, &refusal):
		return class{refusal.Reason, true, true}
	case errors.As(err, &pending):
		return class{pending.Reason, false, true}
	case broker.IsUnauthorized(err):
		return class{ReasonCredentialsRefused, false, false}
	case broker.IsTerminal(err):
		return class{ReasonBrokerRefused, true, true}
	}
	return class{ReasonBrokerUnreachable, false, false}
}

// OneLine joins lines: kubectl cuts a column at the first line break.
func OneLine(text string) string {
	var lines []string
	for _, line := range strings.Split(text, "\n") {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "; ")
}
