"""Paho's Python client on three nodes: clients of different nodes hear each other, and a session goes on elsewhere."""

import json
import queue
import urllib.request
import uuid
from base64 import b64encode

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from checks import PATIENCE, Checks, cluster, node, until

checks = Checks("paho-python")
ONE, TWO, THREE = 1891, 1892, 1893  # the nodes' ports
VERSIONS = (mqtt.MQTTv31, mqtt.MQTTv311, mqtt.MQTTv5)
KEPT = "kept"  # a virtual host whose sessions are quorum queues


def name(prefix):
    return f"{prefix}-{uuid.uuid4().hex[:10]}"


class Client:
    """A connection, made when it is constructed. What it is told waits in queues."""

    def __init__(self, port, version=mqtt.MQTTv5, client_id=None, kept=False, will=None):
        self.messages, self.answers, self.ends = queue.Queue(), queue.Queue(), queue.Queue()
        clean = None if version == mqtt.MQTTv5 else not kept
        self.paho = mqtt.Client(
            mqtt.CallbackAPIVersion.VERSION2, client_id or name("c"), clean_session=clean, protocol=version, reconnect_on_failure=False
        )
        self.paho.on_connect = lambda _client, _data, flags, reason, _properties: self.answers.put((reason.value, flags.session_present))
        self.paho.on_message = lambda _client, _data, message: self.messages.put(message)
        self.paho.on_subscribe = lambda _client, _data, _mid, reasons, _properties: self.answers.put([r.value for r in reasons])
        self.paho.on_disconnect = lambda _client, _data, _flags, reason, _properties: self.ends.put(reason.value)
        if kept:
            self.paho.username_pw_set(f"{KEPT}:guest", "guest")
        if will:
            self.paho.will_set(will, "gone", qos=1)
        options = {}
        if version == mqtt.MQTTv5:
            options["properties"] = Properties(PacketTypes.CONNECT)
            options["properties"].SessionExpiryInterval = 300 if kept else 0
            options["clean_start"] = not kept
        self.paho.connect("127.0.0.1", port, keepalive=60, **options)
        self.paho.loop_start()
        code, self.present = self.answers.get(timeout=PATIENCE)
        assert code == 0, code

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def subscribe(self, topic, qos):
        self.paho.subscribe(topic, qos)
        answer = self.answers.get(timeout=PATIENCE)
        assert answer == [qos], answer

    def publish(self, topic, payload, qos=1, retain=False):
        """Returns when it is acknowledged."""
        told = self.paho.publish(topic, payload, qos, retain)
        told.wait_for_publish(PATIENCE)
        assert told.is_published(), "no acknowledgement"

    def message(self):
        return self.messages.get(timeout=PATIENCE)

    def payloads_up_to(self, last):
        """What comes until this payload does; what comes twice is told once."""
        got = []
        while not got or got[-1] != last:
            got.append(self.message().payload.decode())
        return list(dict.fromkeys(got))

    def close(self):
        self.paho.disconnect()
        self.paho.loop_stop()

    def break_off(self):
        self.paho.loop_stop()
        self.paho.socket().close()


def api(method, path, body):
    request = urllib.request.Request(f"http://127.0.0.1:15682/api/{path}", json.dumps(body).encode(), method=method)
    request.add_header("authorization", "Basic " + b64encode(b"guest:guest").decode())
    request.add_header("content-type", "application/json")
    urllib.request.urlopen(request, timeout=PATIENCE).close()


@checks.check
def messages_of_every_quality_and_version_between_nodes():
    for version in VERSIONS:
        with Client(ONE, version) as subscriber, Client(TWO, version) as publisher:
            topic = name("t")
            subscriber.subscribe(f"{topic}/+", 2)
            for qos in (0, 1, 2):
                publisher.publish(f"{topic}/{qos}", f"hello {qos}", qos)
            # The order is that of one topic and QoS, no more.
            got = sorted((m.topic, m.payload, m.qos) for m in (subscriber.message() for _ in range(3)))
            assert got == [(f"{topic}/{q}", b"hello %d" % q, q) for q in (0, 1, 2)], got


