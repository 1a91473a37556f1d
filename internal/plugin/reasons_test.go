// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// TestEveryReasonOfARollIsExplained: the reasons belong to the operator, which the plugin does not link.
func TestEveryReasonOfARollIsExplained(t *testing.T) {
	constant := regexp.MustCompile(`(?m)^\treason\w+\s+= "(\w+)"$`)
	found := 0
	for _, file := range []string{"decide_roll.go", "decide_step.go"} {
		text, err := os.ReadFile(filepath.Join("..", "..", "controllers", "brokercluster", file))
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range constant.FindAllSubmatch(text, -1) {
			found++
			if rollReasons[string(match[1])] == "" {
				t.Errorf("%s: the reason %s has no explanation", file, match[1])
			}
		}
	}
	if found != len(rollReasons) {
		t.Errorf("the operator has %d reasons, the plugin explains %d", found, len(rollReasons))
	}
}
