// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

// Command podtemplate writes the schema of spec.podTemplate into the CustomResourceDefinition of BrokerCluster, so that
// the API server refuses unknown fields, values of a wrong type and fields that belong to the operator.
//
// controller-gen cannot write it. Its schema of a PodTemplateSpec requires the fields that a whole template has, whereas
// spec.podTemplate is a strategic merge patch: every field is optional, null removes a field, and an element of
// a list may carry the directive $patch. Descriptions are left out: with them the object would be too large for
// kubectl apply, which keeps a copy in an annotation of at most 256 KiB.
package main

import (
	"fmt"
	"log"
	"os"
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"
)

// schema is a node of an OpenAPI schema.
type schema = map[string]any

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: podtemplate FILE")
	}
	if err := rewrite(os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

// rewrite replaces the schema of spec.podTemplate in the file of a CustomResourceDefinition.
func rewrite(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("reading the CustomResourceDefinition: %w", err)
	}
	var crd map[string]any
	if err := yaml.Unmarshal(text, &crd); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	versions, _ := field(crd, "spec")["versions"].([]any)
	for _, each := range versions {
		version, _ := each.(map[string]any)
		node := field(version, "schema", "openAPIV3Schema", "properties", "spec", "properties", "podTemplate")
		if node == nil {
			return fmt.Errorf("%s: version %v has no spec.podTemplate", file, version["name"])
		}
		template := podTemplate()
		template["description"] = node["description"]
		clear(node)
		for key, value := range template {
			node[key] = value
		}
	}
	text, err = yaml.Marshal(crd)
	if err != nil {
		return fmt.Errorf("encoding the CustomResourceDefinition: %w", err)
	}
	if err := os.WriteFile(file, append([]byte("---\n"), text...), 0o644); err != nil { //nolint:gosec // manifests are public
		return fmt.Errorf("writing the CustomResourceDefinition: %w", err)
	}
	return nil
}

// field returns a nested object; nil when a step is missing.
func field(object map[string]any, path ...string) map[string]any {
	for _, name := range path {
		object, _ = object[name].(map[string]any)
	}
	return object
}

// enumerated are the values of string types that Kubernetes does not extend.
var enumerated = map[reflect.Type][]any{
	reflect.TypeFor[corev1.DNSPolicy]():                     {"ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"},
	reflect.TypeFor[corev1.MountPropagationMode]():          {"None", "HostToContainer", "Bidirectional"},
	reflect.TypeFor[corev1.PreemptionPolicy]():              {"PreemptLowerPriority", "Never"},
	reflect.TypeFor[corev1.Protocol]():                      {"TCP", "UDP", "SCTP"},
	reflect.TypeFor[corev1.PullPolicy]():                    {"Always", "Never", "IfNotPresent"},
	reflect.TypeFor[corev1.TaintEffect]():                   {"NoSchedule", "PreferNoSchedule", "NoExecute"},
	reflect.TypeFor[corev1.TerminationMessagePolicy]():      {"File", "FallbackToLogsOnError"},
	reflect.TypeFor[corev1.URIScheme]():                     {"HTTP", "HTTPS"},
	reflect.TypeFor[corev1.UnsatisfiableConstraintAction](): {"DoNotSchedule", "ScheduleAnyway"},
}

// special are types with a JSON form of their own.
var special = map[reflect.Type]schema{
	reflect.TypeFor[resource.Quantity](): {
		"anyOf": []any{schema{"type": "integer"}, schema{"type": "string"}}, "x-kubernetes-int-or-string": true,
		"pattern": `^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$`,
	},
	reflect.TypeFor[intstr.IntOrString](): {
		"anyOf": []any{schema{"type": "integer"}, schema{"type": "string"}}, "x-kubernetes-int-or-string": true,
	},
	reflect.TypeFor[metav1.Time](): {"type": "string", "format": "date-time"},
	// Other metadata of a template has no effect.
	reflect.TypeFor[metav1.ObjectMeta](): {
		"type": "object", "properties": schema{"annotations": textMap(), "labels": textMap()},
	},
}

// textMap has no null, so that no key of the operator can be removed.
func textMap() schema {
	return schema{"type": "object", "additionalProperties": schema{"type": "string"}, "maxProperties": 64}
}

// of returns the schema of a Go type in a strategic merge patch.
func of(t reflect.Type) schema {
	if found, is := special[t]; is {
		return copied(found)
	}
	if values, is := enumerated[t]; is {
		return schema{"type": "string", "enum": values}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return of(t.Elem())
	case reflect.Struct:
		properties := schema{"$patch": schema{"type": "string", "enum": []any{"delete", "replace", "merge"}}}
		addFields(properties, t)
		return schema{"type": "object", "properties": properties}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return schema{"type": "string", "format": "byte"}
		}
		return schema{"type": "array", "items": of(t.Elem())}
	case reflect.Map:
		return schema{"type": "object", "additionalProperties": nullable(of(t.Elem()))}
	case reflect.String:
		return schema{"type": "string"}
	case reflect.Bool:
		return schema{"type": "boolean"}
	case reflect.Int32:
		return schema{"type": "integer", "format": "int32"}
	case reflect.Int, reflect.Int64:
		return schema{"type": "integer", "format": "int64"}
	default:
		// A type that Kubernetes introduced later.
		log.Fatalf("no schema for %v", t)
		return nil
	}
}

