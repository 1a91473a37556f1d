// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

// Package convert turns manifests of RabbitMQ's messaging topology operator into manifests of this operator.
package convert

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"

	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

const (
	// maxInput bounds the manifests of one call, in bytes.
	maxInput = 64 << 20
	// source is the group and version of the manifests that are converted, except of the kinds in versions.
	source = "rabbitmq.com/v1beta1"
	// defaultPartitions is the number of partitions of a SuperStream whose manifest has none.
	defaultPartitions = 3
)

// versions has the group and version of kinds that differ from source.
var versions = map[string]string{"SuperStream": "rabbitmq.com/v1alpha1"}

// object is a manifest.
type object struct {
	APIVersion string         `json:"apiVersion"`
	Kind       string         `json:"kind"`
	Metadata   map[string]any `json:"metadata,omitempty"`
	Spec       map[string]any `json:"spec,omitempty"`
	Items      []object       `json:"items,omitempty"`
}

func (o *object) String() string {
	name, _ := o.Metadata["name"].(string)
	if namespace, found := o.Metadata["namespace"].(string); found {
		name = namespace + "/" + name
	}
	return o.Kind + " " + name
}

// Manifests reads YAML documents and writes the converted ones. A comment before each document lists the fields that
// have no counterpart; a manifest without a counterpart is a comment only.
func Manifests(in io.Reader, out io.Writer) error {
	limited := &io.LimitedReader{R: in, N: maxInput + 1}
	reader := utilyaml.NewYAMLReader(bufio.NewReader(limited))
	for number := 1; ; number++ {
		document, err := reader.Read()
		if limited.N == 0 {
			return fmt.Errorf("the manifests are longer than %d bytes", maxInput)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading document %d: %w", number, err)
		}
		var manifest object
		if err := yaml.Unmarshal(document, &manifest); err != nil {
			return fmt.Errorf("document %d is not the manifest of an object: %w", number, err)
		}
		if err := write(out, &manifest); err != nil {
			return fmt.Errorf("document %d: %w", number, err)
		}
	}
}

func write(out io.Writer, manifest *object) error {
	if len(manifest.Items) > 0 {
		for i := range manifest.Items {
			if err := write(out, &manifest.Items[i]); err != nil {
				return err
			}
		}
		return nil
	}
	if manifest.Kind == "" {
		// A document of comments.
		return nil
	}
	var text bytes.Buffer
	converted, notes := convert(manifest)
	text.WriteString("---\n")
	for _, note := range notes {
		fmt.Fprintf(&text, "# %s: %s\n", manifest, strings.ReplaceAll(note, "\n", " "))
	}
	if converted != nil {
		data, err := yaml.Marshal(converted)
		if err != nil {
			return fmt.Errorf("encoding %s: %w", manifest, err)
		}
		text.Write(data)
	}
	_, err := out.Write(text.Bytes())
	return err
}

// conversion is the conversion of one manifest.
type conversion struct {
	// name is metadata.name.
	name any
	// in are the fields of the spec that no step has taken yet.
	in    map[string]any
	out   map[string]any
	notes []string
}

// kinds has the conversion of each kind, and the kind that it becomes.
var kinds = map[string]struct {
	kind    string
	convert func(*conversion)
}{
	"Vhost":           {"Vhost", (*conversion).vhost},
	"Queue":           {"Queue", (*conversion).queue},
	"Exchange":        {"Exchange", (*conversion).exchange},
	"Binding":         {"Binding", (*conversion).binding},
	"User":            {"User", (*conversion).user},
	"Permission":      {"Permission", (*conversion).permission},
	"TopicPermission": {"TopicPermission", (*conversion).topicPermission},
	"Policy":          {"Policy", (*conversion).policy},
	"OperatorPolicy":  {"Policy", (*conversion).operatorPolicy},
	"SuperStream":     {"SuperStream", (*conversion).superStream},
}

// absent has the reason why a kind has no counterpart.
var absent = map[string]string{
	"SchemaReplication": "the broker does not replicate definitions",
	"Federation":        "the broker has no federation",
	"Shovel":            "the broker has no shovels",
}

// convert returns the converted manifest, nil when there is none, and what the reader has to know.
func convert(manifest *object) (*object, []string) {
	if version := cmp.Or(versions[manifest.Kind], source); manifest.APIVersion != version {
		return nil, []string{"left out: its apiVersion is " + manifest.APIVersion + ", not " + version}
	}
	step, known := kinds[manifest.Kind]
	if !known {
		reason := absent[manifest.Kind]
		if reason == "" {
			reason = "the kind is unknown"
		}
		return nil, []string{"left out, because it has no counterpart: " + reason}
	}
	c := &conversion{name: manifest.Metadata["name"], in: maps.Clone(manifest.Spec), out: map[string]any{}}
	c.cluster()
	step.convert(c)
	for _, field := range slices.Sorted(maps.Keys(c.in)) {
		c.note("spec.%s has no counterpart", field)
	}
	if name, given := c.out["name"]; given && reflect.DeepEqual(name, manifest.Metadata["name"]) {
		delete(c.out, "name")
	}
	out := &object{APIVersion: posthornv1.GroupVersion.String(), Kind: step.kind, Metadata: metadata(manifest), Spec: c.out}
	if manifest.Kind == "OperatorPolicy" {
		// A Policy of the same name may be in the namespace.
		if name, is := out.Metadata["name"].(string); is {
			out.Metadata["name"] = name + "-operator"
		}
		if _, given := c.out["name"]; !given {
			c.out["name"] = manifest.Metadata["name"]
		}
	}
	return out, c.notes
}

