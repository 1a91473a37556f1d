"""corners.py AMQP-PORT HTTP-PORT [GROUP...]: what a broker answers in RabbitMQ's corners, a line each, so that two brokers' lines can be compared."""

import sys
import time

import amqp

GROUPS = {}


def group(function):
    GROUPS[function.__name__] = function
    return function


def show(what):
    if isinstance(what, dict):
        return "{" + ", ".join(f"{key}={show(inner)}" for key, inner in what.items() if key not in ("r1", "ticket")) + "}"
    if isinstance(what, list) and what and isinstance(what[0], tuple) and len(what[0]) == 2 and isinstance(what[0][1], tuple):
        return "[" + ", ".join(f"{key}:{typed(inner, key)}" for key, inner in sorted(what, key=lambda pair: pair[0])) + "]"  # RabbitMQ sorts some tables
    return repr(what)


def typed(pair, key=None):
    kind, what = pair
    if kind == "T" and key == "time":
        return "T:(time)"
    if kind == "F":
        return "F" + show(what)
    if kind == "A":
        return "A[" + ", ".join(typed(one) for one in what) + "]"
    return f"{kind}:{what!r}"


class Client:
    def __init__(self, side, **how):
        self.side, self.how = side, how
        self.wire, self.closed = None, False
        self.again()

    def again(self):
        """A new connection in place of one that an error has ended."""
        if self.wire:
            self.wire.close()
        self.wire, self.closed, self.channels, self.tag = amqp.Wire(self.side.amqp).open(**self.how), False, set(), 0

    def channel(self, number=1):
        if self.closed or self.wire.ended:
            self.again()
        if number not in self.channels:
            self.wire.send(number, "channel.open")
            self.wire.wait(number, "channel.open-ok")
            self.channels.add(number)

    def line(self, whole):
        if whole is None:
            return "(ended)" if self.wire.ended else "(nothing)"
        channel, name, fields = whole
        if name in ("basic.get-ok", "basic.deliver"):
            self.tag = fields["delivery"]
        if name == "channel.close":
            self.channels.discard(channel)
            return f"channel {fields['code']} {fields['text']} ({fields['class']},{fields['method']})"
        if name == "connection.close":
            self.closed = True
            self.channels.clear()
            return f"connection {fields['code']} {fields['text']} ({fields['class']},{fields['method']})"
        return name + (" " + show(fields) if fields and set(fields) != {"r1"} else "")

    def do(self, name, channel=1, seconds=5, **given):
        """Sends a method and returns what comes next."""
        self.channel(channel)
        self.wire.send(channel, name, **given)
        return self.line(self.wire.read(seconds))

    def must(self, name, channel=1, **given):
        got = self.do(name, channel, **given)
        assert got.startswith(name + "-ok"), got
        return got

    def seen(self, quiet=0.25):
        lines = []
        while True:
            whole = self.wire.read(quiet)
            if whole is None:
                return lines + (["(ended)"] if self.wire.ended else [])
            lines.append(self.line(whole))

    def publish(self, key, body=b"", channel=1, **given):
        self.channel(channel)
        self.wire.publish(channel, key, body, **given)

    def get(self, queue, channel=1, no_ack=True, seconds=3):
        """basic.get, again while there is nothing."""
        until = time.monotonic() + seconds
        while True:
            got = self.do("basic.get", channel, queue=queue, no_ack=no_ack)
            if got != "basic.get-empty" or time.monotonic() > until:
                return got
            time.sleep(0.03)

    def count(self, queue, want, seconds=3, channel=1):
        """Waits until a queue has so many ready messages."""
        until = time.monotonic() + seconds
        while True:
            self.channel(channel)
            self.wire.send(channel, "queue.declare", queue=queue, passive=True)
            whole = self.wire.read(5)
            if whole is None or whole[1] != "queue.declare-ok":
                return self.line(whole)
            if whole[2]["messages"] == want or time.monotonic() > until:
                return f"{whole[2]['messages']} messages"
            time.sleep(0.03)


class Side:
    def __init__(self, amqp_port, http_port, name):
        self.amqp, self.http, self.name = amqp_port, http_port, name
        self.lines = []
        self.clients = []

    def client(self, **how):
        made = Client(self, **how)
        self.clients.append(made)
        return made

    def only(self, **how):
        """A client in place of all that there are."""
        for client in self.clients:
            client.wire.close()
        if self.clients:
            time.sleep(0.1)
        self.clients.clear()
        return self.client(**how)

    def say(self, what, answer):
        self.lines.append((what, answer))


VALUES = {
    "I0": ("I", 0), "I1": ("I", 1), "I5": ("I", 5), "I-1": ("I", -1), "I-5": ("I", -5), "I256": ("I", 256), "l5": ("l", 5), "l2^31": ("l", 2**31), "l2^32": ("l", 2**32),
    "l max": ("l", 2**63 - 1), "l10y": ("l", 315360000000), "l10y+1": ("l", 315360000001), "b5": ("b", 5), "B5": ("B", 5), "s5": ("s", 5), "u5": ("u", 5), "i5": ("i", 5),
    "S''": ("S", ""), "S'5'": ("S", "5"), "Sabc": ("S", "abc"), "t1": ("t", True), "t0": ("t", False), "d1.5": ("d", 1.5), "f1.5": ("f", 1.5), "V": ("V", None),
    "T5": ("T", 5), "D": ("D", (1, 15)), "x": ("x", "abc"), "F": ("F", []), "A": ("A", []),
}
QUEUE_ARGUMENTS = [
    "x-message-ttl", "x-expires", "x-max-length", "x-max-length-bytes", "x-max-priority", "x-overflow", "x-dead-letter-exchange", "x-dead-letter-routing-key",
    "x-dead-letter-strategy", "x-single-active-consumer", "x-queue-mode", "x-queue-version", "x-queue-type", "x-delivery-limit", "x-quorum-initial-group-size",
    "x-quorum-target-group-size", "x-queue-leader-locator", "x-max-in-memory-length", "x-max-in-memory-bytes", "x-max-age", "x-stream-max-segment-size-bytes",
    "x-initial-cluster-size", "x-stream-filter-size-bytes", "x-consumer-timeout", "x-queue-master-locator", "x-cancel-on-ha-failover", "x-ha-policy", "x-unknown",
]
STRINGS = {
    "x-overflow": ["drop-head", "reject-publish", "reject-publish-dlx"], "x-dead-letter-strategy": ["at-most-once", "at-least-once"], "x-queue-mode": ["default", "lazy"],
    "x-queue-type": ["classic", "quorum", "stream", "rabbit_classic_queue"], "x-queue-leader-locator": ["client-local", "balanced", "random", "least-leaders"],
    "x-queue-master-locator": ["client-local", "min-masters"], "x-max-age": ["1D", "5x"],
}


def table_of(kind, *more):
    return [("x-queue-type", ("S", kind))] * (kind != "") + list(more)


@group
def declare_arguments(side):
    c = side.only()
    for kind in ("classic", "quorum"):
        for argument in QUEUE_ARGUMENTS:
            values = dict(VALUES)
            for word in STRINGS.get(argument, []):
                values["S" + word] = ("S", word)
            for label, value in values.items():
                arguments = [("x-queue-type", ("S", kind)), (argument, value)] if argument != "x-queue-type" else [(argument, value)]
                got = c.do("queue.declare", queue="da", durable=True, arguments=arguments)
                side.say(f"{kind} {argument}={label}", got)
                if got.startswith("queue.declare-ok"):
                    c.do("queue.delete", queue="da")
            if argument == "x-queue-type" and kind == "quorum":
                continue


@group
def declare_together(side):
    c = side.only()
    S = lambda word: ("S", word)
    cases = {
        "routing key without exchange": [("x-dead-letter-routing-key", S("k"))],
        "strategy without exchange": [("x-dead-letter-strategy", S("at-least-once"))],
        "at-least-once and drop-head": [("x-dead-letter-exchange", S("")), ("x-dead-letter-strategy", S("at-least-once")), ("x-overflow", S("drop-head"))],
        "at-least-once alone": [("x-dead-letter-exchange", S("")), ("x-dead-letter-strategy", S("at-least-once"))],
        "at-least-once and reject-publish": [("x-dead-letter-exchange", S("")), ("x-dead-letter-strategy", S("at-least-once")), ("x-overflow", S("reject-publish"))],
        "reject-publish-dlx": [("x-dead-letter-exchange", S("")), ("x-overflow", S("reject-publish-dlx"))],
        "two errors": [("x-expires", ("I", 0)), ("x-message-ttl", ("I", -1))],
        "two errors reversed": [("x-message-ttl", ("I", -1)), ("x-expires", ("I", 0))],
        "unknown and wrong": [("x-foo", ("I", 0)), ("x-message-ttl", ("I", -1))],
        "same twice": [("x-message-ttl", ("I", 1000)), ("x-message-ttl", ("I", 2000))],
        "priority and sac": [("x-max-priority", ("I", 5)), ("x-single-active-consumer", ("t", True))],
        "lazy and priority": [("x-max-priority", ("I", 5)), ("x-queue-mode", S("lazy"))],
    }
    for kind in ("", "classic", "quorum"):
        for label, arguments in cases.items():
            got = c.do("queue.declare", queue="dt", durable=True, arguments=table_of(kind, *arguments))
            side.say(f"{kind or 'no type'}: {label}", got)
            if got.startswith("queue.declare-ok"):
                c.do("queue.delete", queue="dt")
    for label, how in {
        "transient": {}, "exclusive": dict(durable=True, exclusive=True), "auto-delete": dict(durable=True, auto_delete=True),
        "all": dict(exclusive=True, auto_delete=True), "transient exclusive": dict(exclusive=True),
    }.items():
        side.say(f"quorum {label}", c.do("queue.declare", queue="dq", arguments=table_of("quorum"), **how))
    for kind in ("classic", "quorum", "stream", "x"):
        side.say(f"server named {kind}", c.do("queue.declare", queue="", durable=True, arguments=table_of(kind)).replace("amq.gen", "amq.gen")[:60])
    for name in ("amq.foo", "amq.", "amq", "amq.gen-foo", "amq.rabbitmq.reply-to", "amq.rabbitmq.reply-to.foo", "amq.rabbitmq.foo", "AMQ.foo", " ", "a\nb", "a\r\nb\n", "ü" * 127, "x" * 255):
        got = c.do("queue.declare", queue=name)
        side.say(f"name {name!r:.40}", got)
        if got.startswith("queue.declare-ok"):
            side.say(f"name {name!r:.40} deleted", c.do("queue.delete", queue=name.replace("\n", "").replace("\r", "")))
        side.say(f"name {name!r:.40} passive", c.do("queue.declare", queue=name, passive=True))


