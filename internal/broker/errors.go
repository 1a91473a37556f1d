// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// APIError is an answer of the broker other than a success.
type APIError struct {
	// Status is the HTTP status code.
	Status int
	// Code is the member error of the answer, for example bad_request.
	Code string
	// Reason is the member reason of the answer: the broker's own message.
	Reason string
}

// Error returns the broker's message with the status.
func (e *APIError) Error() string {
	switch {
	case e.Reason != "":
		return fmt.Sprintf("broker answered %d: %s", e.Status, e.Reason)
	case e.Code != "":
		return fmt.Sprintf("broker answered %d: %s", e.Status, e.Code)
	}
	return fmt.Sprintf("broker answered %d %s", e.Status, http.StatusText(e.Status))
}

// UnexpectedAnswer is an answer that no broker gives: a redirect, or an answer that is not JSON. The address is that of
// another server, or of a proxy.
type UnexpectedAnswer struct {
	// Status is the HTTP status code; 0 for a success.
	Status int
	// Reason is the difference to a broker's answer.
	Reason string
}

// Error returns the difference and its remedy.
func (e *UnexpectedAnswer) Error() string {
	text := "the answer is not one of the management API"
	if e.Status != 0 {
		text = fmt.Sprintf("%s (%d %s)", text, e.Status, http.StatusText(e.Status))
	}
	return text + ": " + e.Reason + "; check the address"
}

// AnswerTooLarge is an answer that exceeds its limit.
type AnswerTooLarge struct {
	// Limit in bytes.
	Limit int
}

// Error returns the limit.
func (e *AnswerTooLarge) Error() string {
	return fmt.Sprintf("the answer is longer than %d bytes", e.Limit)
}

// IsUnexpected reports whether another server than a broker seems to have answered.
func IsUnexpected(err error) bool {
	var unexpected *UnexpectedAnswer
	return errors.As(err, &unexpected)
}

// IsTooLarge reports whether an answer exceeded its limit.
func IsTooLarge(err error) bool {
	var large *AnswerTooLarge
	return errors.As(err, &large)
}

// IsAnswer reports whether the broker answered at all.
func IsAnswer(err error) bool {
	var api *APIError
	return errors.As(err, &api)
}

// IsNotFound reports whether the broker answered that the object does not exist.
func IsNotFound(err error) bool {
	var api *APIError
	return errors.As(err, &api) && api.Status == http.StatusNotFound
}

// IsUnknownUser reports whether the broker refused to set permissions or limits because it does not know the user. It
// gives the same answer for an unknown vhost.
func IsUnknownUser(err error) bool {
	var api *APIError
	return errors.As(err, &api) && api.Status == http.StatusBadRequest &&
		(strings.Contains(api.Reason, "vhost_or_user_not_found") || strings.Contains(api.Reason, "no_such_user"))
}

// IsStillRunning reports whether the broker refused to forget a node because it runs. Stop it first.
func IsStillRunning(err error) bool {
	var api *APIError
	return errors.As(err, &api) && api.Status == http.StatusBadRequest && strings.Contains(api.Reason, "is running")
}

// IsUnauthorized reports whether the broker refused the operator's own credentials or rights.
func IsUnauthorized(err error) bool {
	var api *APIError
	return errors.As(err, &api) && api.Status == http.StatusUnauthorized && !api.isAboutObject()
}

// isAboutObject reports whether a 401 refuses an object, such as a reserved name, to everybody: whoever asks, the answer
// stays the same. The code not_authorised is also that of a user who lacks a tag or a permission.
func (e *APIError) isAboutObject() bool {
	if e.Status != http.StatusUnauthorized || e.Code != "not_authorised" {
		return false
	}
	lacksTag := strings.HasPrefix(e.Reason, "Not ") && strings.HasSuffix(e.Reason, " user")
	lacksAccess := strings.HasPrefix(e.Reason, "User not authorised to ")
	return e.Reason != "" && !lacksTag && !lacksAccess && !strings.Contains(e.Reason, " refused for user ")
}

// IsShutOut reports whether the operator's user has no permission in a vhost that somebody else created.
func IsShutOut(err error) bool {
	var api *APIError
	return errors.As(err, &api) && api.Status == http.StatusUnauthorized && strings.Contains(api.Reason, "access virtual host")
}

// IsUntrusted reports whether the node showed a certificate that the operator does not trust.
func IsUntrusted(err error) bool {
	var untrusted *tls.CertificateVerificationError
	return errors.As(err, &untrusted)
}

// IsTerminal reports whether a retry gives the same answer: a 4xx except for refused credentials or rights (which another
// reconciliation repairs), a timeout and too many requests.
func IsTerminal(err error) bool {
	var api *APIError
	if !errors.As(err, &api) {
		return false
	}
	switch api.Status {
	case http.StatusUnauthorized:
		return api.isAboutObject()
	case http.StatusRequestTimeout, http.StatusTooManyRequests:
		return false
	}
	return api.Status >= 400 && api.Status < 500
}
