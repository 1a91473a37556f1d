// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Queue is a queue as the broker reports it.
type Queue struct {
	Name           string         `json:"name"`
	Vhost          string         `json:"vhost"`
	Type           string         `json:"type"`
	Durable        bool           `json:"durable"`
	AutoDelete     bool           `json:"auto_delete"`
	Exclusive      bool           `json:"exclusive"`
	Arguments      map[string]any `json:"arguments"`
	Node           string         `json:"node"`
	State          string         `json:"state"`
	Messages       int64          `json:"messages"`
	Policy         string         `json:"policy"`
	OperatorPolicy string         `json:"operator_policy"`
	Leader         string         `json:"leader"`
	Members        []string       `json:"members"`
	Online         []string       `json:"online"`
	// EffectivePolicy has the settings of the policies that apply, by name.
	EffectivePolicy Settings `json:"effective_policy_definition"`
}

// Settings of a policy. RabbitMQ encodes no settings as an empty list or string.
type Settings map[string]any

// UnmarshalJSON decodes any value but an object as no settings.
func (s *Settings) UnmarshalJSON(data []byte) error {
	var settings map[string]any
	if err := json.Unmarshal(data, &settings); err != nil {
		settings = nil
	}
	*s = settings
	return nil
}

// QueueDeclaration has the properties of a declaration.
type QueueDeclaration struct {
	Durable    bool           `json:"durable"`
	AutoDelete bool           `json:"auto_delete"`
	Arguments  map[string]any `json:"arguments"`
}

// Vhost is a virtual host as the broker reports it.
type Vhost struct {
	Name             string           `json:"name"`
	DefaultQueueType string           `json:"default_queue_type"`
	Tags             Tags             `json:"tags"`
	Tracing          bool             `json:"tracing"`
	Limits           map[string]int64 `json:"limits"`
}

// VhostSettings are the properties of a virtual host that can be changed.
type VhostSettings struct {
	// DefaultQueueType; empty leaves it as it is.
	DefaultQueueType string   `json:"default_queue_type,omitempty"`
	Tags             []string `json:"tags"`
	Tracing          bool     `json:"tracing"`
}

// Exchange is an exchange as the broker reports it.
type Exchange struct {
	Name       string         `json:"name"`
	Vhost      string         `json:"vhost"`
	Type       string         `json:"type"`
	Durable    bool           `json:"durable"`
	AutoDelete bool           `json:"auto_delete"`
	Internal   bool           `json:"internal"`
	Arguments  map[string]any `json:"arguments"`
	Policy     string         `json:"policy,omitempty"`
}

// ExchangeDeclaration has the properties of a declaration.
type ExchangeDeclaration struct {
	Type       string         `json:"type"`
	Durable    bool           `json:"durable"`
	AutoDelete bool           `json:"auto_delete"`
	Internal   bool           `json:"internal"`
	Arguments  map[string]any `json:"arguments"`
}

// BindingEnds are the exchange and the queue or exchange that a binding connects.
type BindingEnds struct {
	Vhost, Source, Destination string
	// ToExchange: the destination is an exchange, not a queue.
	ToExchange bool
}

// Binding is a binding as the broker reports it.
type Binding struct {
	RoutingKey string         `json:"routing_key"`
	Arguments  map[string]any `json:"arguments"`
	// PropertiesKey distinguishes the bindings of the same source and destination.
	PropertiesKey string `json:"properties_key"`
}

// SourceBinding is a binding in the list of an exchange's bindings.
type SourceBinding struct {
	Binding
	Destination string `json:"destination"`
	// DestinationType is queue or exchange.
	DestinationType string `json:"destination_type"`
}

// PolicyScope distinguishes user policies from operator policies.
type PolicyScope string

// The scopes; the values are the first path element below /api.
const (
	UserPolicies     PolicyScope = "policies"
	OperatorPolicies PolicyScope = "operator-policies"
)

// Policy is a policy or an operator policy.
type Policy struct {
	Vhost      string         `json:"vhost,omitempty"`
	Name       string         `json:"name,omitempty"`
	Pattern    string         `json:"pattern"`
	ApplyTo    string         `json:"apply-to"`
	Priority   int32          `json:"priority"`
	Definition map[string]any `json:"definition"`
}

// User is a user as the broker reports it.
type User struct {
	Name             string `json:"name"`
	PasswordHash     string `json:"password_hash"`
	HashingAlgorithm string `json:"hashing_algorithm"`
	Tags             Tags   `json:"tags"`
}

// Tags of a user. The broker reports a list (older servers: comma-separated words) and accepts comma-separated words.
type Tags []string

// UnmarshalJSON decodes a list or a string of comma-separated words.
func (t *Tags) UnmarshalJSON(data []byte) error {
	var list []string
	if err := json.Unmarshal(data, &list); err == nil {
		*t = list
		return nil
	}
	var words string
	if err := json.Unmarshal(data, &words); err != nil {
		return fmt.Errorf("tags are neither a list nor a string: %w", err)
	}
	*t = nil
	for _, word := range strings.Split(words, ",") {
		if word = strings.TrimSpace(word); word != "" {
			*t = append(*t, word)
		}
	}
	return nil
}

// Permission of a user in a vhost.
type Permission struct {
	User      string `json:"user,omitempty"`
	Vhost     string `json:"vhost,omitempty"`
	Configure string `json:"configure"`
	Write     string `json:"write"`
	Read      string `json:"read"`
}