@group
def declare_again(side):
    """Each argument declared with one value and again with others."""
    c = side.only()
    pairs = {
        "x-message-ttl": ("I", 1000), "x-expires": ("I", 100000), "x-max-length": ("I", 5), "x-max-length-bytes": ("I", 5000), "x-max-priority": ("I", 5), "x-overflow": ("S", "reject-publish"),
        "x-dead-letter-exchange": ("S", "x"), "x-single-active-consumer": ("t", True), "x-queue-mode": ("S", "lazy"), "x-queue-version": ("I", 2),
        "x-delivery-limit": ("I", 5), "x-quorum-initial-group-size": ("I", 1), "x-quorum-target-group-size": ("I", 1), "x-queue-leader-locator": ("S", "balanced"),
        "x-max-in-memory-length": ("I", 5), "x-max-in-memory-bytes": ("I", 5), "x-dead-letter-strategy": ("S", "at-most-once"), "x-queue-master-locator": ("S", "min-masters"), "x-unknown": ("S", "a"), "x-consumer-timeout": ("I", 60000),
    }
    others = {"I": [("I", 7), ("l", None), ("L", None), ("S", "5"), ("d", 5.0), ("t", True), ("V", None), ("I", -1)], "S": [("S", "other"), ("I", 5), ("t", True), ("S", "")],
              "t": [("t", False), ("S", "true"), ("I", 1)]}
    for kind in ("classic", "quorum"):
        for argument, value in pairs.items():
            first = [("x-queue-type", ("S", kind))]
            if argument == "x-dead-letter-strategy":
                first.append(("x-dead-letter-exchange", ("S", "x")))
            with_it = first + [(argument, value)]
            got = c.do("queue.declare", queue="dd", durable=True, arguments=with_it)
            if not got.startswith("queue.declare-ok"):
                side.say(f"{kind} {argument} first", got)
                continue
            side.say(f"{kind} {argument} the same", c.do("queue.declare", queue="dd", durable=True, arguments=with_it))
            side.say(f"{kind} {argument} without", c.do("queue.declare", queue="dd", durable=True, arguments=first))
            for letter, what in others[value[0]]:
                what = value[1] if what is None and letter != "V" else what
                side.say(f"{kind} {argument} {letter}:{what}", c.do("queue.declare", queue="dd", durable=True, arguments=first + [(argument, (letter, what))]))
            c.do("queue.delete", queue="dd")
            c.must("queue.declare", queue="dd", durable=True, arguments=first)
            side.say(f"{kind} {argument} added", c.do("queue.declare", queue="dd", durable=True, arguments=with_it))
            c.do("queue.delete", queue="dd")
    for kind in ("", "classic", "quorum"):
        c.must("queue.declare", queue="dd", durable=True, arguments=table_of(kind))
        for other in ("", "classic", "quorum", "stream", "nothing"):
            side.say(f"type {kind or 'none'} then {other or 'none'}", c.do("queue.declare", queue="dd", durable=True, arguments=table_of(other)))
        side.say(f"type {kind or 'none'} then classic with priority", c.do("queue.declare", queue="dd", durable=True, arguments=table_of("classic", ("x-max-priority", ("I", 5)))))
        for label, how in {"transient": {}, "exclusive": dict(durable=True, exclusive=True), "auto": dict(durable=True, auto_delete=True), "passive": dict(passive=True, durable=False, auto_delete=True)}.items():
            side.say(f"type {kind or 'none'} then {label}", c.do("queue.declare", queue="dd", arguments=table_of(kind), **how))
        c.do("queue.delete", queue="dd")
    c.must("queue.declare", queue="dd", auto_delete=True)
    side.say("auto then not", c.do("queue.declare", queue="dd"))
    side.say("auto then durable", c.do("queue.declare", queue="dd", durable=True, auto_delete=True))
    c.do("queue.delete", queue="dd")
    c.must("queue.declare", queue="dd", exclusive=True)
    side.say("exclusive then not", c.do("queue.declare", queue="dd"))
    d = side.client()
    for label, how in {"declare": dict(name="queue.declare", exclusive=True), "declare other": dict(name="queue.declare"), "passive": dict(name="queue.declare", passive=True), "delete": dict(name="queue.delete"), "purge": dict(name="queue.purge"),
                       "get": dict(name="basic.get"), "consume": dict(name="basic.consume"), "bind": dict(name="queue.bind", exchange="amq.direct"), "unbind": dict(name="queue.unbind", exchange="amq.direct")}.items():
        how = dict(how)
        side.say(f"exclusive elsewhere: {label}", d.do(how.pop("name"), queue="dd", **how))
    side.say("exclusive elsewhere: published", d.publish("dd", b"1") or c.count("dd", 1))


@group
def exchanges(side):
    c = side.only()
    for kind in ("direct", "fanout", "topic", "headers", "x-consistent-hash", "x-local-random", "x-random", "x-recent-history", "x-modulus-hash", "x-delayed-message", "x-jms-topic", "foo", "", "DIRECT", "x-event"):
        got = c.do("exchange.declare", exchange="e", type=kind)
        side.say(f"type {kind!r}", got)
        if got.startswith("exchange.declare-ok"):
            c.do("exchange.delete", exchange="e")
    c.must("exchange.declare", exchange="e", type="direct")
    for label, how in {"same": dict(type="direct"), "durable": dict(type="direct", durable=True), "auto": dict(type="direct", auto_delete=True), "internal": dict(type="direct", internal=True), "fanout": dict(type="fanout"),
                       "unknown": dict(type="foo"), "passive": dict(type="fanout", passive=True), "passive unknown": dict(type="foo", passive=True), "passive nothing": dict(type="", passive=True),
                       "alternate": dict(type="direct", arguments=[("alternate-exchange", ("S", "a"))]), "argument": dict(type="direct", arguments=[("foo", ("S", "a"))]),
                       "two": dict(type="fanout", durable=True, auto_delete=True)}.items():
        side.say(f"again {label}", c.do("exchange.declare", exchange="e", **how))
    c.do("exchange.delete", exchange="e")
    for label, value in VALUES.items():
        got = c.do("exchange.declare", exchange="e", type="direct", arguments=[("alternate-exchange", value)])
        side.say(f"alternate-exchange={label}", got)
        if got.startswith("exchange.declare-ok"):
            side.say(f"alternate-exchange={label} again", c.do("exchange.declare", exchange="e", type="direct", arguments=[("alternate-exchange", value)]))
            side.say(f"alternate-exchange={label} then another", c.do("exchange.declare", exchange="e", type="direct", arguments=[("alternate-exchange", ("S", "zz"))]))
            side.say(f"alternate-exchange={label} then none", c.do("exchange.declare", exchange="e", type="direct"))
            c.do("exchange.delete", exchange="e")
    for name in ("", "amq.direct", "amq.foo", "amq.rabbitmq.trace", "amq.rabbitmq.log", "amq.rabbitmq.event", "amq.match", "nothing", "a\nb", "amq.default", "amq", " "):
        for label, how in {"declare": dict(name="exchange.declare", type="direct"), "declare durable": dict(name="exchange.declare", type="direct", durable=True), "declare topic durable internal": dict(name="exchange.declare", type="topic", durable=True, internal=True),
                           "passive": dict(name="exchange.declare", passive=True), "delete": dict(name="exchange.delete"), "delete unused": dict(name="exchange.delete", if_unused=True)}.items():
            how = dict(how)
            side.say(f"{label} {name!r}", c.do(how.pop("name"), exchange=name, **how))
    c.must("exchange.declare", exchange="a", type="fanout")
    c.must("exchange.declare", exchange="b", type="fanout", auto_delete=True)
    c.must("exchange.declare", exchange="i", type="fanout", internal=True)
    c.must("queue.declare", queue="q")
    for destination in ("a", "", "nothing", "amq.fanout"):
        for source in ("b", "", "nothing"):
            for what in ("exchange.bind", "exchange.unbind"):
                side.say(f"{what} {destination!r} to {source!r}", c.do(what, destination=destination, source=source))
                if what == "exchange.bind":
                    c.do("exchange.declare", exchange="b", type="fanout", auto_delete=True)
    for queue in ("q", "", "nothing"):
        for exchange in ("a", "", "nothing"):
            for what in ("queue.bind", "queue.unbind"):
                side.say(f"{what} {queue!r} {exchange!r}", c.do(what, queue=queue, exchange=exchange, routing_key="k"))
    side.say("unbind what is not bound", c.do("queue.unbind", queue="q", exchange="a", routing_key="zz"))
    c.must("queue.bind", queue="q", exchange="a", routing_key="k", arguments=[("a", ("I", 1))])
    side.say("unbind with other arguments", c.do("queue.unbind", queue="q", exchange="a", routing_key="k"))
    side.say("delete if unused", c.do("exchange.delete", exchange="a", if_unused=True))
    side.say("unbind with arguments of another type", c.do("queue.unbind", queue="q", exchange="a", routing_key="k", arguments=[("a", ("l", 1))]))
    side.say("delete if unused", c.do("exchange.delete", exchange="a", if_unused=True))
    side.say("publish internal", c.publish("k", b"x", exchange="i") or c.seen())
    side.say("publish nothing", c.publish("k", b"x", exchange="nothing") or c.seen())
    side.say("publish amq.default", c.publish("q", b"x", exchange="amq.default") or c.seen())
    # Auto-delete.
    c.do("exchange.declare", exchange="b", type="fanout", auto_delete=True)
    c.must("queue.bind", queue="q", exchange="b")
    c.must("queue.unbind", queue="q", exchange="b")
    side.say("auto-delete after unbind", c.do("exchange.declare", exchange="b", passive=True))
    c.do("exchange.declare", exchange="b", type="fanout", auto_delete=True)
    c.must("exchange.bind", source="b", destination="amq.fanout")
    c.must("exchange.unbind", source="b", destination="amq.fanout")
    side.say("auto-delete after exchange.unbind", c.do("exchange.declare", exchange="b", passive=True))
    c.do("exchange.declare", exchange="b", type="fanout", auto_delete=True)
    c.must("exchange.bind", source="amq.fanout", destination="b")
    c.must("exchange.unbind", source="amq.fanout", destination="b")
    side.say("auto-delete after unbind as destination", c.do("exchange.declare", exchange="b", passive=True))
    c.must("queue.declare", queue="q2")
    c.must("queue.bind", queue="q2", exchange="b")
    c.must("queue.delete", queue="q2")
    side.say("auto-delete after the queue's end", c.do("exchange.declare", exchange="b", passive=True))
    # chain of auto-delete
    for name in ("c1", "c2"):
        c.must("exchange.declare", exchange=name, type="fanout", auto_delete=True)
    c.must("exchange.bind", source="c1", destination="c2")
    c.must("queue.bind", queue="q", exchange="c2")
    c.must("queue.unbind", queue="q", exchange="c2")
    side.say("chain c2", c.do("exchange.declare", exchange="c2", passive=True))
    side.say("chain c1", c.do("exchange.declare", exchange="c1", passive=True))
    for type_, arguments in {"x-consistent-hash": [[("hash-header", ("S", "h"))], [("hash-header", ("I", 1))], [("hash-header", ("S", ""))], [("hash-property", ("S", "message_id"))], [("hash-property", ("S", "app_id"))],
                                                    [("hash-property", ("S", "timestamp"))], [("hash-property", ("S", "correlation_id"))], [("hash-property", ("I", 1))],
                                                    [("hash-header", ("S", "h")), ("hash-property", ("S", "message_id"))]],
                             "x-local-random": [[("x", ("I", 1))]]}.items():
        for given in arguments:
            got = c.do("exchange.declare", exchange="h", type=type_, arguments=given)
            side.say(f"{type_} {show(given)}", got)
            if got.startswith("exchange.declare-ok"):
                c.do("exchange.delete", exchange="h")
    c.must("exchange.declare", exchange="h", type="x-consistent-hash")
    for weight in ("1", "0", "-1", "x", "", "1.5", "01", " 1", "+1"):
        side.say(f"weight {weight!r}", c.do("queue.bind", queue="q", exchange="h", routing_key=weight))
        side.say(f"weight {weight!r} unbind", c.do("queue.unbind", queue="q", exchange="h", routing_key=weight))
    c.must("queue.bind", queue="q", exchange="h", routing_key="1")
    side.say("second weight", c.do("queue.bind", queue="q", exchange="h", routing_key="2"))
    c.must("exchange.declare", exchange="lr", type="x-local-random")
    c.must("exchange.declare", exchange="f", type="fanout")
    for what, how in {"queue with key": dict(name="queue.bind", queue="q", exchange="lr", routing_key="k"), "queue": dict(name="queue.bind", queue="q", exchange="lr"), "exchange": dict(name="exchange.bind", source="lr", destination="f")}.items():
        how = dict(how)
        side.say(f"x-local-random {what}", c.do(how.pop("name"), **how))
    c.do("queue.declare", queue="lrq", durable=True, arguments=table_of("quorum"))
    side.say("x-local-random quorum", c.do("queue.bind", queue="lrq", exchange="lr"))
    for label, value in {**VALUES, "Sall": ("S", "all"), "Sany": ("S", "any"), "Sall-with-x": ("S", "all-with-x"), "Sany-with-x": ("S", "any-with-x"), "SALL": ("S", "ALL")}.items():
        side.say(f"x-match={label}", c.do("queue.bind", queue="q", exchange="amq.headers", arguments=[("x-match", value), ("a", ("I", 1))]))
        side.say(f"x-match={label} direct", c.do("queue.bind", queue="q", exchange="amq.direct", arguments=[("x-match", value), ("a", ("I", 1))]))


