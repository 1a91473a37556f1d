// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"reflect"
	"testing"

	"posthorn.io/posthorn/internal/broker"
)

func TestDecideVersionFollowsItsTable(t *testing.T) {
	cases := []struct {
		from, to string
		disabled []string
		want     string
	}{
		{"", "1.0.0", nil, ""},
		{"1.0.0", "", nil, ""},
		{"dev", "1.0.0", []string{"f"}, ""},
		{"1.0.0", "sha256:77", []string{"f"}, ""},
		{"1.0.0", "latest", nil, ""},
		{"1.0.0", "1.0.0", []string{"f"}, ""},
		{"v1.0.0", "1.0.0-rc.1", nil, ""},
		{"1.0.5", "1.0.9", []string{"f"}, ""},
		{"1.0.5", "1.0.4", nil, reasonDowngrade},
		{"1.1.0", "1.0.9", nil, reasonDowngrade},
		{"2.0.0", "1.9.9", nil, reasonDowngrade},
		{"1.0.5", "1.1.0", nil, ""},
		{"1.0.5", "1.1.7", nil, ""},
		{"1.0.5", "1.1.0", []string{"f"}, reasonFlagsDisabled},
		{"1.0.5", "1.2.0", nil, reasonVersionSkipped},
		{"1.4.0", "2.0.3", nil, ""},
		{"1.4.0", "2.0.0", []string{"f"}, reasonFlagsDisabled},
		{"1.4.0", "2.1.0", nil, reasonVersionSkipped},
		{"1.4.0", "3.0.0", nil, reasonVersionSkipped},
	}
	for _, c := range cases {
		if got := decideVersion(c.from, c.to, c.disabled); got.reason != c.want || (got.message == "") != (c.want == "") {
			t.Errorf("%s to %s with %v: %+v, want %q", c.from, c.to, c.disabled, got, c.want)
		}
	}
}

func TestDecideFlagsFollowsItsTable(t *testing.T) {
	all := []broker.FeatureFlag{
		{Name: "on", State: broker.FlagEnabled, Stability: broker.FlagStable},
		{Name: "off", State: broker.FlagDisabled, Stability: broker.FlagStable},
		{Name: "other", State: broker.FlagDisabled, Stability: broker.FlagStable},
		{Name: "must", State: broker.FlagDisabled, Stability: broker.FlagRequired},
		{Name: "trial", State: broker.FlagDisabled, Stability: broker.FlagExperimental},
		{Name: "unknown-somewhere", State: broker.FlagUnavailable, Stability: broker.FlagStable},
		{Name: "on-its-way", State: "state_changing", Stability: broker.FlagStable},
	}
	cases := []struct {
		name    string
		manual  bool
		exclude []string
		want    flagPlan
	}{
		{"all stable ones", false, nil, flagPlan{Enable: []string{"must", "off", "other"}, Waiting: []string{"on-its-way", "unknown-somewhere"}, Disabled: []string{"must", "off", "on-its-way", "other", "unknown-somewhere"}, Enabled: 1}},
		{"but those excluded", false, []string{"other", "nonsense", "on-its-way"}, flagPlan{Enable: []string{"must", "off"}, Waiting: []string{"unknown-somewhere"}, Disabled: []string{"must", "off", "on-its-way", "other", "unknown-somewhere"}, Enabled: 1}},
		{"by hand", true, nil, flagPlan{Disabled: []string{"must", "off", "on-its-way", "other", "unknown-somewhere"}, Enabled: 1}},
	}
	for _, c := range cases {
		if got := decideFlags(c.manual, c.exclude, all); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
}