// metadata returns the metadata that belongs to the manifest, and not to the object in an API server.
func metadata(manifest *object) map[string]any {
	out := map[string]any{}
	for _, key := range []string{"name", "namespace", "labels", "annotations", "generateName"} {
		if value, given := manifest.Metadata[key]; given {
			out[key] = value
		}
	}
	if annotations, is := out["annotations"].(map[string]any); is {
		annotations = maps.Clone(annotations)
		delete(annotations, "kubectl.kubernetes.io/last-applied-configuration")
		out["annotations"] = annotations
		if len(annotations) == 0 {
			delete(out, "annotations")
		}
	}
	return out
}

func (c *conversion) note(format string, args ...any) {
	c.notes = append(c.notes, fmt.Sprintf(format, args...))
}

// take removes a field from the input and returns its value; nil when it is absent.
func (c *conversion) take(field string) any {
	value := c.in[field]
	delete(c.in, field)
	return value
}

// takeMap removes an object from the input and returns its fields.
func (c *conversion) takeMap(field string) map[string]any {
	value, is := c.in[field].(map[string]any)
	if is {
		delete(c.in, field)
	}
	return maps.Clone(value)
}

// same copies fields that have the same name and meaning.
func (c *conversion) same(fields ...string) {
	for _, field := range fields {
		if value := c.take(field); value != nil {
			c.out[field] = value
		}
	}
}

// rest reports the fields of an object of which the counterpart lacks some.
func (c *conversion) rest(prefix string, left map[string]any) {
	for _, field := range slices.Sorted(maps.Keys(left)) {
		c.note("spec.%s.%s has no counterpart", prefix, field)
	}
}

// cluster converts the reference to the cluster.
func (c *conversion) cluster() {
	reference := c.takeMap("rabbitmqClusterReference")
	out := map[string]any{}
	for _, field := range []string{"name", "namespace"} {
		if value := reference[field]; value != nil {
			out[field] = value
		}
		delete(reference, field)
	}
	secret, isObject := reference["connectionSecret"].(map[string]any)
	switch {
	case out["name"] != nil:
	case isObject && secret["name"] != nil:
		// The Secret is one of the manifest's namespace. The namespace of a cluster has no meaning beside it.
		if namespace := out["namespace"]; namespace != nil {
			reference["namespace"] = namespace
		}
		out = map[string]any{"connectionSecret": map[string]any{"name": secret["name"]}}
		delete(secret, "name")
		delete(reference, "connectionSecret")
		c.rest("rabbitmqClusterReference.connectionSecret", secret)
	default:
		c.note("spec.rabbitmqClusterReference has no name: set spec.clusterRef.name to the name of a BrokerCluster")
		out["name"] = "CLUSTER"
	}
	c.out["clusterRef"] = out
	c.rest("rabbitmqClusterReference", reference)
}

// deletion converts the deletion policy; the default of the source is to delete.
func (c *conversion) deletion() {
	c.out["reclaimPolicy"] = posthornv1.ReclaimDelete
	if c.take("deletionPolicy") == "retain" {
		c.out["reclaimPolicy"] = posthornv1.ReclaimRetain
	}
}

func (c *conversion) vhost() {
	c.same("name", "tracing", "tags", "defaultQueueType")
	c.deletion()
	limits, out := c.takeMap("limits"), map[string]any{}
	for from, to := range map[string]string{"connections": "maxConnections", "queues": "maxQueues"} {
		// A negative limit is none.
		if value := limits[from]; value != nil && !isNegative(value) {
			out[to] = value
		}
		delete(limits, from)
	}
	if len(out) > 0 {
		c.out["limits"] = out
	}
	c.rest("limits", limits)
}

func (c *conversion) queue() {
	c.same("name", "vhost", "type")
	c.deletion()
	arguments := c.takeMap("arguments")
	if kind := arguments["x-queue-type"]; kind != nil {
		c.out["type"] = kind
		delete(arguments, "x-queue-type")
	}
	for _, argument := range []string{"x-quorum-initial-group-size", "x-initial-cluster-size"} {
		if size := arguments[argument]; size != nil {
			c.out["replicas"] = size
			delete(arguments, argument)
		}
	}
	if len(arguments) > 0 {
		c.out["arguments"] = arguments
	}
	if c.out["type"] == nil || c.out["type"] == "" {
		c.out["type"] = posthornv1.QueueTypeClassic
		c.note("spec.type is absent, and the virtual host decides: classic is the usual default")
	}
	if c.take("durable") != true {
		c.note("spec.durable is not true, and every Queue is durable")
	}
	if c.take("autoDelete") == true {
		c.note("spec.autoDelete has no counterpart: the argument x-expires deletes an unused queue")
	}
	if c.take("deleteIfEmpty") == true && c.out["reclaimPolicy"] == posthornv1.ReclaimDelete {
		c.out["reclaimPolicy"] = posthornv1.ReclaimDeleteIfEmpty
	}
	if c.take("deleteIfUnused") == true {
		c.note("spec.deleteIfUnused has no counterpart: the operator also deletes a queue with consumers")
	}
}

