// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

const root = "../.."

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// variable returns the expression of a variable of a policy.
func variable(t *testing.T, file, policy, name string) string {
	t.Helper()
	for _, text := range strings.Split(read(t, "config/admission/"+file), "\n---\n") {
		var object admissionv1.ValidatingAdmissionPolicy
		if err := yaml.Unmarshal([]byte(text), &object); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if object.Kind != "ValidatingAdmissionPolicy" || object.Name != policy {
			continue
		}
		for _, v := range object.Spec.Variables {
			if v.Name == name {
				return v.Expression
			}
		}
	}
	t.Fatalf("%s: policy %s has no variable %s", file, policy, name)
	return ""
}

var (
	literal = regexp.MustCompile(`'([^']+)'`)
	// keyOfMap matches a key of a CEL map, at its start or after a comma.
	keyOfMap = regexp.MustCompile(`'([^']+)':`)
	// keyOfBroker matches an entry of the broker's table of policy keys.
	keyOfBroker = regexp.MustCompile(`\bkey\(\s*"([^"]+)",\s*"[^"]+",\s*([A-Za-z]+)(?:\(([^)]*)\))?,?\s*\)((?:\s*\.[a-z_]+\([^)]*\))*)`)
	quoted      = regexp.MustCompile(`"([^"]+)"`)
	settingRow  = regexp.MustCompile("(?m)^\\| `([^`]+)` \\|")
)

func all(expression *regexp.Regexp, text string) []string {
	var out []string
	for _, match := range expression.FindAllStringSubmatch(text, -1) {
		out = append(out, match[1])
	}
	slices.Sort(out)
	return out
}

func sameSet(t *testing.T, what string, got, want []string) {
	t.Helper()
	slices.Sort(got)
	slices.Sort(want)
	if len(want) == 0 || !slices.Equal(got, want) {
		t.Errorf("%s: the admission policy has\n%v\nand the broker\n%v", what, got, want)
	}
}

// TestSettingsAreTheBrokers compares with the reference, which a test of the broker generates from its table of
// settings.
func TestSettingsAreTheBrokers(t *testing.T) {
	var keys, prefixes []string
	for _, name := range all(settingRow, read(t, "docs/reference/configuration.md")) {
		if prefix, isPattern := strings.CutSuffix(name, "*"); isPattern {
			prefixes = append(prefixes, prefix)
		} else {
			keys = append(keys, name)
		}
	}
	sameSet(t, "settings", all(literal, variable(t, "configuration.yaml", "configuration.posthorn.io", "keys")), keys)
	sameSet(t, "settings with any name", all(literal, variable(t, "configuration.yaml", "configuration.posthorn.io", "prefixes")), prefixes)
}