// addFields adds the fields of a struct, those of embedded structs included.
func addFields(properties schema, t reflect.Type) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-":
		case name == "" && (f.Anonymous || strings.Contains(options, "inline")):
			addFields(properties, f.Type)
		default:
			properties[name] = nullable(of(f.Type))
		}
	}
}

// nullable lets null remove the field.
func nullable(s schema) schema {
	if _, is := s["enum"]; !is {
		s["nullable"] = true
	}
	return s
}

func copied(s schema) schema {
	out := schema{}
	for key, value := range s {
		switch value := value.(type) {
		case schema:
			out[key] = copied(value)
		default:
			out[key] = value
		}
	}
	return out
}

// rule returns a validation in CEL.
func rule(expression, message string) any {
	return schema{"rule": expression, "message": "spec.podTemplate must not change " + message}
}

// podTemplate returns the schema of spec.podTemplate. Lists that rules iterate over have a maximum length, which
// bounds the cost of the rules, and fields that rules read cannot be null.
func podTemplate() schema {
	template := of(reflect.TypeFor[corev1.PodTemplateSpec]())
	properties := field(template, "properties")
	delete(properties, "$patch")
	metadata, spec := field(properties, "metadata"), field(properties, "spec")
	delete(metadata, "nullable")
	metadata["x-kubernetes-validations"] = []any{
		rule("!has(self.labels) || !self.labels.exists(k, k in ['app.kubernetes.io/name', 'app.kubernetes.io/instance', 'app.kubernetes.io/managed-by', 'app.kubernetes.io/component'])",
			"the labels app.kubernetes.io/name, instance, managed-by and component: they select the pods"),
		rule("!has(self.annotations) || !self.annotations.exists(k, k.startsWith('posthorn.io/'))",
			"annotations that begin with posthorn.io/"),
	}
	delete(spec, "nullable")
	fields := field(spec, "properties")
	delete(fields, "$patch")
	// Pods of a StatefulSet have no ephemeral containers.
	delete(fields, "ephemeralContainers")
	var rules []any
	for _, name := range []string{"serviceAccountName", "serviceAccount", "restartPolicy", "hostname", "subdomain", "activeDeadlineSeconds"} {
		rules = append(rules, rule("!has(self."+name+")", name))
	}
	spec["x-kubernetes-validations"] = append(rules,
		rule("!has(self.volumes) || !self.volumes.exists(v, has(v.name) && v.name in ['config', 'data'])", "the volumes config and data"))
	bound(fields, "volumes", 128)
	bound(fields, "containers", 32)
	container := field(fields, "containers", "items")
	inside := field(container, "properties")
	bound(inside, "env", 256)
	bound(inside, "ports", 64)
	bound(inside, "volumeMounts", 128)
	for _, list := range []string{"env", "ports", "volumeMounts"} {
		item := field(inside, list, "items", "properties")
		for _, key := range []string{"name", "mountPath"} {
			if text := field(item, key); text != nil {
				delete(text, "nullable")
				text["maxLength"] = 1024
			}
		}
	}
	for _, name := range []string{"name", "image", "command", "args"} {
		delete(field(inside, name), "nullable")
	}
	field(inside, "name")["maxLength"] = 63
	name := field(fields, "volumes", "items", "properties", "name")
	delete(name, "nullable")
	name["maxLength"] = 63
	const isOther = "!has(self.name) || self.name != 'posthorn' || "
	container["x-kubernetes-validations"] = []any{
		rule(isOther+"!has(self.image)", "the broker's image (spec.image and spec.version set it)"),
		rule(isOther+"!(has(self.command) || has(self.args))", "the broker's command and arguments (spec.config has its settings)"),
		rule(isOther+"!has(self.env) || !self.env.exists(e, has(e.name) && (e.name == 'POD_NAME' || e.name.startsWith('POSTHORN_')))",
			"the variable POD_NAME and those that begin with POSTHORN_ (spec.config has the broker's settings)"),
		rule(isOther+"!has(self.volumeMounts) || !self.volumeMounts.exists(m, has(m.mountPath) && m.mountPath in ['/etc/posthorn', '/var/lib/posthorn'])",
			"the volumes mounted at /etc/posthorn and /var/lib/posthorn"),
		rule(isOther+"!has(self.ports) || !self.ports.exists(p, has(p.name) && p.name in ['amqp', 'amqps', 'mqtt', 'mqtts', 'web-mqtt', 'web-mqtt-tls', 'web-amqp', 'web-amqp-tls', 'stream', 'streams', 'management', 'management-tls', 'operator', 'prometheus', 'prometheus-tls', 'cluster', 'probes'])",
			"the broker's ports (spec.protocols and spec.tls set them)"),
	}
	return template
}

// bound limits the length of a list that rules iterate over, and forbids null.
func bound(properties schema, name string, most int) {
	list := field(properties, name)
	delete(list, "nullable")
	list["maxItems"] = most
}