@group
def headers_match(side):
    """Which bindings of a headers exchange a message takes."""
    c = side.only()
    S, I = lambda word: ("S", word), lambda number: ("I", number)
    bindings = {
        "nothing": [], "no x-match a=1": [("a", I(1))], "all a=1 b=2": [("x-match", S("all")), ("a", I(1)), ("b", I(2))], "any a=1 b=2": [("x-match", S("any")), ("a", I(1)), ("b", I(2))],
        "all": [("x-match", S("all"))], "any": [("x-match", S("any"))], "all a void": [("x-match", S("all")), ("a", ("V", None))], "any a void": [("x-match", S("any")), ("a", ("V", None))],
        "all x-a=1": [("x-match", S("all")), ("x-a", I(1))], "any x-a=1": [("x-match", S("any")), ("x-a", I(1))], "all-with-x x-a=1": [("x-match", S("all-with-x")), ("x-a", I(1))], "any-with-x x-a=1": [("x-match", S("any-with-x")), ("x-a", I(1))],
        "all-with-x": [("x-match", S("all-with-x"))], "any-with-x": [("x-match", S("any-with-x"))],
        "all a='1'": [("x-match", S("all")), ("a", S("1"))], "all a=long 1": [("x-match", S("all")), ("a", ("l", 1))], "all a=1.0": [("x-match", S("all")), ("a", ("d", 1.0))], "all a=true": [("x-match", S("all")), ("a", ("t", True))],
        "all a=[]": [("x-match", S("all")), ("a", ("A", []))], "all a={}": [("x-match", S("all")), ("a", ("F", []))], "all a=T1": [("x-match", S("all")), ("a", ("T", 1))], "all a=bytes": [("x-match", S("all")), ("a", ("x", "1"))],
        "all a=[1]": [("x-match", S("all")), ("a", ("A", [I(1)]))], "all a=D": [("x-match", S("all")), ("a", ("D", (1, 15)))],
    }
    messages = {
        "none": None, "empty": [], "a=1": [("a", I(1))], "a=2": [("a", I(2))], "a=1 b=2": [("b", I(2)), ("a", I(1))], "x-a=1": [("x-a", I(1))], "a='1'": [("a", S("1"))], "a=long 1": [("a", ("l", 1))], "a=byte": [("a", ("b", 1))], "a=1.0": [("a", ("d", 1.0))],
        "a=float 1.0": [("a", ("f", 1.0))], "a=true": [("a", ("t", True))], "a=void": [("a", ("V", None))], "a=[]": [("a", ("A", []))], "a=[1]": [("a", ("A", [I(1)]))], "a={}": [("a", ("F", []))], "a=T1": [("a", ("T", 1))], "a=bytes": [("a", ("x", "1"))],
        "x-match": [("x-match", S("all"))], "a twice": [("a", I(2)), ("a", I(1))], "a=D": [("a", ("D", (1, 15)))],
    }
    c.must("exchange.declare", exchange="hm", type="headers")
    for label, arguments in bindings.items():
        c.must("queue.declare", queue="hm " + label)
        c.must("queue.bind", queue="hm " + label, exchange="hm", arguments=arguments)
    for label, headers in messages.items():
        c.publish("", label.encode(), exchange="hm", **({} if headers is None else {"headers": headers}))
    c.must("confirm.select")
    c.publish("nowhere", b"")
    c.seen()
    for label in bindings:
        got = []
        while True:
            line = c.do("basic.get", queue="hm " + label, no_ack=True)
            if line == "basic.get-empty":
                break
            got.append(line.split("body=")[1][1:-2])
        side.say(f"binding {label}", ", ".join(got))


@group
def consume(side):
    c = side.only()
    for kind in ("classic", "quorum"):
        c.must("queue.declare", queue="c", durable=True, arguments=table_of(kind))
        for argument in ("x-priority", "x-stream-offset", "x-cancel-on-ha-failover", "x-credit", "x-consumer-timeout", "x-unknown", "x-stream-filter", "x-queue-leader-locator", "x-stream-match-unfiltered"):
            for label, value in VALUES.items():
                got = c.do("basic.consume", queue="c", tag="t", arguments=[(argument, value)])
                side.say(f"{kind} {argument}={label}", got)
                if got.startswith("basic.consume-ok"):
                    c.do("basic.cancel", tag="t")
        side.say(f"{kind} exclusive", c.do("basic.consume", queue="c", tag="t", exclusive=True))
        side.say(f"{kind} another", c.do("basic.consume", 2, queue="c", tag="u"))
        side.say(f"{kind} another exclusive", c.do("basic.consume", 2, queue="c", tag="u", exclusive=True))
        side.say(f"{kind} get beside", c.do("basic.get", 2, queue="c"))
        side.say(f"{kind} cancel", c.do("basic.cancel", tag="t"))
        c.do("basic.consume", queue="c", tag="t")
        side.say(f"{kind} exclusive beside one", c.do("basic.consume", 2, queue="c", tag="u", exclusive=True))
        side.say(f"{kind} delete if unused", c.do("queue.delete", 2, queue="c", if_unused=True))
        c.do("basic.consume", queue="c", tag="t2")
        c.publish("c", b"1")
        side.say(f"{kind} delivered", [line for line in c.seen()])
        side.say(f"{kind} deleted under it", [c.do("queue.delete", 2, queue="c")] + c.seen())
        c.do("queue.delete", 3, queue="c")
    c = side.only()
    c.must("queue.declare", queue="c", exclusive=True)
    side.say("no tag", c.do("basic.consume", queue="c").split("amq.ctag")[0])
    side.say("no_local", c.do("basic.consume", queue="c", no_local=True, tag="nl"))
    c.publish("c", b"1")
    side.say("no_local delivered", len(c.seen()))
    side.say("cancel unknown", c.do("basic.cancel", tag="nothing"))
    side.say("cancel twice", [c.do("basic.cancel", tag="nl"), c.do("basic.cancel", tag="nl")])
    side.say("consume nothing", c.do("basic.consume", queue="nothing"))
    side.say("consume ''", c.do("basic.consume", 5, queue=""))
    side.say("get ''", c.do("basic.get", 6, queue=""))
    side.say("purge ''", c.do("queue.purge", 7, queue=""))
    side.say("delete ''", c.do("queue.delete", 8, queue=""))
    side.say("bind ''", c.do("queue.bind", 9, queue="", exchange="amq.direct"))
    side.say("declare '' passive", c.do("queue.declare", 10, queue="", passive=True))
    side.say("purge nothing", c.do("queue.purge", queue="nothing"))
    side.say("delete nothing", c.do("queue.delete", queue="nothing"))
    side.say("get nothing", c.do("basic.get", queue="nothing"))
    side.say("passive nothing", c.do("queue.declare", queue="nothing", passive=True))
    side.say("tag twice", [c.do("basic.consume", queue="c", tag="x"), c.do("basic.consume", queue="c", tag="x")])
    c = side.only()
    c.must("queue.declare", queue="c", exclusive=True)
    side.say("tag in two channels", [c.do("basic.consume", queue="c", tag="x"), c.do("basic.consume", 2, queue="c", tag="x")])
    side.say("long tag", c.do("basic.consume", queue="c", tag="x" * 255)[:60])
    side.say("odd tag", c.do("basic.consume", queue="c", tag="\u00e4\n "))
    for count, size, whole in ((10, 0, False), (10, 1, False), (65535, 0, True), (0, 0, True), (0, 5, True)):
        c.channel()
        side.say(f"qos {count} {size} {whole}", c.do("basic.qos", count=count, size=size, **{"global": whole}))
    c = side.only()
    c.must("queue.declare", queue="cq", durable=True, arguments=table_of("quorum"))
    c.must("basic.qos", count=10, **{"global": True})
    side.say("global qos and quorum", c.do("basic.consume", queue="cq", tag="x"))
    c.must("basic.qos", count=10, **{"global": True})
    side.say("global qos and quorum without ack", c.do("basic.consume", queue="cq", tag="x", no_ack=True))
    c.must("basic.qos", count=0, **{"global": True})
    side.say("global qos lifted", c.do("basic.consume", queue="cq", tag="x2"))
    c.do("queue.delete", 2, queue="cq")
    for kind in ("classic", "quorum"):
        c = side.only()
        c.must("queue.declare", queue="sac", durable=True, arguments=table_of(kind, ("x-single-active-consumer", ("t", True))))
        side.say(f"{kind} sac get", c.do("basic.get", queue="sac"))
        side.say(f"{kind} sac exclusive", c.do("basic.consume", queue="sac", exclusive=True, tag="a"))
        side.say(f"{kind} sac", [c.do("basic.consume", queue="sac", tag="a"), c.do("basic.consume", queue="sac", tag="b")])
        side.say(f"{kind} sac get", c.do("basic.get", 2, queue="sac"))
        for number in range(4):
            c.publish("sac", str(number).encode())
        side.say(f"{kind} sac deliver", c.seen())
        side.say(f"{kind} sac cancel", [c.do("basic.cancel", tag="a")] + c.seen())
        c.publish("sac", b"4")
        side.say(f"{kind} sac deliver", c.seen())
        c.do("queue.delete", 3, queue="sac")


@group
def properties(side):
    c = side.only()
    c.must("queue.declare", queue="p")
    cases = {f"expiration {text!r}": {"expiration": text} for text in ("", "abc", "-1", "0", "1.5", "10 ", " 10", "+10", "010", "1e3", "4294967295", "315360000000", "315360000001", "99999999999999999999999", "0x10", "٣")}
    cases |= {f"delivery mode {mode}": {"delivery_mode": mode} for mode in (0, 1, 2, 3, 255)}
    cases |= {f"priority {priority}": {"priority": priority} for priority in (0, 255)}
    cases |= {f"user id {user!r}": {"user_id": user} for user in ("guest", "other", "", "Guest")}
    for name in ("CC", "BCC", "cc"):
        cases |= {f"{name} {label}": {"headers": [(name, value)]} for label, value in VALUES.items()}
        cases |= {f"{name} [{label}]": {"headers": [(name, ("A", [("S", "p"), value]))]} for label, value in VALUES.items()}
    cases |= {f"x-death {label}": {"headers": [("x-death", value)]} for label, value in VALUES.items()}
    cases |= {f"x-death [{label}]": {"headers": [("x-death", ("A", [value]))]} for label, value in VALUES.items()}
    cases |= {"reply-to pseudo": {"reply_to": "amq.rabbitmq.reply-to"}, "reply-to pseudo.x": {"reply_to": "amq.rabbitmq.reply-to.x"}, "cluster id": {"cluster_id": "x"}, "headers twice": {"headers": [("a", ("I", 1)), ("a", ("I", 2))]},
              "timestamp max": {"timestamp": 2**64 - 1}, "headers empty": {"headers": []}}
    for label, given in cases.items():
        c.must("confirm.select")
        c.publish("p", b"x", **given)
        got = c.seen(0.15)
        side.say(f"{label} published", [line.split(" {")[0] if line.startswith("basic.ack") else line for line in got])
        side.say(f"{label} got", c.do("basic.get", queue="p", no_ack=True))
        c.do("queue.purge", queue="p")
    side.say("immediate", [c.publish("p", b"x", immediate=True), c.seen()])
    c = side.only()
    c.must("queue.declare", queue="types", exclusive=True)
    everything = [(label, value) for label, value in VALUES.items()] + [("nested", ("F", [("a", ("A", [("F", [("b", ("V", None))])]))])), ("binary", ("x", b"\x00\xff")), ("not utf8", ("S", b"\xff\xfe")), ("", ("I", 1))]
    for kind in ("classic", "quorum"):
        c.must("queue.declare", queue="t" + kind, durable=True, arguments=table_of(kind, ("x-dead-letter-exchange", ("S", "")), ("x-dead-letter-routing-key", ("S", "types"))))
        c.publish("t" + kind, b"x", headers=everything, content_type="a", content_encoding="b", delivery_mode=2, priority=9, correlation_id="c", reply_to="d", message_id="e", timestamp=7, type="f", user_id="guest", app_id="g", cluster_id="h")
        side.say(f"{kind} all types", c.get("t" + kind, no_ack=False))
        c.wire.send(1, "basic.nack", delivery=0, multiple=True, requeue=True)
        side.say(f"{kind} all types again", c.get("t" + kind, no_ack=False))
        c.wire.send(1, "basic.nack", delivery=0, multiple=True)
        side.say(f"{kind} all types dead", c.get("types"))
        c.do("queue.delete", queue="t" + kind)


