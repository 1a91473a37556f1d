package main

import (
	"posthorn.io/posthorn/test/bench/mqtt"
	"posthorn.io/posthorn/test/bench/peers"
	"posthorn.io/posthorn/test/bench/stream"
)

// A workload has steps that are measured one by one.
type workload struct {
	name  string
	about string
	// The port of the clients: amqp, amqp10, mqtt or stream.
	protocol string
	steps    []step
	// At half the rate of the slowest broker instead of as fast as possible.
	paced bool
	// Additional configuration of our broker.
	settings []string
	// Of our broker's queues without a type.
	queueType string
	// Of the others.
	demand peers.Demand
	// The durability of a message when a broker confirms it.
	kept map[string]string
	// Only when it is named.
	byName bool
}

type step struct {
	name string
	load load
	// Messages of the first trial of a broker: few enough for a slow one.
	first int
	// Latency is meaningful: no client waits on purpose.
	latency bool
}

const (
	window     = " --confirm 192 --qos 200 --multi-ack-every 200"
	quorum     = " --queue-args x-queue-type=quorum --auto-delete false"
	persistent = " --size 12 --flag persistent --flag mandatory"
)

// The durability of a message when a broker confirms it, from its documentation.
var (
	writtenClassic = map[string]string{
		"posthorn": "taken by its consumer, or written to a file, not synced",
		"rabbitmq": "taken by its consumer, or written to a file, not synced",
		"artemis":  "synced",
	}
	syncedQuorum = map[string]string{"posthorn": "synced", "rabbitmq": "synced", "artemis": "synced"}
	ofClean      = map[string]string{
		"posthorn": "in memory", "rabbitmq": "taken by its subscriber, or written to a file, not synced", "mosquitto": "in memory",
		"nats": "written to a file, synced every 2 minutes", "hivemq": "written to a file, not synced", "artemis": "in memory",
	}
	writtenSession = map[string]string{
		"posthorn": "taken by its subscriber, or written to a file, not synced", "rabbitmq": "taken by its subscriber, or written to a file, not synced",
		"mosquitto": "in memory", "nats": "written to a file, synced every 2 minutes",
		"hivemq": "written to a file, not synced", "artemis": "synced",
	}
	syncedSession = map[string]string{
		"posthorn": "synced", "rabbitmq": "synced", "mosquitto": "in memory", "nats": "synced (sync_interval: always)",
		"hivemq": "written to a file, not synced", "artemis": "synced",
	}
	nothing = map[string]string{}
	// A stream of one node.
	ofStream = map[string]string{"posthorn": "written to a file, not synced", "rabbitmq": "written to a file, not synced"}
)

// The flags of PerfTest are those of RabbitMQ's own comparison of its protocols for 12-byte messages.
var (
	classic1to1 = step{"1:1", perfTest{"--queue bench --auto-delete false" + window + " --pmessages %d" + persistent}, 30_000, true}
	quorum1to1  = step{"1:1", perfTest{"--queue bench" + window + " --pmessages %d" + persistent + quorum}, 30_000, true}
	qos1        = step{"1:1", ownMQTT{mqtt.Load{Pairs: 100, QoS: 1, Size: 12}}, 2_000, true}
	qos1Kept    = step{"1:1", ownMQTT{mqtt.Load{Pairs: 100, QoS: 1, Size: 12, Kept: true}}, 1_000, true}
	qos0        = step{"1:1", ownMQTT{mqtt.Load{Pairs: 100, Size: 12}}, 100_000, true}
)

