// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	o, err := parse(nil)
	if err != nil || o.resync != time.Minute || len(o.namespaces) != 0 || o.leaderElection {
		t.Errorf("defaults: %+v %v", o, err)
	}
	o, err = parse([]string{"--watch-namespaces=a,b-2", "--leader-elect", "--resync-period=5s"})
	if err != nil || !slices.Equal(o.namespaces, []string{"a", "b-2"}) || !o.leaderElection || o.resync != 5*time.Second {
		t.Errorf("given: %+v %v", o, err)
	}
	for _, bad := range []string{"--resync-period=0s", "--forget-timeout=-1s", "--resync-period=often", "--nonsense",
		"--watch-namespaces=a,", "--watch-namespaces=a,b,a", "--watch-namespaces=a, b", "--watch-namespaces=A", "--watch-namespaces=a/b"} {
		if _, err := parse([]string{bad}); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", bad, err)
		}
	}
	if _, err := parse([]string{"surplus"}); err == nil {
		t.Error("an argument that is no flag was taken")
	}
}

func TestConvertReadsFilesOrTheStandardInput(t *testing.T) {
	const manifest = "apiVersion: rabbitmq.com/v1beta1\nkind: Exchange\nmetadata: {name: NAME}\nspec: {name: NAME, rabbitmqClusterReference: {name: c}}\n"
	of := func(name string) string { return strings.ReplaceAll(manifest, "NAME", name) }
	var out strings.Builder
	if err := convertFiles(nil, strings.NewReader(of("from-input")), &out); err != nil || !strings.Contains(out.String(), "name: from-input") {
		t.Errorf("%v: %s", err, out.String())
	}
	var files []string
	for _, name := range []string{"one", "two"} {
		files = append(files, filepath.Join(t.TempDir(), name+".yaml"))
		if err := os.WriteFile(files[len(files)-1], []byte(of(name)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out.Reset()
	if err := convertFiles(files, strings.NewReader(of("from-input")), &out); err != nil || !strings.Contains(out.String(), "name: one") ||
		!strings.Contains(out.String(), "name: two") || strings.Contains(out.String(), "from-input") {
		t.Errorf("%v: %s", err, out.String())
	}
	for _, bad := range []string{"--help", "no-such-file.yaml"} {
		if err := convertFiles([]string{bad}, nil, &out); err == nil || !strings.Contains(err.Error(), bad) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