@group
def acknowledgements(side):
    for kind in ("classic", "quorum"):
        c = side.only()
        c.must("queue.declare", queue="a", durable=True, arguments=table_of(kind))
        cases = {
            "ack unknown": ("basic.ack", dict(delivery=99)), "ack 0": ("basic.ack", dict(delivery=0)), "ack 0 multiple": ("basic.ack", dict(delivery=0, multiple=True)), "ack unknown multiple": ("basic.ack", dict(delivery=99, multiple=True)),
            "reject unknown": ("basic.reject", dict(delivery=99)), "reject 0": ("basic.reject", dict(delivery=0)), "nack unknown": ("basic.nack", dict(delivery=99)), "nack 0": ("basic.nack", dict(delivery=0)),
            "nack 0 multiple": ("basic.nack", dict(delivery=0, multiple=True)), "nack unknown multiple": ("basic.nack", dict(delivery=99, multiple=True)), "recover": ("basic.recover", dict(requeue=True)), "recover-async": ("basic.recover-async", dict(requeue=True)),
        }
        for label, (name, given) in cases.items():
            c.channel()
            c.wire.send(1, name, **given)
            side.say(f"{kind} {label} with nothing held", c.seen(0.1))
        for label, (name, given) in cases.items():
            c.do("queue.purge", queue="a")
            for number in range(3):
                c.publish("a", str(number).encode())
            c.count("a", 3)
            for number in range(3):
                c.get("a", no_ack=False)
            c.wire.send(1, name, **given)
            side.say(f"{kind} {label} with three held", c.seen(0.15))
            rest = []
            c.channel()
            while (got := c.do("basic.get", queue="a", no_ack=True)) != "basic.get-empty":
                rest.append(got)
            side.say(f"{kind} {label} with three held: rest", rest)
            c.do("channel.close", code=200)
            c.channels.discard(1)
        for name in ("basic.ack", "basic.nack", "basic.reject"):
            c.do("queue.purge", queue="a")
            c.publish("a", b"1")
            c.count("a", 1)
            c.do("channel.close", 1, code=200)
            c.channels.discard(1)
            c.get("a", no_ack=False)
            c.wire.send(1, name, delivery=1)
            c.wire.send(1, name, delivery=1)
            side.say(f"{kind} {name} twice", c.seen(0.15))
        for name in ("basic.recover", "basic.recover-async"):
            c.channel()
            c.wire.send(1, name, requeue=False)
            side.say(f"{kind} {name} without requeue", c.seen(0.15))
        c = side.only()
        c.do("queue.purge", queue="a")
        for number in range(6):
            c.publish("a", str(number).encode())
        c.count("a", 6)
        c.must("basic.qos", count=3)
        c.must("basic.consume", queue="a", tag="x")
        side.say(f"{kind} three", c.seen())
        c.wire.send(1, "basic.nack", delivery=2, requeue=True)
        side.say(f"{kind} nack the second", c.seen())
        c.wire.send(1, "basic.nack", delivery=0, multiple=True, requeue=True)
        side.say(f"{kind} nack all", c.seen())
        side.say(f"{kind} recover", [c.do("basic.recover", requeue=True)] + c.seen())
        c.must("basic.cancel", tag="x")
        side.say(f"{kind} recover after cancel", [c.do("basic.recover", requeue=True)] + c.seen())
        rest = []
        while (got := c.do("basic.get", queue="a", no_ack=True)) != "basic.get-empty":
            rest.append(got)
        side.say(f"{kind} rest", rest)
        side.say(f"{kind} delete with messages", c.do("queue.delete", queue="a"))
        # delete if empty, counts
        c.must("queue.declare", queue="a", durable=True, arguments=table_of(kind))
        c.publish("a", b"1")
        c.count("a", 1)
        side.say(f"{kind} delete if-empty", c.do("queue.delete", queue="a", if_empty=True))
        c = side.only()
        side.say(f"{kind} delete if-unused", c.do("queue.delete", queue="a", if_unused=True))
        c = side.only()
        side.say(f"{kind} delete", c.do("queue.delete", queue="a"))


@group
def transactions(side):
    c = side.only()
    c.must("queue.declare", queue="t", exclusive=True)
    for name in ("tx.commit", "tx.rollback"):
        side.say(f"{name} without select", c.do(name))
    c.must("confirm.select")
    side.say("tx after confirm", c.do("tx.select"))
    c.must("tx.select")
    side.say("tx twice", c.do("tx.select"))
    side.say("confirm after tx", c.do("confirm.select"))
    c.must("confirm.select")
    side.say("confirm twice", c.do("confirm.select"))
    side.say("confirm nowait", [c.wire.send(2, "channel.open"), c.seen(0.1), c.wire.send(2, "confirm.select", nowait=True), c.seen(0.1)])
    c = side.only()
    c.must("queue.declare", queue="t", exclusive=True)
    c.must("tx.select")
    c.publish("nothing", b"x", mandatory=True)
    side.say("mandatory in tx", c.seen(0.1))
    side.say("commit", [c.do("tx.commit")] + c.seen(0.1))
    c.publish("t", b"1")
    side.say("not yet", c.do("basic.get", queue="t"))
    side.say("rollback", c.do("tx.rollback"))
    side.say("gone", c.do("basic.get", queue="t"))
    c.publish("t", b"x", exchange="nothing")
    side.say("no exchange in tx", c.seen(0.2))
    c.must("tx.select")
    c.publish("t", b"1")
    c.must("tx.commit")
    side.say("got", c.get("t", no_ack=False))
    c.wire.send(1, "basic.ack", delivery=1)
    side.say("rollback the ack", c.do("tx.rollback"))
    c.wire.send(1, "basic.ack", delivery=1)
    side.say("ack again", [c.do("tx.commit")] + c.seen(0.1))
    c.wire.send(1, "basic.ack", delivery=7)
    side.say("unknown ack in tx", [c.seen(0.15), c.do("tx.commit") if c.channels else None])
    c.must("tx.select")
    c.publish("t", b"1")
    side.say("close with open tx", c.do("channel.close", code=200))
    c.channels.discard(1)
    side.say("nothing", c.do("basic.get", queue="t"))
    c.do("queue.declare", queue="tq", durable=True, arguments=table_of("quorum"))
    c.must("tx.select")
    c.publish("tq", b"1")
    side.say("quorum commit", [c.do("tx.commit")] + c.seen(0.1))
    side.say("quorum got", c.get("tq", no_ack=False))
    c.do("queue.delete", 4, queue="tq")


@group
def confirms(side):
    for kind in ("classic", "quorum"):
        c = side.only()
        c.must("queue.declare", queue="cf", durable=True, arguments=table_of(kind))
        c.must("confirm.select")
        c.publish("nothing", b"1")
        side.say(f"{kind} unroutable", c.seen(0.2))
        c.publish("nothing", b"1", mandatory=True)
        side.say(f"{kind} unroutable mandatory", c.seen(0.2))
        c.publish("cf", b"1", mandatory=True, headers=[("CC", ("A", [("S", "nothing"), ("S", "cf")]))])
        side.say(f"{kind} CC", c.seen(0.2))
        c.publish("nothing", b"1", mandatory=True, headers=[("BCC", ("A", [("S", "cf")])), ("CC", ("A", [("S", "zz")]))])
        side.say(f"{kind} BCC", c.seen(0.2))
        side.say(f"{kind} got CC", [c.get("cf"), c.get("cf")])
        c.publish("nothing", b"1", mandatory=True, headers=[("BCC", ("A", [("S", "zz")])), ("CC", ("A", [("S", "yy")]))], expiration="5", priority=3)
        side.say(f"{kind} returned with BCC", c.seen(0.2))
        c.do("queue.delete", queue="cf")
        for overflow in ("drop-head", "reject-publish", "reject-publish-dlx"):
            if kind == "quorum" and overflow.endswith("dlx"):
                continue
            c.must("queue.declare", queue="cfd", exclusive=True)
            c.must("queue.declare", queue="cf", durable=True, arguments=table_of(kind, ("x-max-length", ("I", 2)), ("x-overflow", ("S", overflow)), ("x-dead-letter-exchange", ("S", "")), ("x-dead-letter-routing-key", ("S", "cfd"))))
            got = []
            for number in range(5):
                c.publish("cf", str(number).encode(), mandatory=True)
                got.append(c.seen(0.2))
            side.say(f"{kind} {overflow}", got)
            rest = []
            while (line := c.do("basic.get", queue="cf", no_ack=True)) != "basic.get-empty":
                rest.append(line)
            side.say(f"{kind} {overflow} rest", rest)
            rest = []
            while (line := c.do("basic.get", queue="cfd", no_ack=True)) != "basic.get-empty":
                rest.append(line)
            side.say(f"{kind} {overflow} dead", rest)
            c.do("queue.delete", queue="cf")
            c.must("queue.declare", queue="cf", durable=True, arguments=table_of(kind, ("x-max-length", ("I", 0)), ("x-overflow", ("S", overflow))))
            c.publish("cf", b"x")
            side.say(f"{kind} {overflow} length 0", [c.seen(0.2), c.do("basic.get", queue="cf", no_ack=True)])
            c.do("queue.delete", queue="cf")
            c.must("queue.declare", queue="cf", durable=True, arguments=table_of(kind, ("x-max-length-bytes", ("I", 10)), ("x-overflow", ("S", overflow))))
            for size in (11, 4, 4, 4, 0, 0):
                c.publish("cf", b"x" * size)
                side.say(f"{kind} {overflow} {size} bytes", [c.seen(0.2), c.count("cf", -1, seconds=0.1)])
            c.do("queue.delete", queue="cf")


@group
def dead_letters(side):
    for kind in ("classic", "quorum"):
        c = side.only()
        c.must("exchange.declare", exchange="dlx", type="topic")
        c.must("queue.declare", queue="dead", exclusive=True)
        c.must("queue.bind", queue="dead", exchange="dlx", routing_key="#")
        base = [("x-dead-letter-exchange", ("S", "dlx"))]
        death = lambda queue, reason, count: ("F", [("count", ("l", count)), ("reason", ("S", reason)), ("queue", ("S", queue)), ("time", ("T", 1)), ("exchange", ("S", "")), ("routing-keys", ("A", [("S", "k")]))])
        publishes = {
            "plain": {}, "CC": dict(headers=[("CC", ("A", [("S", "c1"), ("S", "c2")]))]), "BCC": dict(headers=[("BCC", ("A", [("S", "c1")])), ("a", ("I", 1))]), "expiration": dict(expiration="60000"),
            "x-death": dict(headers=[("x-death", ("A", [death("other", "rejected", 3)]))]), "x-death same": dict(headers=[("x-death", ("A", [death("dl", "rejected", 3)]))]), "x-death string": dict(headers=[("x-death", ("S", "me"))]),
            "x-first": dict(headers=[("x-first-death-queue", ("S", "me")), ("x-last-death-queue", ("S", "me"))]), "priority": dict(priority=7, delivery_mode=1), "x-delivery-count": dict(headers=[("x-delivery-count", ("I", 5))]), "stream": dict(headers=[("x-stream-filter-value", ("S", "f"))]),
        }
        for key in (None, "new"):
            arguments = base + ([("x-dead-letter-routing-key", ("S", key))] if key else [])
            c.must("queue.declare", queue="dl", durable=True, arguments=table_of(kind, *arguments))
            for label, given in publishes.items():
                c.publish("dl", b"x", **given)
                c.get("dl", no_ack=False)
                c.wire.send(1, "basic.reject", delivery=c.tag, requeue=False)
                side.say(f"{kind} rejected {label}, key {key}", c.get("dead"))
            c.do("queue.delete", queue="dl")
        for label, extra, given in (("message ttl", [("x-message-ttl", ("I", 1))], {}), ("expiration", [], dict(expiration="1")), ("both", [("x-message-ttl", ("I", 30000))], dict(expiration="1")), ("ttl 0", [("x-message-ttl", ("I", 0))], {}), ("expiration 0", [], dict(expiration="0"))):
            c.must("queue.declare", queue="dl", durable=True, arguments=table_of(kind, *base, *extra))
            c.publish("dl", b"x", **given)
            side.say(f"{kind} expired by {label}", c.get("dead"))
            c.do("queue.delete", queue="dl")
        # A round: dl expires to back, whose consumer rejects to dl again.
        c.must("queue.declare", queue="dl", durable=True, arguments=table_of(kind, ("x-dead-letter-exchange", ("S", "")), ("x-dead-letter-routing-key", ("S", "back")), ("x-message-ttl", ("I", 1))))
        c.must("queue.declare", queue="back", durable=True, arguments=table_of(kind, ("x-dead-letter-exchange", ("S", "")), ("x-dead-letter-routing-key", ("S", "dl"))))
        c.publish("dl", b"x", expiration="60000", headers=[("CC", ("A", [("S", "nowhere")]))])
        for turn in range(3):
            side.say(f"{kind} round {turn}", c.get("back", no_ack=False))
            c.wire.send(1, "basic.reject", delivery=c.tag, requeue=False)
        side.say(f"{kind} round 3", c.get("back"))
        c.do("queue.delete", queue="dl")
        c.do("queue.delete", queue="back")
        # Automatic cycle.
        c.must("queue.declare", queue="dl", durable=True, arguments=table_of(kind, ("x-dead-letter-exchange", ("S", "")), ("x-message-ttl", ("I", 1))))
        c.publish("dl", b"x")
        time.sleep(0.2)
        side.say(f"{kind} cycle", c.count("dl", 0))
        c.do("queue.delete", queue="dl")
        if kind == "quorum":
            c.must("queue.declare", queue="dl", durable=True, arguments=table_of(kind, *base, ("x-delivery-limit", ("I", 1))))
            c.publish("dl", b"x")
            for turn in range(2):
                side.say(f"{kind} limit {turn}", c.get("dl", no_ack=False))
                c.wire.send(1, "basic.reject", delivery=c.tag, requeue=True)
            side.say(f"{kind} limit dead", c.get("dead"))
            c.do("queue.delete", queue="dl")
        c.do("exchange.delete", exchange="dlx")