var workloads = []workload{
	{
		name: "amqp091-classic", about: "one publisher, one consumer, classic queue, 12 B persistent, 192 unconfirmed, prefetch 200",
		protocol: "amqp", steps: []step{classic1to1}, kept: writtenClassic,
	},
	{
		name: "amqp091-classic-paced", about: "the same at a rate that all brokers keep up with",
		protocol: "amqp", steps: []step{classic1to1}, paced: true, kept: writtenClassic,
	},
	{
		name: "amqp091-quorum", about: "the same with a quorum queue on one node",
		protocol: "amqp", steps: []step{quorum1to1}, kept: syncedQuorum,
	},
	{
		name: "amqp091-quorum-backlog", about: "a quorum queue is filled, then emptied",
		protocol: "amqp", kept: syncedQuorum,
		steps: []step{
			{"publish", perfTest{"--queue bench --consumers 0 --confirm 192 --pmessages %d" + persistent + quorum}, 30_000, false},
			{"consume", perfTest{"--queue bench --producers 0 --qos 200 --multi-ack-every 200 --cmessages %d" + persistent + quorum}, 30_000, false},
		},
	},
	{
		name: "amqp091-fanout10", about: "one publisher to 10 classic queues by a fanout exchange, a consumer each",
		protocol: "amqp", kept: writtenClassic,
		steps: []step{{
			"1:10", perfTest{"--exchange bench --type fanout --queue-pattern bench-%%d --queue-pattern-from 1 --queue-pattern-to 10 --producers 1 --consumers 10" +
				window + " --pmessages %d" + persistent}, 5_000, true,
		}},
	},
	{
		name: "mqtt-qos1", about: "100 pairs, QoS 1, one message in flight, sessions that end with their connection",
		protocol: "mqtt", steps: []step{qos1}, settings: mqttSettings, kept: ofClean,
	},
	{
		name: "mqtt-qos1-paced", about: "the same at a rate that all brokers keep up with",
		protocol: "mqtt", steps: []step{qos1}, paced: true, settings: mqttSettings, kept: ofClean,
	},
	{
		name: "mqtt-qos1-classic", about: "the same as fast as each can, sessions that are kept: a classic queue each",
		protocol: "mqtt", steps: []step{qos1Kept}, settings: mqttSettings, kept: writtenSession,
	},
	{
		name: "mqtt-qos1-quorum", about: "the same, a quorum queue each: on disk before PUBACK",
		protocol: "mqtt", steps: []step{qos1Kept}, settings: mqttSettings, queueType: "quorum", demand: peers.Demand{Synced: true}, kept: syncedSession,
	},
	{
		name: "mqtt-qos0", about: "100 pairs, QoS 0, as fast as the broker reads",
		protocol: "mqtt", steps: []step{qos0}, settings: mqttSettings, kept: nothing,
	},
	{
		name: "mqtt-qos0-paced", about: "the same at a rate that all brokers keep up with",
		protocol: "mqtt", steps: []step{qos0}, paced: true, settings: mqttSettings, kept: nothing,
	},
	{
		name: "stream-12", about: "stream protocol, 12 B: publish, then consume, then both together; 100 messages in a publish command, 10,000 unconfirmed",
		protocol: "stream", steps: streamSteps(12), settings: streamSettings, demand: peers.Demand{Streams: true}, kept: ofStream,
	},
	{
		name: "stream-100", about: "the same, 100 B",
		protocol: "stream", steps: streamSteps(100), settings: streamSettings, demand: peers.Demand{Streams: true}, kept: ofStream,
	},
	{
		name: "stream-1024", about: "the same, 1 KiB",
		protocol: "stream", steps: streamSteps(1024), settings: streamSettings, demand: peers.Demand{Streams: true}, kept: ofStream,
	},
	{
		name: "stream-fanout10", about: "stream protocol, 100 B: one publisher with one and with ten consumers",
		protocol: "stream", settings: streamSettings, demand: peers.Demand{Streams: true}, kept: ofStream,
		steps: []step{
			{"1:1", ownStream{stream.Load{Stream: "one", Size: 100, Publish: true, Consumers: 1}}, 200_000, true},
			{"1:10", ownStream{stream.Load{Stream: "ten", Size: 100, Publish: true, Consumers: 10}}, 200_000, true},
		},
	},
	{
		name: "amqp10-stream", about: "AMQP 1.0 to a stream: publish 12 B, 1,000 unsettled",
		protocol: "stream", steps: []step{{"publish", ownAMQP10{"bench", 12, 1000}, 50_000, false}},
		settings: streamSettings, demand: peers.Demand{Streams: true}, kept: ofStream,
	},
	{
		name: "amqp10-classic", about: "AMQP 1.0, one publisher, one consumer, classic queue, 12 B durable, 192 unsettled, credit 200",
		protocol: "amqp10", kept: writtenClassic,
		steps: []step{{"1:1", ownAMQP10Queue{"bench", "classic", 12, 192, 200}, 30_000, false}},
	},
	{
		name: "amqp10-quorum", about: "the same with a quorum queue on one node; Artemis has one kind of queue",
		protocol: "amqp10", kept: syncedQuorum,
		steps: []step{{"1:1", ownAMQP10Queue{"bench", "quorum", 12, 192, 200}, 30_000, false}},
	},
	{
		name: "amqp10-slow-link", about: "AMQP 1.0, one session publishes 12 B durable to a classic queue, then to a quorum queue beside it; messages/s are those of the classic queue",
		protocol: "amqp10", kept: writtenClassic,
		steps: []step{
			{"classic alone", ownAMQP10Links{[]string{"classic"}, 12}, 30_000, false},
			{"beside a quorum queue", ownAMQP10Links{[]string{"classic", "quorum"}, 12}, 30_000, false},
		},
	},
	{
		name: "amqp091-stream", about: "AMQP 0.9.1 to a stream: publish, then publish and consume with PerfTest; 12 B, 192 unconfirmed, prefetch 200",
		protocol: "amqp", kept: ofStream,
		steps: []step{
			{"publish", ownAMQPPublish{queue: "published", kind: "stream", unconfirmed: 192}, 30_000, false},
			{"1:1", perfTest{"--queue bench --queue-args x-queue-type=stream --auto-delete false" + window + " --pmessages %d" + persistent}, 30_000, true},
		},
	},
	{
		name: "load-amqp091", about: "the load itself: PerfTest, and the AMQP client of bench-storage, against the same broker",
		protocol: "amqp", byName: true, kept: writtenClassic,
		steps: []step{classic1to1, {"ours", ownAMQP{queue: "ours", unconfirmed: 192, prefetch: 200}, 30_000, false}},
	},
	{
		name: "load-mqtt", about: "the load itself: mosquitto_pub and mosquitto_sub, and our client, one pair, QoS 1, 20 in flight, against the same broker",
		protocol: "mqtt", byName: true, settings: mqttSettings, demand: peers.Demand{Patient: true}, kept: writtenSession,
		steps: []step{
			{"mosquitto_pub", mosquittoTools{}, 20_000, false},
			{"ours", ownMQTT{mqtt.Load{Pairs: 1, QoS: 1, Size: 12, Window: 20, Kept: true}}, 20_000, false},
		},
	},
}

// Each in a stream of its own, so that consumers always read the newest messages.
func streamSteps(size int) []step {
	return []step{
		{"publish", ownStream{stream.Load{Stream: "apart", Size: size, Publish: true}}, 200_000, false},
		{"consume", ownStream{stream.Load{Stream: "apart", Size: size, Consumers: 1}}, 200_000, false},
		{"together", ownStream{stream.Load{Stream: "together", Size: size, Publish: true, Consumers: 1}}, 200_000, true},
	}
}

var (
	mqttSettings   = []string{"mqtt.listeners.tcp.default=127.0.0.1:0"}
	streamSettings = []string{"stream.listeners.tcp.default=127.0.0.1:0"}
)
