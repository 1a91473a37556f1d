"""What becomes of messages in queues, and of queues."""

import time

from corners import group, rest, table_of


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