@group
def reply_to(side):
    c = side.only()
    side.say("consume with ack", c.do("basic.consume", queue="amq.rabbitmq.reply-to"))
    side.say("publish without consumer", c.publish("nothing", b"x", reply_to="amq.rabbitmq.reply-to") or c.seen(0.2))
    side.say("declare", c.do("queue.declare", queue="amq.rabbitmq.reply-to"))
    side.say("declare passive", c.do("queue.declare", queue="amq.rabbitmq.reply-to", passive=True))
    side.say("consume", c.do("basic.consume", queue="amq.rabbitmq.reply-to", no_ack=True, tag="r"))
    side.say("consume with queue name", c.do("queue.declare", queue="amq.rabbitmq.reply-to"))
    side.say("twice", c.do("basic.consume", queue="amq.rabbitmq.reply-to", no_ack=True, tag="r2"))
    side.say("exclusive", c.do("basic.consume", queue="amq.rabbitmq.reply-to", no_ack=True, tag="r", exclusive=True))
    c.must("queue.declare", 2, queue="server", exclusive=True)
    c.publish("server", b"question", reply_to="amq.rabbitmq.reply-to", correlation_id="7")
    whole = None
    until = time.monotonic() + 3
    while time.monotonic() < until:
        c.wire.send(2, "basic.get", queue="server", no_ack=True)
        whole = c.wire.read(3)
        if whole and whole[1] == "basic.get-ok":
            break
    address = whole[2]["properties"]["reply_to"]
    side.say("address begins", address[:22])
    clean = lambda text: str(text).replace(address, "ADDRESS")
    side.say("declare the address", clean(c.do("queue.declare", 2, queue=address)))
    side.say("declare the address passive", clean(c.do("queue.declare", 2, queue=address, passive=True)))
    side.say("declare another address", clean(c.do("queue.declare", 2, queue=address[:-2] + "zz"))[:50])
    c.publish(address, b"answer", 2, correlation_id="7")
    side.say("answer", clean(c.seen(0.2)))
    c.publish("nowhere", b"answer by CC", 2, headers=[("CC", ("A", [("S", address)]))])
    side.say("answer by CC", clean(c.seen(0.2)))
    c.publish(address, b"answer", 2, mandatory=True)
    side.say("mandatory answer", sorted(clean(line) for line in c.seen(0.2)))
    c.must("confirm.select", 2)
    c.publish(address, b"answer", 2, mandatory=True)
    side.say("confirmed answer", sorted(clean(line) for line in c.seen(0.2)))
    side.say("bind it", clean(c.do("queue.bind", 3, queue="amq.rabbitmq.reply-to", exchange="amq.direct")))
    side.say("get it", clean(c.do("basic.get", 3, queue="amq.rabbitmq.reply-to")))
    side.say("purge it", clean(c.do("queue.purge", 3, queue="amq.rabbitmq.reply-to")))
    side.say("delete it", clean(c.do("queue.delete", 3, queue="amq.rabbitmq.reply-to")))
    side.say("delete address", clean(c.do("queue.delete", 3, queue=address)))
    side.say("consume address", clean(c.do("basic.consume", 3, queue=address, no_ack=True)))
    side.say("cancel", c.do("basic.cancel", tag="r"))
    c.publish(address, b"late", 2, mandatory=True)
    side.say("late answer", sorted(clean(line) for line in c.seen(0.2)))
    side.say("declare late", clean(c.do("queue.declare", 4, queue=address)))
    c.publish("server", b"question", reply_to="amq.rabbitmq.reply-to.foo")
    side.say("other reply-to", c.seen(0.2))


@group
def frames(side):
    def fresh():
        c = side.only()
        c.channel()
        return c

    def raw(label, *data, quiet=0.4):
        c = fresh()
        for one in data:
            c.wire.raw(one)
        side.say(label, c.seen(quiet))
        c.wire.close()

    m, f = amqp.method, amqp.frame
    publish = f(1, 1, m("basic.publish", routing_key="x"))
    raw("channel open twice", f(1, 1, m("channel.open")))
    raw("method on unopened channel", f(1, 2, m("basic.qos")))
    raw("publish on unopened channel", f(1, 2, m("basic.publish")))
    raw("close unopened channel", f(1, 2, m("channel.close", code=200)))
    raw("close-ok unopened channel", f(1, 2, m("channel.close-ok")))
    raw("channel.open on 0", f(1, 0, m("channel.open")))
    raw("basic.qos on 0", f(1, 0, m("basic.qos")))
    raw("connection.open on 1", f(1, 1, m("connection.open", vhost="/")))
    raw("connection.open again", f(1, 0, m("connection.open", vhost="/")))
    raw("connection.close on 1", f(1, 1, m("connection.close", code=200)))
    raw("connection.tune-ok again", f(1, 0, m("connection.tune-ok")))
    raw("start-ok again", f(1, 0, m("connection.start-ok")))
    raw("unknown class", f(1, 1, b"\x00\x63\x00\x0a"))
    raw("unknown method", f(1, 1, b"\x00\x3c\x03\xe7"))
    raw("unknown class on 0", f(1, 0, b"\x00\x63\x00\x0a"))
    raw("server's method", f(1, 1, m("basic.deliver")))
    raw("server's ok", f(1, 1, m("queue.declare-ok")))
    raw("file class", f(1, 1, b"\x00\x46\x00\x0a"))
    raw("access.request", f(1, 1, m("access.request", realm="/data")))
    raw("short method", f(1, 1, b"\x00\x3c"))
    raw("short arguments", f(1, 1, b"\x00\x32\x00\x0a\x00\x00\x05ab"))
    raw("long arguments", f(1, 1, m("basic.qos") + b"\x00\x00"))
    raw("empty method frame", f(1, 1, b""))
    raw("unknown frame type", f(4, 1, b""))
    raw("frame type 0", f(0, 1, b""))
    raw("wrong frame end", f(1, 1, m("basic.qos"), end=b"\x00"))
    raw("frame too large", b"\x01\x00\x01" + (131072 + 1).to_bytes(4, "big"))
    raw("frame far too large", b"\x01\x00\x01\xff\xff\xff\xff")
    raw("heartbeat on 1", f(8, 1, b""))
    raw("heartbeat with payload", f(8, 0, b"x"))
    raw("header without method", f(2, 1, amqp.header(0, {})))
    raw("body without method", f(3, 1, b"x"))
    raw("header on 0", f(2, 0, amqp.header(0, {})))
    raw("body on 0", f(3, 0, b"x"))
    raw("method instead of header", publish, f(1, 1, m("basic.qos")))
    raw("body instead of header", publish, f(3, 1, b"x"))
    raw("header of another class", publish, f(2, 1, b"\x00\x0a" + amqp.header(0, {})[2:]))
    raw("weight not 0", publish, f(2, 1, b"\x00\x3c\x00\x01" + amqp.header(0, {})[4:]))
    raw("method instead of body", publish, f(2, 1, amqp.header(1, {})), f(1, 1, m("basic.qos")))
    raw("header instead of body", publish, f(2, 1, amqp.header(1, {})), f(2, 1, amqp.header(1, {})))
    raw("body too long", publish, f(2, 1, amqp.header(1, {})), f(3, 1, b"xx"))
    raw("body of no octets", publish, f(2, 1, amqp.header(1, {})), f(3, 1, b""), f(3, 1, b"x"))
    raw("body after empty", publish, f(2, 1, amqp.header(0, {})), f(3, 1, b""))
    raw("body far too large", publish, f(2, 1, amqp.header(2**40, {})))
    raw("short header", publish, f(2, 1, b"\x00\x3c\x00\x00"))
    raw("header with more flags", publish, f(2, 1, amqp.header(0, {})[:-2] + b"\x00\x01\x00\x00"))
    raw("header flags unknown", publish, f(2, 1, amqp.header(0, {})[:-2] + b"\x00\x02"))
    raw("header properties cut", publish, f(2, 1, amqp.header(0, {})[:-2] + b"\x80\x00\x05ab"))
    raw("table cut", f(1, 1, m("queue.declare", queue="x")[:-4] + b"\x00\x00\x00\x05ab"))
    raw("table of unknown type", f(1, 1, m("queue.declare", queue="x")[:-4] + b"\x00\x00\x00\x04\x01aZ\x00"))
    raw("content for a method without", f(1, 1, m("basic.qos")), f(2, 1, amqp.header(0, {})))
    raw("channel.flow off", f(1, 1, m("channel.flow", active=False)))
    raw("channel.flow on", f(1, 1, m("channel.flow", active=True)))
    raw("channel.flow-ok", f(1, 1, m("channel.flow-ok", active=True)))
    raw("channel.close-ok unasked", f(1, 1, m("channel.close-ok")))
    raw("connection.close-ok unasked", f(1, 0, m("connection.close-ok")))
    raw("connection.close", f(1, 0, m("connection.close", code=200, text="bye")))
    raw("connection.close and more", f(1, 0, m("connection.close", code=200)) + f(1, 1, m("basic.qos")))
    raw("channel.close and more", f(1, 1, m("channel.close", code=200)) + f(1, 1, m("basic.qos")) + f(1, 1, m("channel.open")))
    raw("channel.close and content", f(1, 1, m("channel.close", code=200)), publish)
    raw("secret", f(1, 0, m("connection.update-secret", secret="x", reason="y")))
    raw("blocked", f(1, 0, m("connection.blocked", reason="y")))
    raw("error and more", f(1, 1, m("queue.declare", queue="nothing", passive=True)) + f(1, 1, m("basic.qos")) + f(1, 1, m("queue.declare", queue="nothing", passive=True)))
    raw("channel 2047", f(1, 2047, m("channel.open")))
    raw("channel 2048", f(1, 2048, m("channel.open")))
    raw("channel 65535", f(1, 65535, m("channel.open")))
    for start in (b"AMQP\x00\x00\x09\x00", b"AMQP\x01\x01\x00\x09", b"AMQP\x01\x01\x00\x0a", b"AMQP\x01\x01\x08\x00", b"AMQP\x01\x01\x09\x01", b"AMQP\x00\x00\x09\x02", b"AMQP\x00\x00\x08\x00", b"AMQP\x02\x00\x09\x01", b"HTTP/1.1 GET", b"\x00" * 8, b"AMQP\x00\x01\x00\x00x", b"AMQP\x03\x01\x00\x00"):
        w = amqp.Wire(side.amqp)
        w.raw(start)
        got = []
        while (whole := w.read(0.4)) is not None:
            got.append(whole[1] + (" " + str(whole[2]) if whole[1] == "protocol" else ""))
        side.say(f"header {start!r}", got + (["(ended)"] if w.ended else []))
        w.close()


