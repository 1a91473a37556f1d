// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"fmt"
	"strconv"
	"strings"
)

// Reasons to refuse a version; they go to the conditions Ready and UpgradeBlocked.
const (
	reasonDowngrade      = "Downgrade"
	reasonVersionSkipped = "VersionSkipped"
	reasonFlagsDisabled  = "FeatureFlagsDisabled"
)

// version of a broker, as far as upgrades care.
type version struct{ major, minor, patch int }

// parseVersion reads 1.2.3, v1.2.3 and 1.2.3-rc.1; false when it is something else, such as a digest
// or a tag like latest.
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

func (v version) before(w version) bool {
	switch {
	case v.major != w.major:
		return v.major < w.major
	case v.minor != w.minor:
		return v.minor < w.minor
	}
	return v.patch < w.patch
}

// versionRefusal is why a version is not run; the zero value when it may be.
type versionRefusal struct{ reason, message string }

// decideVersion says whether a cluster whose nodes all run one version may go to another. disabled
// are its stable feature flags that are not enabled.
//
//	from or to is not a version (a digest, "dev")        | allowed: it cannot be told
//	to is lower than from                                | Downgrade
//	to is another patch of the same minor version        | allowed
//	to is the next minor or major version, flags enabled | allowed
//	to is the next minor or major version, flags missing | FeatureFlagsDisabled
//	to is further away                                   | VersionSkipped
//
// From is what the cluster ran when it was last complete: going back in the middle of a roll is no
// downgrade, since flags are only enabled after it.
func decideVersion(from, to string, disabled []string) versionRefusal {
	a, known := parseVersion(from)
	b, too := parseVersion(to)
	switch {
	case !known || !too || a == b:
		return versionRefusal{}
	case b.before(a):
		return versionRefusal{reasonDowngrade, fmt.Sprintf("the cluster runs %s; %s is older and cannot read all that it has written", from, to)}
	case a.major == b.major && a.minor == b.minor:
		return versionRefusal{}
	case b.major > a.major+1 || (b.major == a.major && b.minor > a.minor+1) || (b.major == a.major+1 && b.minor > 0):
		return versionRefusal{reasonVersionSkipped, fmt.Sprintf("from %s to %s versions are left out; upgrade to each minor version in between, and to .0 of the next major one", from, to)}
	case len(disabled) > 0:
		return versionRefusal{reasonFlagsDisabled, fmt.Sprintf("%s may need feature flags that are disabled: %s", to, strings.Join(firstFew(disabled), ", "))}
	}
	return versionRefusal{}
}