@checks.check
def what_is_retained_is_retained_everywhere():
    topic = name("t")
    with Client(ONE) as publisher:
        publisher.publish(topic, "kept", retain=True)
        with Client(THREE) as subscriber:
            subscriber.subscribe(topic, 1)
            message = subscriber.message()
            assert (message.payload, message.retain) == (b"kept", True)
        publisher.publish(topic, "", retain=True)
        with Client(TWO) as subscriber:
            subscriber.subscribe(topic, 1)
            publisher.publish(topic, "next")
            message = subscriber.message()
            assert (message.payload, message.retain) == (b"next", False)


@checks.check
def a_will_is_heard_at_another_node():
    topic = name("will")
    with Client(TWO) as watcher:
        watcher.subscribe(f"{topic}/+", 1)
        Client(ONE, will=f"{topic}/polite").close()
        Client(ONE, will=f"{topic}/rude").break_off()
        assert watcher.message().topic == f"{topic}/rude"


@checks.check
def members_of_all_nodes_share_a_subscription():
    topic, count = name("t"), 30
    members = [Client(port) for port in (ONE, TWO, THREE)]
    for member in members:
        member.subscribe(f"$share/group/{topic}", 1)
    with Client(TWO) as publisher:
        for n in range(count):
            publisher.publish(topic, str(n))
    until(lambda: sum(m.messages.qsize() for m in members) >= count, "all messages")
    got = [[m.message().payload for _ in range(m.messages.qsize())] for m in members]
    assert sorted(sum(got, [])) == sorted(b"%d" % n for n in range(count)), got
    assert all(got), [len(g) for g in got]
    for member in members:
        member.close()


@checks.check
def a_client_id_is_taken_over_at_another_node():
    client_id = name("c")
    first = Client(ONE, client_id=client_id)
    with Client(TWO, client_id=client_id) as second:
        assert first.ends.get(timeout=PATIENCE) == 0x8E
        topic = name("t")
        second.subscribe(topic, 1)
        second.publish(topic, "here")
        assert second.message().payload == b"here"
    first.close()


@checks.check
def a_session_goes_on_at_another_node():
    api("PUT", f"vhosts/{KEPT}", {"default_queue_type": "quorum"})
    api("PUT", f"permissions/{KEPT}/guest", {"configure": ".*", "write": ".*", "read": ".*"})
    for version in (mqtt.MQTTv311, mqtt.MQTTv5):
        client_id, topic = name("s"), name("t")
        with Client(ONE, version, client_id, kept=True) as first:
            assert not first.present
            first.subscribe(topic, 1)
        with Client(TWO, kept=True) as publisher:
            publisher.publish(topic, "while away")
        with Client(THREE, version, client_id, kept=True) as second:
            assert second.present
            assert second.message().payload == b"while away"


@checks.check
def a_session_goes_on_when_its_node_is_killed():
    client_id, topic, count = name("s"), name("t"), 100
    first = Client(ONE, client_id=client_id, kept=True)
    first.subscribe(topic, 1)
    with Client(TWO, kept=True) as publisher:
        for n in range(count):
            publisher.publish(topic, str(n))
            if n == count // 2:
                before = first.payloads_up_to("10")
                node("kill", "n1")
        first.ends.get(timeout=PATIENCE)
        before += [first.message().payload.decode() for _ in range(first.messages.qsize())]
        first.close()
        with Client(THREE, client_id=client_id, kept=True) as second:
            assert second.present
            publisher.publish(topic, "last")
            got = second.payloads_up_to("last")
            # The first connection acknowledged what it had, so the rest is what it had not: in its order, without a gap.
            everything = [str(n) for n in range(count)] + ["last"]
            assert got == everything[-len(got) :], got
            assert set(before) | set(got) == set(everything), (before, got)
    cluster("node", "n1")
    with Client(ONE) as back:
        back.subscribe(topic, 1)
        back.publish(topic, "back")
        assert back.message().payload == b"back"


checks.run()
