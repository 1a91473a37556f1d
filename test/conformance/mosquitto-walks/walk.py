"""Walks: seeded sequences of packets over some clients, sent to a broker step by step; what every client was sent comes back.

A step is over when pings of all clients have been answered twice without anything else coming in between, so what a step caused
stands with it. What the standard leaves to a server is not in what is compared (`told`): packet identifiers (that they are the
same again when a message is, is checked here), the order of messages of different topics, properties of CONNACK that are limits, the
words of reasons, who of a shared subscription gets a message."""
import random
import select
import socket
import time
import typing

import wire

PATIENCE = 20  # seconds until a broker that does not answer a ping is given up


class Broken(Exception):
    """What a server sent that no server may send."""


class Told(typing.NamedTuple):
    """A message as a client was sent it."""
    topic: str
    payload: str
    qos: int
    retain: int
    dup: int
    ids: tuple
    user: str
    more: str


class Connection:
    """One network connection, until it is closed by either side."""

    def __init__(self, address, version, name):
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.version, self.name = version, name
        self.buffer, self.closed, self.aliases, self.pongs = b"", False, {}, 0

    def send(self, data):
        if not self.closed:
            try:
                self.socket.sendall(data)
            except OSError:
                pass  # what came before that is read still

    def received(self):
        """Packets that have come."""
        while not self.closed and select.select([self.socket], [], [], 0)[0]:
            try:
                more = self.socket.recv(65536)
            except OSError:
                more = b""
            self.buffer += more
            if not more:
                self.end()
        while True:
            size = shift = 0
            for at, byte in enumerate(self.buffer[1:5], 1):
                size |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    break
            else:
                return
            if len(self.buffer) < at + 1 + size:
                return
            first, body = self.buffer[0], self.buffer[at + 1:at + 1 + size]
            self.buffer = self.buffer[at + 1 + size:]
            try:
                yield wire.read(self.version, first, body)
            except (ValueError, KeyError) as wrong:
                raise Broken("%s: %s in %s" % (self.name, wrong, bytes([first]).hex() + body.hex()))

    def end(self):
        self.closed = True
        self.socket.close()


class Client:
    """A client id with what its session holds on the client's side, over its connections."""

    def __init__(self, walk, number, version):
        self.walk, self.number, self.version = walk, number, version
        self.name = "%sc%d" % (walk.prefix, number)
        self.at = None  # Connection
        self.old = []  # that were taken over
        self.mid = 0
        self.owed = set()  # identifiers of this side that are to be answered
        self.open = {}  # mid: key of a message that the server has not been answered
        self.releases = set()
        self.holds = False  # answers are sent when a step says so
        self.held = []
        self.aliases, self.will, self.member = [], False, False
        self.told = []

    def next_mid(self):
        self.mid = self.mid % 60000 + 1
        return self.mid

    def send(self, data):
        if self.at:
            self.at.send(data)

    def ask(self, mid, data):
        """Sends what is answered under an identifier."""
        self.owed.add(mid)
        self.send(data)

    def fresh(self):
        """A session without anything open."""
        self.open, self.releases, self.held, self.member = {}, set(), [], False

    def answer(self, kind, mid):
        if self.holds:
            self.held.append((kind, mid))
        else:
            self.settle(kind, mid)

    def settle(self, kind, mid):
        self.send(wire.answer(kind, mid))
        if kind in (4, 7):
            self.open.pop(mid, None)
            self.releases.discard(mid)

    def hear(self, connection, p):
        kind = p["kind"]
        props = dict(p["props"])
        if kind == "PINGRESP":
            connection.pongs += 1
            return
        if kind == "PUBLISH":
            return self.message(connection, p)
        if kind == "PUBREL":
            unknown = "" if p["mid"] in self.releases else " of nothing"
            self.answer(7, p["mid"])
            return self.tell("PUBREL %02x%s" % (p["reason"], unknown))
        if kind == "CONNACK":
            if not p["present"]:
                self.fresh()
            assigned = " assigned" if "assigned id" in props else ""
            return self.tell("CONNACK present=%d %02x%s" % (p["present"], p["reason"], assigned))
        if kind in ("SUBACK", "UNSUBACK"):
            self.owed.discard(p["mid"])
            codes = " ".join("%02x" % c for c in p["codes"])
            return self.tell("%s mid=%d %s" % (kind, p["mid"], codes))
        if kind == "DISCONNECT":
            return self.tell("DISCONNECT %02x" % p["reason"])
        if kind == "PUBREC":
            self.walk.after.append((self, p["mid"], p["reason"]))
        if kind != "PUBREC" or p["reason"] >= 0x80:
            self.owed.discard(p["mid"])
        self.tell("%s mid=%d %02x" % (kind, p["mid"], p["reason"]))

    def message(self, connection, p):
        props = dict(p["props"])
        alias = props.pop("alias", None)
        if alias is not None:
            if p["topic"]:
                connection.aliases[alias] = p["topic"]
            elif alias not in connection.aliases:
                raise Broken("%s: alias %d is unknown" % (self.name, alias))
            p["topic"] = connection.aliases[alias]
        # Whether a will reaches its own client, whose connection is just ending, hangs on what is first.
        own = p["payload"].startswith("will %d " % self.number) and not p["retain"]
        topic = p["topic"].removeprefix(self.walk.prefix + "/")
        ids = sorted(v for k, v in p["props"] if k == "subscription id")
        user = ",".join("%s=%s" % v for k, v in p["props"] if k == "user")
        for key in ("subscription id", "user"):
            props.pop(key, None)
        if "expiry" in props:
            props["expiry"] = "there"
        key = (p["topic"], p["payload"], p["qos"])
        if p["qos"]:
            known = self.open.get(p["mid"])
            if known is None:
                if p["dup"]:
                    p["dup"] = 0  # The connection before may have ended while it was on its way.
            elif known != key:
                raise Broken("%s: identifier %d is in use for %s and comes with %s" % (self.name, p["mid"], known, key))
            self.open[p["mid"]] = key
            if p["qos"] == 2:
                self.releases.add(p["mid"])
            self.answer(4 if p["qos"] == 1 else 5, p["mid"])
        if own:
            return
        if topic.startswith("s/"):
            self.walk.shared.add(p["payload"])
            return
        more = " ".join("%s=%s" % item for item in sorted(props.items()))
        self.told.append(Told(topic, p["payload"], p["qos"], p["retain"], p["dup"], tuple(ids), user, more))

    def tell(self, what):
        self.told.append(what)


