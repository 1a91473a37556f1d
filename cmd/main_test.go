// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	o, err := parse(nil)
	if err != nil || o.resync != time.Minute || o.namespace != "" || o.leaderElection {
		t.Errorf("defaults: %+v %v", o, err)
	}
	o, err = parse([]string{"--watch-namespace=a", "--leader-elect", "--resync-period=5s"})
	if err != nil || o.namespace != "a" || !o.leaderElection || o.resync != 5*time.Second {
		t.Errorf("given: %+v %v", o, err)
	}
	for _, bad := range []string{"--resync-period=0s", "--forget-timeout=-1s", "--resync-period=often", "--nonsense"} {
		if _, err := parse([]string{bad}); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", bad, err)
		}
	}
	if _, err := parse([]string{"surplus"}); err == nil {
		t.Error("an argument that is no flag was taken")
	}
}
