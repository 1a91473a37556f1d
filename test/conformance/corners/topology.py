"""How queues, exchanges and bindings are declared, and where they send."""

from corners import VALUES, group, rest, show, table_of

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