@group
def handshake(side):
    def answer(label, properties=(), mechanism="PLAIN", response="\0guest\0guest", locale="en_US", tune=None, vhost="/", open_=True, capability=True, quiet=1.5):
        w = amqp.Wire(side.amqp)
        w.start()
        capabilities = [("capabilities", ("F", [("authentication_failure_close", ("t", True))]))] if capability else []
        w.send(0, "connection.start-ok", properties=[*capabilities, *properties], mechanism=mechanism, response=response, locale=locale)
        lines = []
        whole = w.read(quiet + 3)
        while whole is not None:
            channel, name, fields = whole
            lines.append(name + " " + show(fields))
            if name == "connection.tune":
                given = dict(channel_max=fields["channel_max"], frame_max=fields["frame_max"], heartbeat=0)
                given.update(tune or {})
                w.send(0, "connection.tune-ok", **given)
                w.send(0, "connection.open", vhost=vhost)
            elif name == "connection.open-ok":
                break
            whole = w.read(quiet)
        side.say(label, lines + (["(ended)"] if w.ended else []))
        w.close()

    w = amqp.Wire(side.amqp)
    got = w.start()
    side.say("start", {key: got[key] for key in ("major", "minor", "locales")})
    side.say("mechanisms", sorted(got["mechanisms"].split()))  # in an order that RabbitMQ has another one of from start to start
    side.say("capabilities", sorted(name for name, _ in dict(got["properties"])["capabilities"][1]))
    side.say("properties", sorted(name for name, _ in got["properties"]))
    w.close()
    answer("usual")
    answer("locale", locale="de_DE")
    answer("no locale", locale="")
    answer("mechanism", mechanism="FOO")
    answer("no mechanism", mechanism="")
    answer("plain lower", mechanism="plain")
    answer("anonymous", mechanism="ANONYMOUS", response="")
    answer("external", mechanism="EXTERNAL", response="")
    answer("wrong password", response="\0guest\0x")
    answer("wrong password, no capability", response="\0guest\0x", capability=False)
    answer("wrong user", response="\0nobody\0x")
    answer("plain nothing", response="")
    answer("plain one nul", response="\0guest")
    answer("plain three nuls", response="\0guest\0guest\0x")
    answer("plain authzid", response="guest\0guest\0guest")
    answer("plain other authzid", response="other\0guest\0guest")
    answer("plain without first nul", response="guest\0guest")
    answer("empty user", response="\0\0guest")
    answer("empty password", response="\0guest\0")
    amqplain = lambda *items: amqp.table(items)[4:]
    answer("amqplain", mechanism="AMQPLAIN", response=amqplain(("LOGIN", ("S", "guest")), ("PASSWORD", ("S", "guest"))))
    answer("amqplain wrong", mechanism="AMQPLAIN", response=amqplain(("LOGIN", ("S", "guest")), ("PASSWORD", ("S", "x"))))
    answer("amqplain nothing", mechanism="AMQPLAIN", response="")
    answer("amqplain no login", mechanism="AMQPLAIN", response=amqplain(("PASSWORD", ("S", "x"))))
    answer("amqplain garbage", mechanism="AMQPLAIN", response="garbage")
    answer("amqplain ints", mechanism="AMQPLAIN", response=amqplain(("LOGIN", ("I", 1)), ("PASSWORD", ("S", "x"))))
    for vhost in ("nothing", "", "/x", "//", "%2F"):
        answer(f"vhost {vhost!r}", vhost=vhost)
    for tune in (dict(channel_max=2048), dict(channel_max=0), dict(channel_max=1), dict(channel_max=65535), dict(frame_max=0), dict(frame_max=4095), dict(frame_max=4096), dict(frame_max=8191), dict(frame_max=8192), dict(frame_max=131073), dict(frame_max=100), dict(heartbeat=1), dict(heartbeat=65535)):
        answer(f"tune {tune}", tune=tune, quiet=0.5)
    answer("client properties", properties=[("product", ("I", 1)), ("connection_name", ("S", "x")), ("a", ("A", []))])
    answer("connection_name int", properties=[("connection_name", ("I", 1))])
    answer("capabilities not a table", properties=[("capabilities", ("S", "x"))], capability=False)
    w = amqp.Wire(side.amqp)
    w.start()
    w.send(0, "connection.open", vhost="/")
    side.say("open first", str(w.read(3)))
    w = amqp.Wire(side.amqp)
    w.start()
    w.raw(amqp.frame(8, 0, b""))
    side.say("heartbeat first", str(w.read(1)))


@group
def times(side):
    for kind in ("classic", "quorum"):
        c = side.only()
        c.must("queue.declare", queue="tm", durable=True, arguments=table_of(kind, ("x-expires", ("I", 300))))
        time.sleep(0.8)
        side.say(f"{kind} expired", c.do("queue.declare", queue="tm", passive=True))
        c.must("queue.declare", queue="tm", durable=True, arguments=table_of(kind, ("x-expires", ("I", 300))))
        c.must("basic.consume", queue="tm", tag="t")
        time.sleep(0.8)
        side.say(f"{kind} with consumer", c.do("queue.declare", queue="tm", passive=True))
        c.must("basic.cancel", tag="t")
        time.sleep(0.8)
        side.say(f"{kind} after cancel", c.do("queue.declare", queue="tm", passive=True))
        c.do("queue.delete", queue="tm")  # RabbitMQ looks at a quorum queue every few seconds only
        c.must("queue.declare", queue="tm", durable=True, arguments=table_of(kind, ("x-message-ttl", ("I", 0))))
        c.publish("tm", b"1")
        time.sleep(0.1)  # within the millisecond it is there
        side.say(f"{kind} ttl 0", c.get("tm", seconds=0.2))
        c.must("basic.consume", queue="tm", tag="t", no_ack=True)
        c.publish("tm", b"2")
        c.publish("tm", b"3", expiration="0")
        side.say(f"{kind} ttl 0 with consumer", c.seen())
        c.must("basic.cancel", tag="t")
        c.do("queue.delete", queue="tm")
        c.must("queue.declare", queue="tm", durable=True, arguments=table_of(kind, ("x-message-ttl", ("I", 300))))
        c.publish("tm", b"1")
        c.count("tm", 1)
        side.say(f"{kind} held", c.get("tm", no_ack=False))
        time.sleep(0.5)
        c.wire.send(1, "basic.reject", delivery=c.tag, requeue=True)
        side.say(f"{kind} requeued late", c.get("tm", seconds=0.3))
        c.do("queue.delete", queue="tm")
        c.must("queue.declare", queue="tm", durable=True, arguments=table_of(kind))
        c.publish("tm", b"1")
        c.publish("tm", b"2", expiration="1")
        time.sleep(0.2)
        side.say(f"{kind} expired behind", c.count("tm", 2, seconds=0.3))
        side.say(f"{kind} expired behind got", [c.get("tm"), c.get("tm", seconds=0.3)])
        side.say(f"{kind} purge", c.do("queue.purge", queue="tm"))
        c.do("queue.delete", queue="tm")
    c = side.only()
    for limit in (1, 5, 255):
        c.must("queue.declare", queue="pr", durable=True, arguments=[("x-max-priority", ("I", limit))])
        for priority in (0, 1, 255, 3, None, 5, 2):
            c.publish("pr", str(priority).encode(), **({} if priority is None else {"priority": priority}))
        c.count("pr", 7)
        side.say(f"priorities up to {limit}", [c.get("pr").split("properties=")[1] for _ in range(7)])
        c.do("queue.delete", queue="pr")
    c.must("queue.declare", queue="pr", durable=True, arguments=table_of("quorum"))
    for priority in (0, 4, 5, 255, 3, None, 9, 2, 4, 5, 5, 5):
        c.publish("pr", str(priority).encode(), **({} if priority is None else {"priority": priority}))
    c.count("pr", 12)
    side.say("quorum priorities", [c.get("pr").split("properties=")[1] for _ in range(12)])
    c.do("queue.delete", queue="pr")


def rest(c, queue, channel=1):
    """The bodies of all that a queue has left, with an r behind those that are redelivered."""
    left = []
    while (got := c.get(queue, channel=channel, seconds=0.15)).startswith("basic.get-ok"):
        left.append(got.split("body='")[1][:-2] + ("r" if "redelivered=True" in got else ""))
    return left if got == "basic.get-empty" else [*left, got]


def dealt(lines):
    """Deliveries without their order: (consumer, body, redelivered); other lines as they are."""
    return sorted(f"{line.split('tag=')[1].split(',')[0]} {line.split('body=')[1][:-1]}{' r' if 'redelivered=True' in line else ''}" if line.startswith("basic.deliver") else line for line in lines)


@group
def transactions_and_returns(side):
    for kind in ("classic", "quorum"):
        c = side.only()
        c.must("queue.declare", queue="x", durable=True, arguments=table_of(kind))
        c.must("tx.select")
        for key, body, mandatory in (("nothing", b"1", True), ("x", b"2", True), ("nothing", b"3", True), ("nothing", b"4", False)):
            c.publish(key, body, mandatory=mandatory)
        side.say(f"{kind} before", c.seen(0.1))
        side.say(f"{kind} commit", [c.do("tx.commit")] + c.seen(0.2))
        side.say(f"{kind} got", c.get("x", no_ack=False))
        c.publish("nothing", b"5", mandatory=True)
        c.wire.send(1, "basic.ack", delivery=c.tag)
        side.say(f"{kind} rollback", [c.do("tx.rollback")] + c.seen(0.15))
        side.say(f"{kind} nothing ready", c.count("x", 0, seconds=0.2))
        c.wire.send(1, "basic.nack", delivery=c.tag, requeue=True)
        side.say(f"{kind} nack in a transaction", c.seen(0.1))
        side.say(f"{kind} commit the nack", [c.do("tx.commit")] + c.seen(0.1) + [c.count("x", 1)])
        side.say(f"{kind} again", c.get("x", no_ack=False))
        for _ in range(2):
            c.wire.send(1, "basic.ack", delivery=c.tag)
        side.say(f"{kind} ack twice in a transaction", c.seen(0.15))
        c = side.only()
        c.do("queue.purge", queue="x")
        c.must("tx.select")
        c.publish("x", b"1")
        side.say(f"{kind} error in a transaction", [c.do("queue.declare", queue="nothing", passive=True), c.count("x", 0, seconds=0.2)])
        c.must("tx.select")
        c.publish("x", b"1")
        c.publish("x", b"2", exchange="nothing")
        side.say(f"{kind} no exchange", c.seen(0.2) + [c.count("x", 0, seconds=0.2)])
        c.must("tx.select")
        c.publish("x", b"1")
        c.publish("x", b"2")
        side.say(f"{kind} purge in a transaction", [c.do("queue.purge", queue="x"), c.do("tx.commit"), c.count("x", 2)])
        c.must("basic.consume", queue="x", tag="t")
        side.say(f"{kind} delivered", c.seen(0.2))
        c.wire.send(1, "basic.ack", delivery=0, multiple=True)
        side.say(f"{kind} recover in a transaction", [c.do("basic.recover", requeue=True)] + c.seen(0.2))
        side.say(f"{kind} commit", [c.do("tx.commit")] + c.seen(0.2))
        side.say(f"{kind} cancel", [c.do("basic.cancel", tag="t"), c.do("basic.recover", requeue=True), c.count("x", 2, seconds=0.3), c.do("tx.commit"), c.count("x", 2, seconds=0.3)])
        c.do("queue.delete", queue="x")


@group
def confirm_bursts(side):
    """Which of a burst are settled at its end, and what comes back; how many acks that takes is a broker's own business."""
    for kind in ("classic", "quorum"):
        c = side.only()
        c.must("queue.declare", queue="b", durable=True, arguments=table_of(kind))
        c.must("confirm.select")
        published, settled = 0, set()
        for label, keys in {"mixed": ["nothing", "b", "nothing", "b"], "returned": ["nothing"] * 5, "kept": ["b"] * 50, "mixed again": ["b", "b", "nothing"] * 10}.items():
            for key in keys:
                published += 1
                c.publish(key, str(published).encode(), mandatory=True)
            returned, early, others = [], [], []
            for line in c.seen(0.4):
                if line.startswith("basic.ack"):
                    number = int(line.split("delivery=")[1].split(",")[0])
                    settled |= set(range(1, number + 1)) if "multiple=True" in line else {number}
                elif line.startswith("basic.return"):
                    body = line.split("body='")[1][:-2]
                    returned.append(body)
                    early += [body] if int(body) in settled else []
                else:
                    others.append(line)
            side.say(f"{kind} {label}", {"settled": len(settled) == published, "returned": returned, "returned after its ack": early, "others": others})
        c.do("queue.delete", queue="b")


@group
def recover_several(side):
    for kind in ("classic", "quorum"):
        c = side.only()
        for queue, count in (("r", 6), ("r2", 3)):
            c.must("queue.declare", queue=queue, durable=True, arguments=table_of(kind))
            for number in range(count):
                c.publish(queue, f"{queue} {number}".encode())
            c.count(queue, count)
        c.must("basic.qos", count=2)
        for tag, channel, queue in (("a", 1, "r"), ("b", 1, "r"), ("c", 1, "r2"), ("d", 2, "r")):
            side.say(f"{kind} {tag}", [c.do("basic.consume", channel, queue=queue, tag=tag)] + c.seen(0.2))
        side.say(f"{kind} get", c.do("basic.get", queue="r"))
        got = [c.do("basic.recover", requeue=True)] + c.seen(0.3)
        side.say(f"{kind} recovered", sorted(line.split("body=")[1] if line.startswith("basic.deliver") else line for line in got))
        side.say(f"{kind} all redelivered", all("redelivered=True" in line for line in got if line.startswith("basic.deliver")))
        side.say(f"{kind} cancel the other channel's", [c.do("basic.cancel", 2, tag="d")] + c.seen(0.2))
        side.say(f"{kind} close it", c.do("channel.close", 2, code=200))
        c.channels.discard(2)
        c.seen(0.2)
        for tag in "abc":
            c.do("basic.cancel", tag=tag)
            c.seen(0.1)
        side.say(f"{kind} recover all", [c.do("basic.recover", requeue=True)] + c.seen(0.1))
        for queue in ("r", "r2"):
            side.say(f"{kind} rest of {queue}", rest(c, queue))
            c.do("queue.delete", queue=queue)