// TopicPermission of a user for an exchange of a vhost.
type TopicPermission struct {
	User     string `json:"user,omitempty"`
	Vhost    string `json:"vhost,omitempty"`
	Exchange string `json:"exchange"`
	Write    string `json:"write"`
	Read     string `json:"read"`
}

// Node is a member of the cluster.
type Node struct {
	Name string `json:"name"`
	// Running reports whether the answering node reaches this one.
	Running bool `json:"running"`
	// BeingDrained reports whether the node is in maintenance mode.
	BeingDrained bool `json:"being_drained"`
	// MemoryAlarm and DiskAlarm report whether the node stops publishers for lack of memory or of free disk space.
	MemoryAlarm bool `json:"mem_alarm"`
	DiskAlarm   bool `json:"disk_free_alarm"`
}

// Alarms names the alarms of the node: memory, disk.
func (n Node) Alarms() []string {
	alarms := []string{}
	if n.MemoryAlarm {
		alarms = append(alarms, "memory")
	}
	if n.DiskAlarm {
		alarms = append(alarms, "disk")
	}
	return alarms
}

// Replica is a member of a quorum queue or stream; the field names are RabbitMQ's.
type Replica struct {
	Node string `json:"Node Name"`
	// Membership is voter, or promotable while the member is catching up.
	Membership string `json:"Membership"`
}

// MembershipVoter is the Membership of a member that counts towards the majority.
const MembershipVoter = "voter"

// FeatureFlag is a feature flag as the broker reports it.
type FeatureFlag struct {
	Name string `json:"name"`
	// State is enabled, disabled, state_changing or unavailable (a node does not know the flag).
	State string `json:"state"`
	// Stability is stable, experimental or required.
	Stability   string `json:"stability"`
	Description string `json:"desc"`
}

// Values of FeatureFlag.
const (
	FlagEnabled     = "enabled"
	FlagDisabled    = "disabled"
	FlagUnavailable = "unavailable"

	FlagStable       = "stable"
	FlagRequired     = "required"
	FlagExperimental = "experimental"
)

// Overview describes the answering node.
type Overview struct {
	ClusterName    string `json:"cluster_name"`
	Node           string `json:"node"`
	ProductVersion string `json:"product_version"`
}

// QueueRef names a queue in a health check's answer.
type QueueRef struct {
	Name  string `json:"name"`
	Vhost string `json:"virtual_host"`
	Type  string `json:"type"`
}

// LostQueue is a queue whose only copy was on a disk that was lost.
type LostQueue struct {
	Vhost string `json:"vhost"`
	Name  string `json:"name"`
	// Node that had the copy.
	Node string `json:"node"`
}

// RecoveryStep is a step of the recovery from a lost majority.
type RecoveryStep struct {
	// Step is one of the values below.
	Step string `json:"step"`
	// Node is the node whose copy of the metadata continues.
	Node string `json:"node"`
	// Queues are those that this step recovered or could not recover.
	Queues []RecoveredQueue `json:"queues"`
	// Left is the number of queues without a leader that this step did not consider.
	Left int64 `json:"left"`
}

// Values of RecoveryStep.Step and of RecoveredQueue.Result.
const (
	// RecoveryMetadata: the metadata continue on a node.
	RecoveryMetadata = "metadata"
	// RecoveryForgotten: a lost node is removed from the cluster.
	RecoveryForgotten = "forgotten"
	// RecoveryQueues: queues continue with their newest remaining copies.
	RecoveryQueues = "queues"

	QueueRecovered = "recovered"
	QueueRefused   = "refused"
)

// IsDone reports whether nothing is left to recover.
func (s RecoveryStep) IsDone() bool {
	return s.Step == RecoveryQueues && len(s.Queues) == 0 && s.Left == 0
}

// RecoveredQueue is the result of the recovery of one queue.
type RecoveredQueue struct {
	Vhost  string `json:"vhost"`
	Name   string `json:"name"`
	Result string `json:"result"`
	// Reason of a refusal.
	Reason string `json:"reason"`
}

// Criticality is the answer of the node-is-quorum-critical check.
type Criticality struct {
	// Critical: a queue would lose its majority if the answering node stopped.
	Critical bool
	// Reason is the broker's explanation.
	Reason string
	// Queues that would lose their majority.
	Queues []QueueRef
}

// MaintenanceState is the progress of a node's drain.
type MaintenanceState struct {
	// State is draining or drained.
	State string `json:"state"`
	// Leaders is the number of queue leaders that the node still has.
	Leaders int64 `json:"leaders"`
}

// Drained reports whether nothing is left to move.
func (m MaintenanceState) Drained() bool { return m.State == "drained" }

// Names of limits of a virtual host or a user. Only virtual hosts have limits of queues and of stored bytes.
const (
	MaxConnections = "max-connections"
	MaxChannels    = "max-channels"
	MaxQueues      = "max-queues"
	// MaxMessageRate is in messages per second.
	MaxMessageRate = "max-message-rate"
	// MaxByteRate is in bytes per second.
	MaxByteRate = "max-byte-rate"
	// MaxStoredBytes is the number of bytes of messages in the queues of a virtual host.
	MaxStoredBytes = "max-stored-bytes"
)

// Limits of a virtual host or a user by name. An absent limit is no limit.
type Limits map[string]int64

// current returns the limits without negative ones, which RabbitMQ takes as no limit.
func (l Limits) current() Limits {
	out := Limits{}
	for name, value := range l {
		if value >= 0 {
			out[name] = value
		}
	}
	return out
}
