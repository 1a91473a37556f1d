"""Messages on their way to clients, and what those do with them."""

import time

from corners import VALUES, group, rest, table_of


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


def dealt(lines):
    """Deliveries without their order: (consumer, body, redelivered); other lines as they are."""
    return sorted(f"{line.split('tag=')[1].split(',')[0]} {line.split('body=')[1][:-1]}{' r' if 'redelivered=True' in line else ''}" if line.startswith("basic.deliver") else line for line in lines)


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