@group
def requeue_order(side):
    for kind in ("classic", "quorum"):
        for how in ("nack multiple", "nack", "nack backwards", "reject", "close"):
            c = side.only()
            c.must("queue.declare", queue="o", durable=True, arguments=table_of(kind))
            for number in range(8):
                c.publish("o", str(number).encode())
            c.count("o", 8)
            for channel in (1, 2):
                c.channel(channel)
                c.must("basic.qos", channel, count=3)
                c.must("basic.consume", channel, queue="o", tag=f"t{channel}")
                c.seen(0.15)
            for channel in (1, 2):
                c.do("basic.cancel", channel, tag=f"t{channel}")
            if how == "nack multiple":
                for channel in (2, 1):
                    c.wire.send(channel, "basic.nack", delivery=0, multiple=True, requeue=True)
                    c.seen(0.1)
            elif how == "close":
                for channel in (1, 2):
                    c.do("channel.close", channel, code=200)
                    c.channels.discard(channel)
            else:
                for delivery in (3, 2, 1) if how == "nack backwards" else (1, 2, 3):
                    for channel in (1, 2):
                        c.wire.send(channel, "basic.reject" if how == "reject" else "basic.nack", delivery=delivery, requeue=True)
                        c.seen(0.05)
            c.count("o", 8, channel=3)
            side.say(f"{kind} {how}", rest(c, "o", 3))
            c.do("queue.delete", 3, queue="o")


@group
def settled_together(side):
    """Two consumers of a channel, of which the one that came second holds the older deliveries."""
    for kind in ("classic", "quorum"):
        for tags in (("a", "b"), ("z", "b"), ("zz", "b"), ("B", "a")):
            for how in ("ack", "nack", "nack to dead", "recover", "close"):
                c, d = side.only(), side.client()
                c.must("queue.declare", queue="st dead", exclusive=True)
                c.must("queue.declare", queue="st", durable=True, arguments=table_of(kind, ("x-dead-letter-exchange", ("S", "")), ("x-dead-letter-routing-key", ("S", "st dead"))))
                for number in range(10):
                    c.publish("st", str(number).encode())
                c.count("st", 10)
                d.must("basic.qos", count=2)
                for tag in tags:
                    d.must("basic.consume", queue="st", tag=tag)
                    for _ in range(2):
                        d.wire.wait(1, "basic.deliver")
                for delivery in (1, 2):
                    d.wire.send(1, "basic.ack", delivery=delivery)
                    d.wire.wait(1, "basic.deliver")
                if how == "ack":
                    d.wire.send(1, "basic.ack", delivery=0, multiple=True)
                elif how == "recover":
                    d.wire.send(1, "basic.recover", requeue=True)
                elif how == "close":
                    for tag in tags:
                        d.must("basic.cancel", tag=tag)
                    d.wire.send(1, "channel.close", code=200)
                else:
                    d.wire.send(1, "basic.nack", delivery=0, multiple=True, requeue=how == "nack")
                side.say(f"{kind} {tags} {how}", d.seen(0.2))
                side.say(f"{kind} {tags} {how}: dead", rest(c, "st dead"))
                d.wire.close()
                time.sleep(0.1)
                side.say(f"{kind} {tags} {how}: left", rest(c, "st"))
                c.do("queue.delete", queue="st")


@group
def prefetch(side):
    for kind in ("classic", "quorum"):
        c = side.only()
        c.must("queue.declare", queue="pf", durable=True, arguments=table_of(kind))
        for number in range(20):
            c.publish("pf", str(number).encode())
        c.count("pf", 20)
        c.must("basic.qos", count=2)
        side.say(f"{kind} two", [c.do("basic.consume", queue="pf", tag="a")] + c.seen(0.2))
        side.say(f"{kind} more are for the next", [c.do("basic.qos", count=5)] + c.seen(0.2))
        side.say(f"{kind} the next", [c.do("basic.consume", queue="pf", tag="b")] + c.seen(0.2))
        c.wire.send(1, "basic.ack", delivery=2, multiple=True)
        side.say(f"{kind} two acknowledged", c.seen(0.2))
        side.say(f"{kind} get", c.do("basic.get", queue="pf"))
        c.wire.send(1, "basic.ack", delivery=0, multiple=True)
        side.say(f"{kind} all acknowledged", c.seen(0.25))
        side.say(f"{kind} cancel", c.do("basic.cancel", tag="a"))
        c.wire.send(1, "basic.nack", delivery=0, multiple=True, requeue=True)
        side.say(f"{kind} all requeued", c.seen(0.25))
        c.do("queue.delete", 3, queue="pf")


@group
def consumer_priorities(side):
    for kind in ("classic", "quorum"):
        c = side.only()
        c.must("queue.declare", queue="cp", durable=True, arguments=table_of(kind))
        c.must("basic.qos", count=2)
        for tag, priority in (("low", [("x-priority", ("I", -1))]), ("none", []), ("high", [("x-priority", ("I", 7))]), ("high too", [("x-priority", ("l", 7))])):
            c.must("basic.consume", queue="cp", tag=tag, arguments=priority)
        for number in range(10):
            c.publish("cp", str(number).encode())
        side.say(f"{kind} dealt", dealt(c.seen(0.3)))
        c.wire.send(1, "basic.ack", delivery=1)
        side.say(f"{kind} one more", c.seen(0.2))
        side.say(f"{kind} cancel", c.do("basic.cancel", tag="high"))
        c.wire.send(1, "basic.nack", delivery=0, multiple=True, requeue=True)
        side.say(f"{kind} requeued", dealt(c.seen(0.3)))
        c.do("queue.delete", queue="cp")
        # With a single active consumer.
        c = side.only()
        c.must("queue.declare", queue="s", durable=True, arguments=table_of(kind, ("x-single-active-consumer", ("t", True))))
        c.must("basic.qos", count=2)
        c.must("basic.consume", queue="s", tag="low", arguments=[("x-priority", ("I", 1))])
        for number in range(6):
            c.publish("s", str(number).encode())
        side.say(f"{kind} single", c.seen(0.2))
        side.say(f"{kind} single, a higher one", [c.do("basic.consume", queue="s", tag="high", arguments=[("x-priority", ("I", 5))])] + c.seen(0.2))
        for delivery in (1, 2):
            c.wire.send(1, "basic.ack", delivery=delivery)
            side.say(f"{kind} single, ack {delivery}", c.seen(0.25))
        c.wire.send(1, "basic.nack", delivery=0, multiple=True, requeue=True)
        side.say(f"{kind} single, requeued", c.seen(0.25))
        side.say(f"{kind} single, the highest", [c.do("basic.consume", queue="s", tag="highest", arguments=[("x-priority", ("I", 9))])] + c.seen(0.2))
        for tag in ("high", "highest", "low"):
            c.wire.send(1, "basic.cancel", tag=tag)
            side.say(f"{kind} single, cancel {tag}", sorted(c.seen(0.25)))
        c.wire.send(1, "basic.nack", delivery=0, multiple=True, requeue=True)
        side.say(f"{kind} single, all back", c.count("s", 6))
        c.do("queue.delete", queue="s")


@group
def alternates(side):
    c = side.only()
    for name, alternate in (("a1", "a2"), ("a2", "a3"), ("a3", "a1"), ("missing one", "missing"), ("itself", "itself"), ("the default", "")):
        c.must("exchange.declare", exchange=name, type="direct", arguments=[("alternate-exchange", ("S", alternate))])
    c.must("queue.declare", queue="aq", exclusive=True)
    c.must("confirm.select")
    for exchange in ("a1", "missing one", "itself", "the default"):
        c.publish("aq", exchange.encode(), exchange=exchange, mandatory=True)
        side.say(f"{exchange}, nothing bound", c.seen(0.15))
    c.must("queue.bind", queue="aq", exchange="a3", routing_key="k")
    for key in ("k", "other"):
        c.publish(key, key.encode(), exchange="a1", mandatory=True)
        side.say(f"a chain, {key}", c.seen(0.15))
    c.must("exchange.delete", exchange="a2")
    c.publish("k", b"gap", exchange="a1", mandatory=True)
    side.say("a gap in it", c.seen(0.15) + rest(c, "aq"))
    c.must("exchange.declare", exchange="inner", type="fanout", internal=True)
    c.must("queue.bind", queue="aq", exchange="inner")
    c.must("exchange.declare", exchange="to inner", type="direct", arguments=[("alternate-exchange", ("S", "inner"))])
    c.publish("z", b"internal", exchange="to inner", mandatory=True)
    side.say("an internal one", c.seen(0.15) + rest(c, "aq"))
    c.must("queue.declare", queue="aq2", exclusive=True)
    c.must("queue.bind", queue="aq2", exchange="to inner", routing_key="y")
    c.publish("z", b"half", exchange="to inner", headers=[("CC", ("A", [("S", "y")]))])
    side.say("one of two keys is bound", [c.seen(0.15), rest(c, "aq"), rest(c, "aq2")])
    c.must("exchange.declare", exchange="outer", type="direct")
    c.must("exchange.bind", source="outer", destination="to inner", routing_key="w")
    c.publish("w", b"through", exchange="outer", mandatory=True)
    side.say("of an exchange that is bound", c.seen(0.15) + rest(c, "aq"))
    c.must("exchange.bind", source="to inner", destination="outer", routing_key="w")
    c.publish("w", b"round", exchange="outer", mandatory=True)
    side.say("in a ring", c.seen(0.15) + rest(c, "aq"))
    c.must("exchange.bind", source="outer", destination="outer", routing_key="s")
    c.publish("s", b"self", exchange="outer", mandatory=True)
    side.say("bound to itself", c.seen(0.15))


@group
def copies(side):
    c = side.only()
    c.must("exchange.declare", exchange="tp", type="topic", auto_delete=True)
    for queue, pattern in (("k1", "a.#"), ("k2", "b.*")):
        c.must("queue.declare", queue=queue, exclusive=True)
        c.must("queue.bind", queue=queue, exchange="tp", routing_key=pattern)
    keys = lambda *given: ("A", [key if isinstance(key, tuple) else ("S", key) for key in given])
    cases = {
        "the same twice": ("", "k1", [("CC", keys("k1", "k1"))]), "CC and BCC the same": ("", "k1", [("CC", keys("k2")), ("BCC", keys("k2"))]), "BCC alone": ("", "no", [("BCC", keys("k1", "k2"))]), "empty arrays": ("", "k1", [("CC", keys()), ("BCC", keys())]),
        "the empty key": ("", "k1", [("CC", keys(""))]), "topics": ("tp", "a.x", [("CC", keys("b.y")), ("BCC", keys("b.z"))]), "255 octets": ("", "k1", [("CC", keys("x" * 255))]), "256 octets": ("", "k1", [("CC", keys("x" * 256))]), "an array within": ("", "k1", [("CC", keys(keys("k2")))]),
        "a number within": ("", "k1", [("CC", keys(("I", 1), "k2"))]), "CC twice": ("", "no", [("CC", keys("k1")), ("CC", keys("k2"))]), "not UTF-8": ("", "k1", [("CC", keys(("S", b"\xff"), "k2"))]), "200 keys": ("", "no", [("CC", keys(*["z"] * 200, "k2"))]), "CC void": ("", "k1", [("CC", ("V", None))]),
        "CC void after BCC": ("", "k1", [("BCC", keys("k2")), ("CC", ("V", None))]), "octets": ("", "k1", [("CC", keys(("x", "k2")))]),
    }
    for label, (exchange, key, headers) in cases.items():
        c.must("confirm.select")
        c.publish(key, label.encode(), exchange=exchange, mandatory=True, headers=headers)
        side.say(label, c.seen(0.15))
        c.channel()
        for queue in ("k1", "k2"):
            side.say(f"{label}: {queue}", [c.get(queue, seconds=0.1), c.get(queue, seconds=0)])


