"""Messages on their way to queues: properties, transactions, confirms, returns, replies, copies."""

import time

from corners import VALUES, group, table_of


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
