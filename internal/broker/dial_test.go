// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"errors"
	"net"
	"os"
	"testing"
)

func TestDialIsRepeatedAfterATimeoutOnly(t *testing.T) {
	timeout := &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}
	refused := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	cases := map[string]struct {
		ctx     context.Context
		answers []error
		calls   int
		ok      bool
	}{
		"at once":          {context.Background(), []error{nil}, 1, true},
		"after a timeout":  {context.Background(), []error{timeout, timeout, nil}, 3, true},
		"always a timeout": {context.Background(), []error{timeout, timeout, timeout, nil}, 3, false},
		"refused":          {context.Background(), []error{refused, nil}, 1, false},
		"caller has left":  {ended, []error{timeout, nil}, 1, false},
	}
	for name, c := range cases {
		calls := 0
		dial := again(func(context.Context, string, string) (net.Conn, error) {
			calls++
			return nil, c.answers[calls-1]
		})
		_, err := dial(c.ctx, "tcp", "x:1")
		if calls != c.calls || (err == nil) != c.ok {
			t.Errorf("%s: %d calls, %v", name, calls, err)
		}
	}
}