// superStream converts a SuperStream. The source names the exchange and the streams by metadata.name.
func (c *conversion) superStream() {
	c.same("vhost")
	c.deletion()
	if name := c.take("name"); name != nil && !reflect.DeepEqual(name, c.name) {
		c.note("spec.name %v is dropped, because the source names the exchange and its streams by metadata.name", name)
	}
	partitions, keys := c.take("partitions"), c.take("routingKeys")
	if list, is := keys.([]any); is && len(list) > 0 {
		c.out["routingKeys"] = list
		if partitions != nil && !reflect.DeepEqual(partitions, float64(len(list))) {
			c.note("spec.partitions %v is dropped, because spec.routingKeys has %d keys", partitions, len(list))
		}
		return
	}
	if partitions == nil {
		partitions = defaultPartitions
		c.note("spec.partitions and spec.routingKeys are absent, and %d partitions are the default", defaultPartitions)
	}
	c.out["partitions"] = partitions
}

func (c *conversion) exchange() {
	c.same("name", "vhost", "type", "autoDelete", "internal", "arguments")
	c.deletion()
	// The source declares a transient exchange when the field is absent.
	c.out["durable"] = c.take("durable") == true
}

func (c *conversion) binding() {
	c.same("vhost", "source", "destination", "destinationType", "routingKey", "arguments")
	c.deletion()
	if source := c.out["source"]; source == nil || source == "" {
		c.note("spec.source is the default exchange, whose bindings cannot be changed: delete this Binding")
	}
}

func isNegative(value any) bool {
	number, is := value.(float64)
	return is && number < 0
}

func (c *conversion) user() {
	c.same("tags")
	c.deletion()
	limits, out := c.takeMap("limits"), map[string]any{}
	for _, field := range []string{"connections", "channels"} {
		value := limits[field]
		delete(limits, field)
		if number, is := value.(float64); is && number == 0 {
			c.note("spec.limits.%s is 0, which allows none; a limit of 0 is no limit here, so revoke the permissions of the user instead", field)
		} else if value != nil && !isNegative(value) {
			out[field] = value
		}
	}
	if len(out) > 0 {
		c.out["limits"] = out
	}
	c.rest("limits", limits)
	if secret := c.takeMap("importCredentialsSecret"); secret["name"] != nil {
		c.out["credentials"] = map[string]any{"secretRef": map[string]any{"name": secret["name"]}}
		c.note("spec.importCredentialsSecret: the operator reads only the key password of Secret %v; set spec.username to the value of its key username", secret["name"])
		return
	}
	c.out["credentials"] = map[string]any{"generate": map[string]any{}}
	c.note("the user has another name and password in the broker: clients read them from the Secret <name>-binding")
}

// grantee converts the user of a permission.
func (c *conversion) grantee() {
	c.same("vhost")
	c.deletion()
	if reference := c.takeMap("userReference"); reference["name"] != nil {
		c.out["userRef"] = map[string]any{"name": reference["name"]}
		if user := c.take("user"); user != nil && user != "" {
			c.note("spec.user %v is dropped, because spec.userReference is set too", user)
		}
		return
	}
	c.same("user")
}

// patterns converts the fields of spec.permissions.
func (c *conversion) patterns(fields ...string) {
	permissions := c.takeMap("permissions")
	for _, field := range fields {
		if value := permissions[field]; value != nil {
			c.out[field] = value
		}
		delete(permissions, field)
	}
	c.rest("permissions", permissions)
}

func (c *conversion) permission() {
	c.grantee()
	c.patterns("configure", "write", "read")
}

func (c *conversion) topicPermission() {
	c.grantee()
	c.patterns("exchange", "write", "read")
	if exchange := c.out["exchange"]; exchange == nil || exchange == "" {
		c.note("spec.permissions.exchange is empty, which applies to no exchange with topics: set spec.exchange")
	}
}

func (c *conversion) policy() {
	c.same("name", "vhost", "pattern", "applyTo", "priority", "definition")
	c.deletion()
	if c.out["applyTo"] == nil {
		c.out["applyTo"] = "all"
	}
}

func (c *conversion) operatorPolicy() {
	c.same("name", "vhost", "pattern", "applyTo", "priority", "definition")
	c.deletion()
	c.out["scope"] = posthornv1.PolicyScopeOperator
}
