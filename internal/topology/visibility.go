// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"errors"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"posthorn.io/posthorn/internal/broker"
)

const (
	// maxInvisible is how long an accepted change may be missing from the broker's answers. Each request may reach
	// another node, and a loaded node applies the metadata log with a delay.
	maxInvisible = 30 * time.Second
	// recheckChange is the least time between two checks of an accepted change, maxRecheckChange the most. The time grows,
	// so that the checks of many changes do not keep a loaded broker from catching up.
	recheckChange    = 500 * time.Millisecond
	maxRecheckChange = 4 * time.Second
)

// Invisible is an answer that does not show a change which the broker has just accepted.
type Invisible struct{ Err error }

func (i *Invisible) Error() string { return i.Err.Error() }
func (i *Invisible) Unwrap() error { return i.Err }

// awaitChange turns an answer without this pass's own change into a Pending, and after maxInvisible into a Refusal.
// It returns other errors unchanged.
func (a *attempt[T]) awaitChange(err error) error {
	var invisible *Invisible
	if !broker.IsNotFound(err) && !errors.As(err, &invisible) {
		return err
	}
	now := a.Now()
	since := now
	if first, loaded := a.invisible.LoadOrStore(client.ObjectKeyFromObject(a.object), now); loaded {
		since, _ = first.(time.Time)
	}
	if now.Sub(since) > maxInvisible {
		return Refuse(ReasonChangeNotVisible, "the broker accepted the change but has not shown it for %s; check that all its nodes are online: %v", maxInvisible, err)
	}
	message := fmt.Sprintf("the broker accepted the change and does not show it yet: %v", err)
	return &Pending{Reason: ReasonChangePending, Message: message, RetryAfter: min(max(recheckChange, now.Sub(since)), maxRecheckChange)}
}

// changeSeen ends the wait that awaitChange began.
func (r *Reconciler[T]) changeSeen(key client.ObjectKey) { r.invisible.Delete(key) }