class Walk:
    def __init__(self, seed, address, steps, token=""):
        self.seed, self.address = seed, address
        # A broker that knows earlier walks has other retained messages and sessions than one that does not.
        self.prefix = "%sw%d" % (token, seed)
        self.random = random.Random(seed)
        self.steps = steps
        self.after, self.shared, self.expected = [], set(), set()
        r = self.random
        self.clients = [Client(self, n, r.choice((3, 4, 4, 5, 5, 5))) for n in range(r.randint(2, 4))]
        self.payload = 0
        self.last = {}  # per client, what was published: it may come again
        self.groups = r.random() < 0.25
        self.overlap = r.random() < 0.2
        for client in self.clients:
            client.filters = self.FILTERS if self.overlap else r.choice(self.APART)

    # What a walk talks about.
    TOPICS = ["a", "a/b", "a/b/c", "b", "b//c", "/", "a/$x", "s/1", "s/2"]
    FILTERS = ["a", "a/b", "a/#", "a/+", "+", "#", "+/b/+", "b//c", "b/+/c", "/", "+/+", "a/b/#", "/#", "b/#"]

    # Of each of these no two match the same topic.
    APART = [["a/#", "b/#", "/"], ["+", "+/+", "+/+/+"], ["a", "a/b", "a/b/c", "b", "b//c", "/"], ["#"], ["+/b/#", "a", "b", "b//+", "/+"]]

    def topic(self):
        topics = self.TOPICS if self.groups else self.TOPICS[:-2]
        return self.prefix + "/" + self.random.choice(topics)

    def filter(self, client):
        if self.groups and self.random.random() < 0.3:
            return "$share/g/%s/s/+" % self.prefix
        return self.prefix + "/" + self.random.choice(client.filters)

    def say(self):
        self.payload += 1
        return "m%d" % self.payload

    def publish_props(self, client):
        r, props = self.random, []
        if client.version == 5:
            if r.random() < 0.2:
                props.append(("payload format", r.choice((0, 1))))
            if r.random() < 0.2:
                props.append(("content type", "text/plain"))
            if r.random() < 0.2:
                props += [("response topic", "an/answer"), ("correlation", b"\x00\xff")]
            if r.random() < 0.2:
                props += [("user", ("k", "v")), ("user", ("k", "w"))]
            if r.random() < 0.2:
                props.append(("expiry", 3600))
        return props

    # Steps. Each draws the same numbers whatever a broker answered.
    def connect(self, client):
        r = self.random
        clean = r.random() < 0.5
        expiry = r.choice((0, 0, 600))
        will = None
        if r.random() < 0.3:
            will = {"qos": r.choice((0, 1, 2)), "retain": r.random() < 0.2, "topic": self.topic(), "props": (),
                    "payload": "will %d %s" % (client.number, self.say())}
            if will["topic"].startswith(self.prefix + "/s/"):
                will["topic"] = self.prefix + "/a"
            if client.version == 5 and r.random() < 0.3:
                will["props"] = [("content type", "will"), ("user", ("w", "x"))]
        props = []
        receive = r.choice((None, None, 1, 2, 5)) if not self.overlap and not self.groups else None
        aliases = r.choice((None, 5))
        if client.version == 5:
            if expiry:
                props.append(("session expiry", expiry))
            if receive:
                props.append(("receive maximum", receive))
            if aliases:
                props.append(("alias maximum", aliases))
        holds = r.random() < 0.3
        # How much is open at a time would show who got how many copies.
        holds = holds and not self.overlap and not self.groups
        # A will without a delay is published when the connection is taken over, though the session goes on (section 3.1.4,
        # after 3.1.4-3); mosquitto drops it then.
        clean = clean or (client.will and not client.at.closed)
        client.will = will is not None
        if client.at:
            client.old.append(client.at)
        client.owed = set()
        client.at = Connection(self.address, client.version, client.name)
        client.holds, client.held, client.aliases = holds, [], []
        client.send(wire.connect(client.version, client.name, clean, 600, will, props))
        return "connect clean=%d expiry=%d will=%s receive=%s holds=%d" % (clean, expiry, will and will["topic"], receive, holds)

    def subscribe(self, client):
        r = self.random
        filters = []
        for _ in range(r.choice((1, 1, 1, 2, 3))):
            name, options = self.filter(client), r.choice((0, 1, 2))
            if client.version == 5:
                # What is local and how retained messages are marked is never changed by a second subscription (3.8.4-3):
                # mosquitto keeps what the first one said.
                flags = random.Random("%s %s %d" % (self.seed, name.replace(self.prefix, ""), client.number))
                # A session that has a queue says also of its own message which subscriptions without it match (docs/compatibility.md).
                if not name.startswith("$share") and not self.overlap:
                    options |= flags.choice((0, 0, 4))
                options |= flags.choice((0, 0, 8)) | r.choice((0, 0, 0, 0x10, 0x20))
            if name.startswith("$share"):
                options = options & ~3 | 1
            filters.append((name, options))
        number = r.choice((1, 7, 200, 300000))
        props = [("subscription id", number)] if client.version == 5 and r.random() < 0.4 else []
        mid = client.next_mid()
        client.ask(mid, wire.subscribe(client.version, mid, filters, props))
        client.member = client.member or any(name.startswith("$share") for name, _ in filters)
        return "subscribe %s %s" % (filters, props)

    def unsubscribe(self, client):
        filters = [self.filter(client) for _ in range(self.random.choice((1, 1, 2)))]
        mid = client.next_mid()
        client.ask(mid, wire.unsubscribe(client.version, mid, filters))
        client.member = client.member and not any(name.startswith("$share") for name in filters)
        return "unsubscribe %s" % filters

    def publish(self, client):
        r = self.random
        topic, qos, retain = self.topic(), r.choice((0, 1, 2)), r.random() < 0.25
        payload = "" if retain and r.random() < 0.25 else self.say()
        props = self.publish_props(client)
        by_alias = r.random()
        mid = client.next_mid() if qos else 0
        said = topic
        if client.version == 5 and by_alias < 0.3 and client.at:
            if topic in client.aliases:
                props.append(("alias", client.aliases.index(topic) + 1))
                said = ""
            elif len(client.aliases) < 10:
                client.aliases.append(topic)
                props.append(("alias", len(client.aliases)))
        data = wire.publish(client.version, said, payload, qos, retain, False, mid, props)
        client.ask(mid, data) if qos else client.send(data)
        self.expect(topic, payload)
        return "publish %s q%d r%d %s mid=%d %s" % (topic, qos, retain, payload, mid, props)

    def many(self, client):
        said = []
        topic, qos = self.topic(), self.random.choice((0, 1, 2))
        for _ in range(self.random.randint(2, 6)):
            mid = client.next_mid() if qos else 0
            payload = self.say()
            data = wire.publish(client.version, topic, payload, qos, False, False, mid)
            client.ask(mid, data) if qos else client.send(data)
            self.expect(topic, payload)
            said.append(payload)
        return "publish %s q%d %s" % (topic, qos, said)

    def expect(self, topic, payload):
        """A member of the group that is connected must get it; which one, and whether one that is away does, is left to servers."""
        members = [c for c in self.clients if c.member]
        if topic.startswith(self.prefix + "/s/") and members and all(c.at and not c.at.closed for c in members):
            self.expected.add(payload)

    def again(self, client):
        """QoS 2 once more with DUP: under an identifier that was released it is a new message."""
        mid, topic, payload = self.random.randint(1, 3), self.topic(), self.say()
        client.ask(mid, wire.publish(client.version, topic, payload, 2, False, True, mid))
        return "publish with DUP %s %s mid=%d" % (topic, payload, mid)

    def settle(self, client):
        count = self.random.choice((1, 2, 100))
        for kind, mid in client.held[:count]:
            client.settle(kind, mid)
        del client.held[:count]
        return "answer %d" % count

    def disconnect(self, client):
        reason = self.random.choice((0, 0, 4))
        client.send(wire.disconnect(client.version, reason))
        return "disconnect %02x" % reason

    def cut(self, client):
        if client.at and not client.at.closed:
            client.at.end()
        return "cut"

    def wrong(self, client):
        number = self.random.randrange(10000)
        packets = wrong_packets(client.version, self.prefix + "/")
        name, data = packets[number % len(packets)]
        client.send(data)
        return "wrong: %s" % name

    def step(self):
        r = self.random
        client = r.choice(self.clients)
        names = [("subscribe", 22), ("unsubscribe", 6), ("publish", 30), ("many", 8), ("again", 2), ("settle", 10), ("connect", 12),
                 ("disconnect", 4), ("cut", 5), ("wrong", 4)]
        name = r.choices([n for n, _ in names], [w for _, w in names])[0]
        number = r.random()
        state = r.getstate()
        # The same numbers are drawn on every broker, whoever is connected there.
        r.seed("%s %s" % (self.seed, number))
        if (client.at is None or client.at.closed) and name not in ("connect",):
            name = "connect"
        said = getattr(self, name)(client)
        r.setstate(state)
        return ("client %d (level %d): %s" % (client.number, client.version, said)).replace(self.prefix, "w")

    def read_all(self):
        came = False
        for client in self.clients:
            for connection in client.old + ([client.at] if client.at else []):
                was = connection.closed
                for p in connection.received():
                    came = came or p["kind"] != "PINGRESP"
                    client.hear(connection, p)
                if connection.closed and not was:
                    client.tell("closed")
                    came = True
            client.old = [c for c in client.old if not c.closed]
        for client, mid, reason in self.after:
            if reason < 0x80:
                client.send(wire.answer(6, mid))
            came = True
        self.after.clear()
        return came

    def quiet(self):
        rounds, until = 0, time.monotonic() + PATIENCE
        while rounds < 2:
            pinged = {}
            for client in self.clients:
                for connection in client.old + ([client.at] if client.at else []):
                    if not connection.closed:
                        pinged[connection] = connection.pongs
                        connection.send(b"\xc0\0")
            came = False
            while any(not c.closed and c.pongs == n for c, n in pinged.items()):
                sockets = [c.socket for c in pinged if not c.closed]
                select.select(sockets, [], [], 0.5)
                came = self.read_all() or came
                if time.monotonic() > until:
                    raise Broken("no PINGRESP to %s" % [c.name for c, n in pinged.items() if not c.closed and c.pongs == n])
            time.sleep(0.015)
            came = self.read_all() or came
            owed = any(c.owed for c in self.clients if c.at and not c.at.closed)
            rounds = 0 if came or owed and time.monotonic() < until else rounds + 1

    def run(self):
        """[(what was done, {client: what it was sent})]"""
        out = []
        for client in self.clients:
            self.random.random()
        for number in range(self.steps):
            for client in self.clients:
                client.told = []
            self.shared, self.expected = set(), set()
            done = self.step()
            try:
                self.quiet()
            except Broken as wrong:
                out.append((done, {"broken": [str(wrong)]}))
                break
            told = {c.number: sorted(c.told, key=str) for c in self.clients if c.told}
            lost = sorted(self.expected - self.shared)
            if lost:
                told["lost of a group"] = lost
            out.append((done, told))
        for client in self.clients:
            for connection in client.old + [client.at]:
                if connection and not connection.closed:
                    connection.end()
        return out


