// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"fmt"
	"strconv"
	"strings"
)

// Reasons to refuse a version, which go to the conditions Ready and UpgradeBlocked.
const (
	reasonDowngrade      = "Downgrade"
	reasonVersionSkipped = "VersionSkipped"
	reasonFlagsDisabled  = "FeatureFlagsDisabled"
)

// version of a broker, as far as upgrades depend on it.
type version struct{ major, minor, patch int }

// parseVersion parses 1.2.3, v1.2.3 and 1.2.3-rc.1; false for anything else, such as a digest or the tag latest.
func parseVersion(text string) (version, bool) {
	text, _, _ = strings.Cut(strings.TrimPrefix(text, "v"), "+")
	text, _, _ = strings.Cut(text, "-")
	parts := strings.Split(text, ".")
	if len(parts) != 3 {
		return version{}, false
	}
	var numbers [3]int
	for i, part := range parts {
		number, err := strconv.ParseUint(part, 10, 16)
		if err != nil {
			return version{}, false
		}
		numbers[i] = int(number)
	}
	return version{numbers[0], numbers[1], numbers[2]}, true
}

func (v version) isBefore(w version) bool {
	switch {
	case v.major != w.major:
		return v.major < w.major
	case v.minor != w.minor:
		return v.minor < w.minor
	}
	return v.patch < w.patch
}

// versionRefusal is why a version is refused; the zero value when it is not.
type versionRefusal struct{ reason, message string }

// decideVersion decides whether a cluster whose nodes all run one version may change to another. disabled are its stable
// feature flags that are not enabled.
//
//	from or to is not a version (a digest, "dev")        | allowed: the order is unknown
//	to is lower than from                                | Downgrade
//	to is another patch of the same minor version        | allowed
//	to is the next minor or major version, flags enabled | allowed
//	to is the next minor or major version, flags missing | FeatureFlagsDisabled
//	to is any later version                              | VersionSkipped
//
// from is the version of the cluster when it was last complete. Going back in the middle of a roll is no downgrade, because
// feature flags are enabled only after it.
func decideVersion(from, to string, disabled []string) versionRefusal {
	a, known := parseVersion(from)
	b, too := parseVersion(to)
	switch {
	case !known || !too || a == b:
		return versionRefusal{}
	case b.isBefore(a):
		return versionRefusal{reasonDowngrade, fmt.Sprintf("the cluster runs %s; the older version %s cannot read all of its data", from, to)}
	case a.major == b.major && a.minor == b.minor:
		return versionRefusal{}
	case b.major > a.major+1 || (b.major == a.major && b.minor > a.minor+1) || (b.major == a.major+1 && b.minor > 0):
		return versionRefusal{reasonVersionSkipped, fmt.Sprintf("the upgrade from %s to %s skips versions; upgrade to each minor version in between, and to .0 of the next major version", from, to)}
	case len(disabled) > 0:
		return versionRefusal{reasonFlagsDisabled, fmt.Sprintf("%s may need feature flags that are disabled; enable them first: %s", to, strings.Join(firstFew(disabled), ", "))}
	}
	return versionRefusal{}
}
