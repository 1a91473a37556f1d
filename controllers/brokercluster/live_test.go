// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"slices"
	"testing"

	"posthorn.io/posthorn/internal/broker"
)

// someKeys are keys of a broker.
var someKeys = settingKeys{
	{Key: "advertised_nodes.*", Live: true}, {Key: "heartbeat", Default: "60", Live: true}, {Key: "frame_max", Default: "131072"},
}

func TestDecideRevision(t *testing.T) {
	running := revisionFacts{Runs: true, OnlySettings: true, Mounted: true, Keys: someKeys, Changed: []string{"heartbeat"}}
	with := func(change func(*revisionFacts)) revisionFacts {
		facts := running
		change(&facts)
		return facts
	}
	for name, c := range map[string]struct {
		facts revisionFacts
		want  revisionDecision
	}{
		"a live setting changed":             {running, revisionReload},
		"nothing runs":                       {with(func(f *revisionFacts) { f.Runs = false }), revisionRestart},
		"the pod template has the settings":  {with(func(f *revisionFacts) { f.SameSettings = true }), revisionRestart},
		"the image changes too":              {with(func(f *revisionFacts) { f.OnlySettings = false }), revisionRestart},
		"a pod does not mount the settings":  {with(func(f *revisionFacts) { f.Mounted = false }), revisionRestart},
		"the live settings have them":        {with(func(f *revisionFacts) { f.Accepted, f.Keys = true, nil }), revisionLoaded},
		"loaded, but the image changes now":  {with(func(f *revisionFacts) { f.Accepted, f.OnlySettings = true, false }), revisionRestart},
		"another setting changed too":        {with(func(f *revisionFacts) { f.Changed = []string{"frame_max", "heartbeat"} }), revisionRestart},
		"no node answers":                    {with(func(f *revisionFacts) { f.Keys = nil }), revisionRestart},
		"the broker does not know the key":   {with(func(f *revisionFacts) { f.Changed = []string{"newer"} }), revisionRestart},
		"a removed setting has a default":    {with(func(f *revisionFacts) { f.Removed = []string{"heartbeat"} }), revisionReload},
		"a setting of a pattern was added":   {with(func(f *revisionFacts) { f.Changed = []string{"advertised_nodes.a.amqp"} }), revisionReload},
		"a pattern alone is no setting":      {with(func(f *revisionFacts) { f.Changed = []string{"advertised_nodes."} }), revisionRestart},
		"a setting of a pattern was removed": {with(func(f *revisionFacts) { f.Changed = []string{"advertised_nodes.a.amqp"}; f.Removed = f.Changed }), revisionRestart},
	} {
		if got := decideRevision(c.facts); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func TestChangedKeysAreOfEitherSide(t *testing.T) {
	got := changedKeys(map[string]string{"a": "1", "b": "1", "d": "1"}, map[string]string{"b": "2", "c": "1", "d": "1"})
	if !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Error(got)
	}
	file := formatSettings(map[string]string{"b": "x = y", "a": "1"})
	if file != "a = 1\nb = x = y\n" || parseSettings(file)["b"] != "x = y" {
		t.Error(file)
	}
}

func TestPendingSettings(t *testing.T) {
	live := map[string]string{"heartbeat": "40", "advertised_nodes.c-0.stream": "h:1"}
	base := map[string]string{"heartbeat": "30", "channel_max": "9", "frame_max": "9000"}
	file := "/etc/posthorn/conf.d/" + liveConfigKey + ":1"
	for name, c := range map[string]struct {
		node []broker.Setting
		want []string
	}{
		"the node has all": {[]broker.Setting{
			{Key: "heartbeat", Value: "40", Source: file, Live: true}, {Key: "channel_max", Value: "9", Live: true},
			{Key: "advertised_nodes.c-0.stream", Value: "h:1", Live: true},
		}, nil},
		"an older value, and a missing setting": {[]broker.Setting{{Key: "heartbeat", Value: "30", Live: true}}, []string{"advertised_nodes.c-0.stream", "heartbeat"}},
		"a setting that left the file": {[]broker.Setting{
			{Key: "heartbeat", Value: "40", Live: true}, {Key: "advertised_nodes.c-0.stream", Value: "h:1", Live: true},
			{Key: "stream.heartbeat", Value: "1", Source: file, Live: true},
		}, []string{"stream.heartbeat"}},
		"values that no file changes, and that no reload applies": {[]broker.Setting{
			{Key: "heartbeat", Value: "1", Source: "environment POSTHORN_HEARTBEAT", Live: true},
			{Key: "channel_max", Value: "1", Source: "--set channel_max", Live: true}, {Key: "frame_max", Value: "1"},
			{Key: "advertised_nodes.c-0.stream", Value: "h:1", Live: true},
		}, nil},
		"a default that nothing sets": {[]broker.Setting{
			{Key: "heartbeat", Value: "40", Live: true}, {Key: "advertised_nodes.c-0.stream", Value: "h:1", Live: true},
			{Key: "log.level", Value: "info", Source: "default", Live: true},
		}, nil},
	} {
		got := pendingSettings(c.node, live, base)
		slices.Sort(got)
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