// TestListenersAreTheBrokers compares with the listeners of the protocols that the broker registers.
func TestListenersAreTheBrokers(t *testing.T) {
	const registrations = "broker/crates/posthorn/src/protocols.rs"
	pair := regexp.MustCompile(`listener_names(?:\(&self\) -> \[&'static str; 2\] \{\s*|: )\["([^"]+)", "([^"]+)"\]`)
	var listeners []string
	collect := func(source string) {
		for _, match := range pair.FindAllStringSubmatch(source, -1) {
			listeners = append(listeners, match[1], match[2])
		}
	}
	source := read(t, registrations)
	collect(source)
	for _, crate := range all(regexp.MustCompile(`(?m)^use (session_[a-z0-9]+)::`), source) {
		files, err := filepath.Glob(filepath.Join(root, "broker/crates", strings.ReplaceAll(crate, "_", "-"), "src/*.rs"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s has no sources: %v", crate, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			collect(string(text))
		}
	}
	slices.Sort(listeners)
	sameSet(t, "listeners", all(literal, variable(t, "configuration.yaml", "configuration.posthorn.io", "listeners")), slices.Compact(listeners))
}

func TestPolicyKeysAreTheBrokers(t *testing.T) {
	const file, policy = "policies.yaml", "policies.posthorn.io"
	source := read(t, "broker/crates/metadata/src/policy_keys.rs")
	table := source[strings.Index(source, "const KEYS"):strings.Index(source, "fn find")]
	var integers, choices, texts, ages, operators, values []string
	unsupported := map[string][]string{}
	for _, match := range keyOfBroker.FindAllStringSubmatch(table, -1) {
		name, takes, arguments, rest := match[1], match[2], match[3], match[4]
		switch takes {
		case "AtLeast":
			integers = append(integers, name+" "+arguments)
		case "Between":
			least, _, _ := strings.Cut(arguments, ",")
			integers = append(integers, name+" "+least)
		case "OneOf":
			choices = append(choices, name)
			values = append(values, all(quoted, arguments)...)
		case "Text":
			texts = append(texts, name)
		case "MaxAge":
			ages = append(ages, name)
		default:
			t.Errorf("%s takes %s, which this test does not know", name, takes)
		}
		if strings.Contains(rest, ".operator(") {
			operators = append(operators, name)
		}
		if _, types, found := strings.Cut(rest, ".unsupported_by(&["); found {
			types, _, _ = strings.Cut(types, "]")
			for _, each := range strings.Split(types, ", ") {
				unsupported[each] = append(unsupported[each], name)
			}
		}
	}
	if found := strings.Count(table, "key("); found != len(integers)+len(choices)+len(texts)+len(ages) {
		t.Errorf("%d keys in the table, %d understood", found, len(integers)+len(choices)+len(texts)+len(ages))
	}
	var least []string
	for _, match := range regexp.MustCompile(`'([^']+)': (-?[0-9]+)`).FindAllStringSubmatch(variable(t, file, policy, "least"), -1) {
		least = append(least, match[1]+" "+match[2])
	}
	sameSet(t, "integers", least, integers)
	words := variable(t, file, policy, "choices")
	sameSet(t, "choices", all(keyOfMap, words), choices)
	sameSet(t, "words", slices.DeleteFunc(all(literal, words), func(word string) bool { return slices.Contains(choices, word) }), values)
	sameSet(t, "texts", all(literal, variable(t, file, policy, "texts")), texts)
	sameSet(t, "ages", all(literal, variable(t, file, policy, "ages")), ages)
	lists := variable(t, file, "ineffective-policies.posthorn.io", "unsupported")
	for kind, target := range map[string]string{"Classic": "classic_queues", "Quorum": "quorum_queues", "Stream": "streams"} {
		_, list, _ := strings.Cut(lists, "'"+target+"': [")
		list, _, _ = strings.Cut(list, "]")
		sameSet(t, "keys that "+target+" do not support", all(literal, list), unsupported[kind])
	}
	sameSet(t, "keys of operator policies", all(literal, variable(t, file, policy, "ofOperatorPolicies")), operators)
}

func TestArgumentsAreTheBrokers(t *testing.T) {
	const file, policy = "queues.yaml", "queues.posthorn.io"
	list := func(path string, starts ...string) []string {
		rest, found := read(t, path), false
		for _, start := range starts {
			if _, rest, found = strings.Cut(rest, start); !found {
				t.Fatalf("%s does not contain %q", path, start)
			}
		}
		inside, _, _ := strings.Cut(rest, "]")
		return all(quoted, inside)
	}
	// The descriptors of the queue types have the lists.
	descriptors := "broker/crates/ids/src/queue_type.rs"
	classic := list(descriptors, "static CLASSIC: QueueTypeDescriptor", "arguments: &[")
	quorum := list(descriptors, "static QUORUM: QueueTypeDescriptor", "arguments: &[")
	stream := list(descriptors, "static STREAM: QueueTypeDescriptor", "arguments: &[")
	ofTheSpec := all(literal, variable(t, file, policy, "ofTheSpec"))
	without := func(names []string, others ...string) []string {
		return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return slices.Contains(others, name) || slices.Contains(ofTheSpec, name) })
	}
	others := variable(t, file, policy, "others")
	_, lists, found := strings.Cut(others, "[")
	if !found {
		t.Fatalf("the variable others of %s has no list", file)
	}
	ofClassic, lists, _ := strings.Cut(lists, "'quorum'")
	ofQuorum, ofStream, _ := strings.Cut(lists, "'stream'")
	sameSet(t, "not of classic queues", all(literal, ofClassic), distinct(without(slices.Concat(quorum, stream), classic...)))
	sameSet(t, "not of quorum queues", all(literal, ofQuorum), distinct(without(slices.Concat(classic, stream), quorum...)))
	sameSet(t, "not of streams", all(literal, ofStream), distinct(without(slices.Concat(classic, quorum), stream...)))

	// A repeated declaration does not compare these three.
	every := distinct(slices.Concat(classic, quorum, stream, []string{"x-consumer-timeout", "x-quorum-target-group-size", "x-stream-filter-size-bytes"}))
	sameSet(t, "known arguments", all(literal, variable(t, file, "unknown-arguments.posthorn.io", "known")), slices.Clone(every))

	typed := slices.Concat(all(keyOfMap, variable(t, file, policy, "least")), all(keyOfMap, variable(t, file, policy, "choices")),
		all(literal, variable(t, file, policy, "texts")), all(literal, variable(t, file, policy, "ages")),
		all(literal, variable(t, file, policy, "booleans")), ofTheSpec)
	sameSet(t, "arguments with a type", typed, every)
}

// distinct returns the names in order, each once.
func distinct(names []string) []string {
	names = slices.Sorted(slices.Values(names))
	return slices.Compact(names)
}

// TestExchangeTypesAreTheBrokers compares the types in the schema of Exchange.
func TestExchangeTypesAreTheBrokers(t *testing.T) {
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.Unmarshal([]byte(read(t, "config/crd/bases/posthorn.io_exchanges.yaml")), &crd); err != nil {
		t.Fatal(err)
	}
	var types []string
	for _, value := range crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties["type"].Enum {
		types = append(types, strings.Trim(string(value.Raw), `"`))
	}
	source := read(t, "broker/crates/routing/src/lib.rs")
	_, names, _ := strings.Cut(source, "pub fn name(self) -> &'static str {")
	names, _, _ = strings.Cut(names, "/// Returns the kind")
	sameSet(t, "types of exchanges", types, all(regexp.MustCompile(`ExchangeType::[A-Za-z]+ => "([^"]+)"`), names))
}
