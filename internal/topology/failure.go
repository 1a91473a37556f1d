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

// Refusal ends a reconciliation; a retry has the same result until something changes.
type Refusal struct {
	Reason  string
	Message string
}

func (r *Refusal) Error() string { return r.Message }

// Refuse returns a Refusal.
func Refuse(reason, format string, args ...any) error {
	return &Refusal{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// Pending ends a reconciliation that waits for an object in Kubernetes which a watch covers.
type Pending struct {
	Reason  string
	Message string
	// RetryAfter is the time of the retry when no watch covers the event; 0 is the resync period.
	RetryAfter time.Duration
}

func (p *Pending) Error() string { return p.Message }

// Wait returns a Pending.
func Wait(reason, format string, args ...any) error {
	return &Pending{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// RetryAfter sets the time after which a Pending is retried.
func RetryAfter(err error, delay time.Duration) error {
	var pending *Pending
	if errors.As(err, &pending) {
		pending.RetryAfter = delay
	}
	return err
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
	// ReasonUserNotFound and ReasonUserNotReady: a permission waits for its user.
	ReasonUserNotFound = "UserNotFound"
	ReasonUserNotReady = "UserNotReady"
	// ReasonNotEmpty: a vhost with queues is not deleted.
	ReasonNotEmpty          = "NotEmpty"
	ReasonClusterHibernated = "ClusterHibernated"
	// ReasonChangePending and ReasonChangeNotVisible: the broker accepted a change that its answers do not show yet,
	// or do not show after maxInvisible.
	ReasonChangePending    = "ChangePending"
	ReasonChangeNotVisible = "ChangeNotVisible"
	// ReasonUnexpectedAnswer and ReasonAnswerTooLarge: another server than a broker seems to answer.
	ReasonUnexpectedAnswer = "UnexpectedAnswer"
	ReasonAnswerTooLarge   = "AnswerTooLarge"
	// ReasonSecretNotFound and ReasonInvalidSecret: the connection Secret of an external broker.
	ReasonSecretNotFound = "SecretNotFound"
	ReasonInvalidSecret  = "InvalidSecret"
	// ReasonCertificateNotTrusted: the certificate of an external broker.
	ReasonCertificateNotTrusted = "CertificateNotTrusted"
)

// class of a failure: its reason, and whether only a change can help.
type class struct {
	reason string
	// stalled: sets the condition Stalled; the resync retries, and no back-off.
	stalled bool
	// quiet: no error to log, and no back-off.
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
	case broker.IsUnexpected(err):
		return class{ReasonUnexpectedAnswer, false, false}
	case broker.IsTooLarge(err):
		return class{ReasonAnswerTooLarge, false, false}
	}
	return class{ReasonBrokerUnreachable, false, false}
}

// classifyExternal is classify for an external broker. Only its connection Secret can repair credentials and
// certificates, and a watch covers the Secret.
func classifyExternal(err error) class {
	kind := classify(err)
	switch {
	case kind.reason == ReasonCredentialsRefused:
		return class{ReasonCredentialsRefused, true, true}
	case kind.reason == ReasonBrokerUnreachable && broker.IsUntrusted(err):
		return class{ReasonCertificateNotTrusted, true, true}
	}
	return kind
}

// isTerminal reports whether a retry has the same result.
func isTerminal(err error) bool {
	var refusal *Refusal
	return errors.As(err, &refusal) || broker.IsTerminal(err)
}

// OneLine joins lines, because kubectl cuts a column at the first line break.
func OneLine(text string) string {
	var lines []string
	for _, line := range strings.Split(text, "\n") {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "; ")
}