def wrong_packets(version, prefix):
    """What a client may not send, or sends at an odd time. Without a second CONNECT, a shared filter with an empty name and a
    DISCONNECT with a server's reason: mosquitto forgets session and will at the first (3.1.0-2 says no more than that the connection
    ends, 3.1.2-10 that the will is published), takes the second (against 4.8.2-1) and keeps the will back at the third."""
    topic = prefix + "a"
    props = b"\0" if version == 5 else b""
    long = wire.text(topic)
    packets = [
        ("PUBLISH, QoS 3", wire.packet(0x36, long + b"\0\1" + props)),
        ("PUBLISH, QoS 1, identifier 0", wire.packet(0x32, long + b"\0\0" + props)),
        ("PUBLISH, QoS 0, DUP", wire.packet(0x38, long + props + b"x")),
        ("PUBLISH, +", wire.packet(0x30, wire.text(prefix + "+") + props)),
        ("PUBLISH, #", wire.packet(0x30, wire.text(prefix + "#") + props)),
        ("PUBLISH, no topic", wire.packet(0x30, b"\0\0" + props)),
        ("PUBLISH, U+0000", wire.packet(0x30, wire.text(b"a\0b") + props)),
        ("PUBLISH, a surrogate", wire.packet(0x30, wire.text(b"a\xed\xa0\x80") + props)),
        ("PUBLISH, $SYS", wire.packet(0x30, wire.text("$SYS/x") + props + b"x")),
        ("PUBLISH, $SYS, QoS 1", wire.packet(0x32, wire.text("$SYS/x") + b"\0\5" + props + b"x")),
        ("PUBLISH, cut short", wire.packet(0x32, b"\0\x20ab")),
        ("PUBACK of nothing", wire.answer(4, 777)),
        ("PUBREC of nothing", wire.answer(5, 778)),
        ("PUBREL of nothing", wire.answer(6, 779)),
        ("PUBCOMP of nothing", wire.answer(7, 780)),
        ("PUBACK, flags", wire.packet(0x41, b"\0\1")),
        ("PUBACK, identifier 0", wire.answer(4, 0)),
        ("PUBREC, identifier 0", wire.answer(5, 0)),
        ("PUBREL, identifier 0", wire.answer(6, 0)),
        ("PUBCOMP, identifier 0", wire.answer(7, 0)),
        ("PUBACK, cut short", wire.packet(0x40, b"\0")),
        ("SUBSCRIBE, flags", wire.packet(0x80, b"\0\1" + props + long + b"\0")),
        ("SUBSCRIBE, identifier 0", wire.subscribe(version, 0, [(topic, 0)])),
        ("SUBSCRIBE, an empty filter", wire.subscribe(version, 7, [("", 0)])),
        ("SUBSCRIBE, QoS 3", wire.subscribe(version, 7, [(topic, 3)])),
        ("SUBSCRIBE, reserved bits", wire.subscribe(version, 7, [(topic, 0xC1)])),
        ("SUBSCRIBE, a#", wire.subscribe(version, 7, [(prefix + "a#", 0)])),
        ("SUBSCRIBE, #/a", wire.subscribe(version, 7, [(prefix + "#/a", 0)])),
        ("SUBSCRIBE, a+", wire.subscribe(version, 7, [(prefix + "a+", 0)])),
        ("SUBSCRIBE, the second one is wrong", wire.subscribe(version, 7, [(topic, 0), (prefix + "a+", 0)])),
    ]
    # mosquitto does not look at these in 3.1, which says only of the first that it is wrong.
    packets += [] if version == 3 else [
        ("PUBREL, flags", wire.packet(0x60, b"\0\1")),
        ("SUBSCRIBE, no filter", wire.subscribe(version, 7, [])),
        ("UNSUBSCRIBE, no filter", wire.unsubscribe(version, 7, [])),
    ]
    # Before 5.0 such a filter may be one as any other.
    packets += [] if version < 5 else [
        ("SUBSCRIBE, $share without a filter", wire.subscribe(version, 7, [("$share/g", 0)])),
        ("SUBSCRIBE, $share with + in its name", wire.subscribe(version, 7, [("$share/g+/" + topic, 0)])),
    ]
    packets += [
        ("SUBSCRIBE, no options", wire.packet(0x82, b"\0\7" + props + long)),
        ("UNSUBSCRIBE, flags", wire.packet(0xA0, b"\0\1" + props + long)),
        ("UNSUBSCRIBE, identifier 0", wire.unsubscribe(version, 0, [topic])),
        ("UNSUBSCRIBE, an empty filter", wire.unsubscribe(version, 7, [""])),
        ("UNSUBSCRIBE, a#", wire.unsubscribe(version, 7, [prefix + "a#"])),
        ("PINGREQ, flags", b"\xc1\0"),
        ("PINGREQ, a body", b"\xc0\1\0"),
        ("DISCONNECT, flags", b"\xe1\0"),
        ("CONNACK", b"\x20\2\0\0"),
        ("SUBACK", b"\x90\3\0\1\0"),
        ("UNSUBACK", b"\xb0\2\0\1"),
        ("PINGRESP", b"\xd0\0"),
        ("type 0", b"\0\0"),
        ("AUTH", b"\xf0\0"),
        ("a length of five bytes", b"\x30\xff\xff\xff\xff\1"),
    ]
    if version < 5:
        packets += [("DISCONNECT, a body", b"\xe0\1\0")]
        return packets
    prop = lambda data: wire.packet(0x30, long + wire.varint(len(data)) + data + b"x")
    one = lambda data: wire.packet(0x82, b"\0\7" + wire.varint(len(data)) + data + long + b"\0")
    return packets + [
        ("PUBLISH, alias 0", prop(b"\x23\0\0")),
        ("PUBLISH, an alias too high", prop(b"\x23\0\x0b")),
        ("PUBLISH, an unknown alias", wire.packet(0x30, b"\0\0\3\x23\0\x0a")),
        ("PUBLISH, an alias twice", prop(b"\x23\0\1\x23\0\1")),
        ("PUBLISH, payload format 2", prop(b"\1\2")),
        ("PUBLISH, payload format twice", prop(b"\1\0\1\0")),
        ("PUBLISH, expiry twice", prop(b"\2\0\0\0\1\2\0\0\0\1")),
        ("PUBLISH, response topic #", prop(b"\x08\0\1#")),
        ("PUBLISH, session expiry", prop(b"\x11\0\0\0\1")),
        ("PUBLISH, property 0x7f", prop(b"\x7f\1")),
        ("PUBLISH, properties too long", wire.packet(0x30, long + b"\x20\1\0")),
        ("PUBLISH, no UTF-8 where it was promised", wire.packet(0x30, long + b"\2\1\1\xff\xfe")),
        ("SUBSCRIBE, identifier of subscription 0", one(b"\x0b\0")),
        ("SUBSCRIBE, two identifiers", one(b"\x0b\1\x0b\2")),
        ("SUBSCRIBE, retain handling 3", wire.subscribe(version, 7, [(topic, 0x30)])),
        ("SUBSCRIBE, no local and shared", wire.subscribe(version, 7, [("$share/g/" + topic, 4)])),
        ("SUBSCRIBE, content type", one(b"\3\0\1a")),
        ("PUBACK, a reason that is none", wire.packet(0x40, b"\0\1\7")),
        ("PUBREL, a reason that is none", wire.packet(0x62, b"\0\1\7")),
        ("PUBREC, a reason", wire.packet(0x50, b"\3\x33\x80")),
        ("PUBACK, user properties", wire.packet(0x40, b"\3\x33\0\7\x26\0\1a\0\1b")),
        ("PUBACK, reason string twice", wire.packet(0x40, b"\3\x33\0\x08\x1f\0\1a\x1f\0\1b")),
        ("DISCONNECT, an expiry where there was none", wire.disconnect(version, 0, [("session expiry", 60)])),
        ("DISCONNECT, expiry 0", wire.disconnect(version, 0, [("session expiry", 0)])),
        ("DISCONNECT, expiry twice", wire.disconnect(version, 0, [("session expiry", 1), ("session expiry", 1)])),
        ("DISCONNECT, a reason that is none", wire.packet(0xE0, b"\1")),
        ("DISCONNECT, server reference", wire.packet(0xE0, b"\0\4\x1c\0\1a")),
        ("AUTH, a method", wire.packet(0xF0, b"\x18\4\x15\0\1a")),
        ("AUTH, flags", b"\xf1\0"),
    ]
