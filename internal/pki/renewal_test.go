// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"bytes"
	"testing"
	"time"
)

// material of a new CA, as Advance creates it from nothing.
func material(t *testing.T, now time.Time) (Pair, Material) {
	t.Helper()
	authority, err := NewAuthority("c", now)
	if err != nil {
		t.Fatal(err)
	}
	m, err := Advance(Material{}, authority, wanted, now)
	if err != nil {
		t.Fatal(err)
	}
	return authority, m
}

func TestJudgeFollowsItsTable(t *testing.T) {
	start := time.Now()
	_, good := material(t, start)
	_, other := material(t, start)
	end := start.Add(wanted.Lifetime)
	more := wanted
	more.Hosts = append([]string{"mq.example.com"}, hosts...)
	cases := map[string]struct {
		m    Material
		leaf Leaf
		now  time.Time
		want Need
	}{
		"new":                  {good, wanted, start, Nothing},
		"long before":          {good, wanted, end.Add(-wanted.RenewBefore - day), Nothing},
		"a year before":        {good, wanted, end.Add(-wanted.RenewBefore), Renew},
		"at its end":           {good, wanted, end, Replace},
		"another host":         {good, more, start, Renew},
		"no certificate":       {Material{Trusted: good.Trusted}, wanted, start, Replace},
		"nobody trusts it":     {Material{Pair: good.Pair}, wanted, start, Replace},
		"another trusted":      {Material{Trusted: other.Trusted, Pair: good.Pair}, wanted, start, Replace},
		"one of two trusted":   {Material{Trusted: append(bytes.Clone(other.Trusted), good.Trusted...), Pair: good.Pair}, wanted, start, Nothing},
		"somebody else's key":  {Material{Trusted: good.Trusted, Pair: Pair{Cert: good.Cert, Key: other.Key}}, wanted, start, Replace},
		"ended and not needed": {good, wanted, end.Add(year), Replace},
	}
	for name, c := range cases {
		if got, _ := Judge(c.m, c.leaf, c.now); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestNewCAIsTrustedBeforeItSigns(t *testing.T) {
	start := time.Now()
	old, m := material(t, start)
	due := start.Add(wanted.Lifetime - wanted.RenewBefore)
	successor, err := NewAuthority("c", due)
	if err != nil {
		t.Fatal(err)
	}
	step := func(now time.Time) Material {
		t.Helper()
		next, err := Advance(m, successor, wanted, now)
		if err != nil {
			t.Fatal(err)
		}
		return next
	}
	if next := step(due.Add(-day)); !bytes.Equal(next.Trusted, m.Trusted) || !bytes.Equal(next.Cert, m.Cert) {
		t.Fatal("a good certificate was touched")
	}
	m = step(due)
	if !hasCertificate(m.Trusted, old.Cert) || !hasCertificate(m.Trusted, successor.Cert) || !m.TrustedSince.Equal(due) {
		t.Fatal("both authorities are to be trusted")
	}
	if _, err := Check(old.Cert, m.Pair, hosts); err != nil {
		t.Fatal("the certificate is still the old authority's:", err)
	}
	if again := step(due.Add(wanted.Settle - time.Second)); !bytes.Equal(again.Cert, m.Cert) {
		t.Fatal("signed before everybody could know the authority")
	}
	m = step(due.Add(wanted.Settle))
	if _, err := Check(successor.Cert, m.Pair, hosts); err != nil {
		t.Fatal("the certificate is the successor's:", err)
	}
	if !hasCertificate(m.Trusted, old.Cert) {
		t.Fatal("nodes that still show the old certificate are trusted")
	}
	m = step(start.Add(AuthorityLifetime + day))
	if hasCertificate(m.Trusted, old.Cert) {
		t.Fatal("an authority that has ended is trusted")
	}
}

func TestUnusableCertificateIsReplacedAtOnce(t *testing.T) {
	now := time.Now()
	_, m := material(t, now)
	other, _ := material(t, now)
	m.Key = nil
	next, err := Advance(m, other, wanted, now)
	if err != nil {
		t.Fatal(err)
	}
	if need, _ := Judge(next, wanted, now); need != Nothing {
		t.Fatal(need)
	}
	if !bytes.Contains(next.Trusted, bytes.TrimSpace(m.Trusted)) {
		t.Fatal("others still show what the first authority signed")
	}
}

func TestSameCAAddsNamesAtOnce(t *testing.T) {
	now := time.Now()
	authority, m := material(t, now)
	more := wanted
	more.Hosts = append([]string{"mq.example.com"}, hosts...)
	next, err := Advance(m, authority, more, now)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Check(next.Trusted, next.Pair, more.Hosts); err != nil {
		t.Fatal(err)
	}
}

func TestNeedsAuthorityBeforeTheCAExpires(t *testing.T) {
	now := time.Now()
	authority, m := material(t, now)
	last := now.Add(AuthorityLifetime - AuthorityRenewBefore)
	if NeedsAuthority(authority, last.Add(-day)) || !NeedsAuthority(authority, last) || !NeedsAuthority(Pair{}, now) {
		t.Error("wrong at the edge")
	}
	if !NeedsAuthority(Pair{Cert: authority.Cert, Key: m.Key}, now) {
		t.Error("a key that does not fit was taken")
	}
}

func TestInspectDescribesTheCertificate(t *testing.T) {
	now := time.Now()
	authority, m := material(t, now)
	given, err := Inspect(m.Pair)
	if err != nil || given.NotAfter.Before(now.Add(wanted.Lifetime-time.Hour)) {
		t.Fatal(given, err)
	}
	for host, want := range map[string]bool{
		"localhost": true, "LocalHost": true, "c-0.c-nodes.ns.svc": true, "*.c-nodes.ns.svc": true,
		"c-nodes.ns.svc": false, "a.b.c-nodes.ns.svc": false, "other": false, "": false,
	} {
		if given.Names(host) != want {
			t.Errorf("%q: %v", host, !want)
		}
	}
	for name, bad := range map[string]Pair{
		"empty": {}, "garbage": {Cert: []byte("x"), Key: []byte("y")}, "other key": {Cert: m.Cert, Key: authority.Key},
	} {
		if _, err := Inspect(bad); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	if HoldsCertificate(nil) || HoldsCertificate(m.Key) || !HoldsCertificate(m.Trusted) {
		t.Error("authorities")
	}
}
