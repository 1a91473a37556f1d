// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"encoding/json"
	"fmt"
	"reflect"
	"sort"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// Values decodes free-form values of a spec.
func Values(in map[string]apiextensionsv1.JSON) (map[string]any, error) {
	out := make(map[string]any, len(in))
	for name, raw := range in {
		var value any
		if err := json.Unmarshal(raw.Raw, &value); err != nil {
			return nil, Refuse(ReasonInvalid, "%s is not JSON: %v", name, err)
		}
		if value == nil {
			return nil, Refuse(ReasonInvalid, "%s has no value", name)
		}
		out[name] = value
	}
	return out, nil
}

// DifferentKeys lists the keys whose values differ, in order, each as prefix.key.
func DifferentKeys(prefix string, wanted, found map[string]any) []string {
	var out []string
	for key, value := range wanted {
		if !reflect.DeepEqual(plain(value), plain(found[key])) {
			out = append(out, prefix+"."+key)
		}
	}
	for key := range found {
		if _, known := wanted[key]; !known {
			out = append(out, prefix+"."+key)
		}
	}
	sort.Strings(out)
	return out
}

// plain converts numbers to float64, like decoded JSON.
func plain(value any) any {
	data, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprint(value)
	}
	var out any
	if err := json.Unmarshal(data, &out); err != nil {
		return fmt.Sprint(value)
	}
	return out
}
