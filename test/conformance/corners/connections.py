"""Frames, handshakes, and what ends connections and channels."""

import amqp
from corners import group, rest, show


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