@group
def lives(side):
    """Queues that go with their consumers or connection."""
    c, d = side.only(), side.client()
    c.must("queue.declare", queue="ad", auto_delete=True)
    d.must("basic.consume", queue="ad", tag="x")
    side.say("one of two consumers goes", [c.do("basic.consume", queue="ad", tag="y"), d.do("basic.cancel", tag="x"), c.do("queue.declare", queue="ad", passive=True)])
    side.say("the channel of the other goes", c.do("channel.close", code=200))
    c.channels.discard(1)
    time.sleep(0.2)
    side.say("gone", d.do("queue.declare", queue="ad", passive=True))
    c.must("queue.declare", queue="ad", auto_delete=True)
    c.publish("ad", b"1")
    c.must("basic.consume", queue="ad", tag="x")
    c.seen(0.1)
    side.say("with a message held", c.do("basic.cancel", tag="x"))
    time.sleep(0.2)
    side.say("gone with it", c.do("queue.declare", queue="ad", passive=True))
    c.must("queue.declare", queue="ad", auto_delete=True)
    side.say("a get is no consumer", [c.do("basic.get", queue="ad"), c.do("queue.declare", queue="ad", passive=True), c.do("queue.delete", queue="ad")])
    dead = [("x-dead-letter-exchange", ("S", "")), ("x-dead-letter-routing-key", ("S", "dead"))]
    c.must("queue.declare", queue="dead")
    for what in ("queue.delete", "queue.purge"):
        c.must("queue.declare", queue="ex", exclusive=True, arguments=dead)
        c.publish("ex", b"1")
        c.count("ex", 1)
        side.say(f"no dead letters by {what}", [c.do(what, queue="ex"), c.count("dead", 0, seconds=0.2)])
    c.publish("ex", b"2")
    c.must("basic.consume", queue="ex", tag="t")
    side.say("held", c.seen(0.15))
    side.say("deleted meanwhile", sorted([c.do("queue.delete", 2, queue="ex")] + c.seen(0.15)))
    for _ in range(2):
        c.wire.send(1, "basic.ack", delivery=1)
        side.say("acknowledged then", c.seen(0.15))
    c.must("queue.declare", queue="ex", exclusive=True)
    side.say("consumed elsewhere", d.do("basic.consume", queue="ex"))
    c.wire.close()
    time.sleep(0.3)
    c.closed = True
    side.say("gone with its connection", d.do("queue.declare", queue="ex", passive=True))
    side.say("exclusive and durable", [d.do("queue.declare", queue="ed", exclusive=True, durable=True), d.do("queue.declare", queue="ed", exclusive=True, durable=True), d.do("queue.declare", queue="ed", exclusive=True), d.do("queue.declare", queue="ed", durable=True)])
    d.must("queue.declare", queue="ec")
    d.must("basic.consume", queue="ec", tag="1", exclusive=True)
    e = side.client()
    side.say("an exclusive consumer elsewhere", [e.do("basic.consume", queue="ec"), e.do("basic.get", queue="ec"), e.do("queue.purge", queue="ec"), e.do("queue.delete", queue="ec", if_unused=True), e.do("queue.delete", queue="ec")] + d.seen(0.2))
    d.must("queue.declare", queue="ie")
    d.publish("ie", b"1")
    d.count("ie", 1)
    d.get("ie", no_ack=False)
    side.say("empty with one held", [d.do("queue.purge", queue="ie"), d.do("queue.delete", 2, queue="ie", if_empty=True)])
    for kind in ("classic", "quorum"):
        c, d = side.only(), side.client()
        c.must("queue.declare", queue="x", durable=True, arguments=table_of(kind))
        c.must("exchange.declare", exchange="xa", type="fanout", auto_delete=True)
        c.must("queue.bind", queue="x", exchange="xa")
        for tag in "ab":
            c.must("basic.consume", queue="x", tag=tag)
        d.must("basic.consume", queue="x", tag="o")
        side.say(f"{kind} deleted", [c.do("queue.delete", queue="x")] + sorted(c.seen(0.2)))
        side.say(f"{kind} deleted, told", d.seen(0.2))
        side.say(f"{kind} deleted, its exchange", c.do("exchange.declare", exchange="xa", passive=True))
        side.say(f"{kind} cancel after that", [c.do("basic.cancel", tag="a"), d.do("basic.cancel", tag="o")])
        c.must("queue.declare", queue="x", durable=True, arguments=table_of(kind))
        for number in range(4):
            c.publish("x", str(number).encode())
        c.count("x", 4)
        c.get("x", no_ack=False)
        side.say(f"{kind} purge and delete with one held", [c.do("queue.purge", queue="x"), c.do("queue.delete", queue="x")])
        c.wire.send(1, "basic.nack", delivery=c.tag, requeue=True)
        side.say(f"{kind} nack after that", c.seen(0.2) + [c.do("basic.recover", requeue=True)])
        c.must("queue.declare", queue="x", durable=True, arguments=table_of(kind))
        side.say(f"{kind} another of that name", [c.do("queue.declare", queue="x", passive=True), c.do("queue.delete", queue="x")])


@group
def limits_together(side):
    for kind in ("classic", "quorum"):
        for overflow in ("drop-head", "reject-publish") + (("reject-publish-dlx",) if kind == "classic" else ()):
            c = side.only()
            c.must("queue.declare", queue="lt dead", exclusive=True)
            arguments = [("x-dead-letter-exchange", ("S", "")), ("x-dead-letter-routing-key", ("S", "lt dead")), ("x-max-length", ("I", 3)), ("x-max-length-bytes", ("I", 10)), ("x-message-ttl", ("I", 2500)), ("x-overflow", ("S", overflow))]
            c.must("queue.declare", queue="lt", durable=True, arguments=table_of(kind, *arguments))
            c.must("confirm.select")
            for number, size in enumerate((4, 4, 4, 1, 1, 9, 11, 1)):
                c.publish("lt", bytes([97 + number]) * size)
                side.say(f"{kind} {overflow} {number}", c.seen(0.1))
            c.count("lt", 0, seconds=6)
            side.say(f"{kind} {overflow} dead", rest(c, "lt dead"))
            c.publish("lt", b"x")
            side.say(f"{kind} {overflow} again", c.seen(0.1))
            c.must("basic.qos", count=2)
            c.must("basic.consume", queue="lt", tag="t")
            for number in range(6):
                c.publish("lt", str(number).encode() * 2)
                c.seen(0.05)
            c.wire.send(1, "basic.nack", delivery=0, multiple=True, requeue=True)
            side.say(f"{kind} {overflow} requeued", [line.split("body=")[1] for line in c.seen(0.2) if line.startswith("basic.deliver")])
            c.do("queue.delete", queue="lt")
    c = side.only()
    for kind, overflow in (("classic", "drop-head"), ("classic", "reject-publish"), ("quorum", "drop-head")):
        c.must("queue.declare", queue="lp", durable=True, arguments=table_of(kind, ("x-max-length", ("I", 3)), ("x-overflow", ("S", overflow)), *([("x-max-priority", ("I", 5))] if kind == "classic" else [])))
        c.must("confirm.select")
        for number, priority in enumerate((1, 5, 3, 2, 5, 4)):
            c.publish("lp", f"{number} of priority {priority}".encode(), priority=priority)
            side.say(f"{kind} {overflow} {number} of priority {priority}", c.seen(0.1))
        side.say(f"{kind} {overflow} with priorities left", rest(c, "lp"))
        c.do("queue.delete", queue="lp")


@group
def half_content(side):
    m, f = amqp.method, amqp.frame
    publish, header, body = f(1, 1, m("basic.publish", routing_key="hc")), f(2, 1, amqp.header(3, {})), f(3, 1, b"abc")
    nothing = lambda channel: f(1, channel, m("queue.declare", queue="nothing", passive=True))
    for label, frames in {
        "an error on another channel": [publish, nothing(2), header, body], "a method on another channel": [publish, header, f(1, 2, m("queue.declare", queue="hc", passive=True)), body], "heartbeats": [publish, f(8, 0, b""), header, f(8, 0, b""), body],
        "after an error": [nothing(1), publish, header, body], "twice, the first to no exchange": [f(1, 1, m("basic.publish", exchange="none", routing_key="hc")), header, body, publish, header, body], "channel.close": [publish, header, f(1, 1, m("channel.close", code=200))],
        "connection.close": [publish, header, f(1, 0, m("connection.close", code=200))], "no body": [publish, f(2, 1, amqp.header(0, {}))], "two bodies": [publish, f(2, 1, amqp.header(6, {})), body, f(3, 1, b"def")],
        "two channels": [publish, f(1, 2, m("basic.publish", routing_key="hc")), f(2, 2, amqp.header(1, {})), f(2, 1, amqp.header(2, {})), f(3, 1, b"ab"), f(3, 2, b"c")],
    }.items():
        c = side.only()
        c.channel()
        c.channel(2)
        c.must("queue.declare", queue="hc")
        for one in frames:
            c.wire.raw(one)
        side.say(label, c.seen(0.3))
        d = side.client()
        side.say(f"{label}: left", sorted(rest(d, "hc")))
        d.do("queue.delete", queue="hc")


@group
def connection_methods(side):
    m, f = amqp.method, amqp.frame

    def say(label, channel, name, **given):
        c.channel()
        c.wire.raw(f(1, channel, m(name, **given)))
        side.say(label, c.seen(0.25))

    c = side.only()
    for secret, reason in (("guest", "y"), ("", ""), ("x" * 300, "r" * 255)):
        say(f"secret {secret:.5}", 0, "connection.update-secret", secret=secret, reason=reason)
    side.say("still there", c.do("basic.qos", count=1))
    say("secret on 1", 1, "connection.update-secret", secret="x", reason="r")
    for name, given in {"blocked": dict(reason="r"), "unblocked": {}, "start": {}, "open-ok": {}, "secure-ok": dict(response="x"), "tune": {}}.items():
        c = side.only()
        say(name, 0, f"connection.{name}", **given)


@group
def topics(side):
    c = side.only()
    c.must("exchange.declare", exchange="tt", type="topic", auto_delete=True)
    patterns = ["", "#", "*", "#.#", "*.#", "#.*", "#.*.#", "a", "a.#", "a.*", "*.a", "#.a", "a.#.b", "a.*.b", "a.#.#.b", "*.*", "a..b", "a.", "..", "*.", "#.", "a#", "a*", "*a", "**", "##", "A", "a.b", "a.b.#", "#.b.#", "*.#.*", "a b.*", "ü.*", ".#", ".*"]
    for pattern in patterns:
        c.must("queue.declare", queue=f"tt {pattern}", exclusive=True)
        c.must("queue.bind", queue=f"tt {pattern}", exchange="tt", routing_key=pattern)
    for key in ("", "a", "a.b", "a.c.b", "a..b", "a.", ".", ".a", "..", "a.b.c", "A", "#", "*", "a.#", "a.*", "a#", "a*", "a b.c", "ü.x", "b", "a.b.", "x.b.y", "a.a.b.b"):
        c.publish(key, (key or "(empty)").encode(), exchange="tt")
    c.must("confirm.select")
    c.publish("nowhere", b"")
    c.seen()
    for pattern in patterns:
        side.say(f"pattern {pattern!r}", rest(c, f"tt {pattern}"))


@group
def nowait(side):
    c = side.only()
    cases = [
        ("queue.declare", dict(queue="nw", nowait=True)), ("queue.declare", dict(queue="", nowait=True)), ("queue.declare", dict(queue="nothing", passive=True, nowait=True)), ("queue.bind", dict(queue="nw", exchange="amq.direct", nowait=True)),
        ("queue.bind", dict(queue="nothing", exchange="amq.direct", nowait=True)), ("exchange.declare", dict(exchange="nwx", type="fanout", nowait=True)), ("exchange.bind", dict(source="nwx", destination="amq.fanout", nowait=True)),
        ("exchange.unbind", dict(source="nwx", destination="amq.fanout", nowait=True)), ("exchange.delete", dict(exchange="nwx", nowait=True)), ("exchange.delete", dict(exchange="amq.direct", nowait=True)), ("basic.consume", dict(queue="nw", tag="a", nowait=True)),
        ("basic.consume", dict(queue="nw", tag="", nowait=True)), ("basic.consume", dict(queue="nothing", tag="b", nowait=True)), ("basic.cancel", dict(tag="a", nowait=True)), ("basic.cancel", dict(tag="zz", nowait=True)), ("queue.purge", dict(queue="nw", nowait=True)),
        ("queue.purge", dict(queue="nothing", nowait=True)), ("queue.delete", dict(queue="nw", nowait=True)), ("queue.delete", dict(queue="nothing", nowait=True)), ("confirm.select", dict(nowait=True)),
    ]
    for name, given in cases:
        c.channel()
        c.wire.send(1, name, **given)
        side.say(f"{name} {given}", c.seen(0.15))
        side.say(f"{name} {given} then", c.do("basic.qos", count=1))
    c.channel()
    c.wire.send(1, "queue.declare", queue="nw2", exclusive=True, nowait=True)
    side.say("default queue", [c.do("basic.consume", queue="", tag="x"), c.do("queue.declare", queue="", passive=True), c.do("queue.bind", queue="", exchange="amq.direct", routing_key="")])
    c.publish("nw2", b"by default queue name", exchange="amq.direct")
    c.publish("", b"", exchange="amq.direct")
    c.publish("nw2", b"1", exchange="")
    side.say("bound with the empty key", c.seen())


def main():
    port, http = int(sys.argv[1]), int(sys.argv[2])
    run(Side(port, http, "one"), sys.argv[3:], lambda what, answer: print(f"{what}\t{answer}"))


def run(side, names, each=None):
    for name in names or GROUPS:
        try:
            GROUPS[name](side)
        except Exception as error:
            import traceback
            side.say(f"FAILED {name}", traceback.format_exc().splitlines()[-1] + " " + " / ".join(t.strip() for t in traceback.format_exc().splitlines()[-6:-1]))
        for client in side.clients:
            client.wire.close()
        side.clients.clear()
        time.sleep(0.3)
    if each:
        for what, answer in side.lines:
            each(what, answer)
    return side.lines


if __name__ == "__main__":
    main()
