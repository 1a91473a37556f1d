"""AMQP 0.9.1 over a socket with nothing hidden: every value of a table has its type with it, everything that a broker sends is a line in its order."""

import select
import socket
import struct
import time

# name -> (class, method, arguments), of which each is a letter and a name: o octet, s short, l long, q longlong, a short string, x long string, t table, b bit.
METHODS = {
    "connection.start": (10, 10, "o:major o:minor t:properties x:mechanisms x:locales"),
    "connection.start-ok": (10, 11, "t:properties a:mechanism x:response a:locale"),
    "connection.secure": (10, 20, "x:challenge"),
    "connection.secure-ok": (10, 21, "x:response"),
    "connection.tune": (10, 30, "s:channel_max l:frame_max s:heartbeat"),
    "connection.tune-ok": (10, 31, "s:channel_max l:frame_max s:heartbeat"),
    "connection.open": (10, 40, "a:vhost a:r1 b:r2"),
    "connection.open-ok": (10, 41, "a:r1"),
    "connection.close": (10, 50, "s:code a:text s:class s:method"),
    "connection.close-ok": (10, 51, ""),
    "connection.blocked": (10, 60, "a:reason"),
    "connection.unblocked": (10, 61, ""),
    "connection.update-secret": (10, 70, "x:secret a:reason"),
    "connection.update-secret-ok": (10, 71, ""),
    "channel.open": (20, 10, "a:r1"),
    "channel.open-ok": (20, 11, "x:r1"),
    "channel.flow": (20, 20, "b:active"),
    "channel.flow-ok": (20, 21, "b:active"),
    "channel.close": (20, 40, "s:code a:text s:class s:method"),
    "channel.close-ok": (20, 41, ""),
    "access.request": (30, 10, "a:realm b:exclusive b:passive b:active b:write b:read"),
    "access.request-ok": (30, 11, "s:ticket"),
    "exchange.declare": (40, 10, "s:ticket a:exchange a:type b:passive b:durable b:auto_delete b:internal b:nowait t:arguments"),
    "exchange.declare-ok": (40, 11, ""),
    "exchange.delete": (40, 20, "s:ticket a:exchange b:if_unused b:nowait"),
    "exchange.delete-ok": (40, 21, ""),
    "exchange.bind": (40, 30, "s:ticket a:destination a:source a:routing_key b:nowait t:arguments"),
    "exchange.bind-ok": (40, 31, ""),
    "exchange.unbind": (40, 40, "s:ticket a:destination a:source a:routing_key b:nowait t:arguments"),
    "exchange.unbind-ok": (40, 51, ""),
    "queue.declare": (50, 10, "s:ticket a:queue b:passive b:durable b:exclusive b:auto_delete b:nowait t:arguments"),
    "queue.declare-ok": (50, 11, "a:queue l:messages l:consumers"),
    "queue.bind": (50, 20, "s:ticket a:queue a:exchange a:routing_key b:nowait t:arguments"),
    "queue.bind-ok": (50, 21, ""),
    "queue.purge": (50, 30, "s:ticket a:queue b:nowait"),
    "queue.purge-ok": (50, 31, "l:messages"),
    "queue.delete": (50, 40, "s:ticket a:queue b:if_unused b:if_empty b:nowait"),
    "queue.delete-ok": (50, 41, "l:messages"),
    "queue.unbind": (50, 50, "s:ticket a:queue a:exchange a:routing_key t:arguments"),
    "queue.unbind-ok": (50, 51, ""),
    "basic.qos": (60, 10, "l:size s:count b:global"),
    "basic.qos-ok": (60, 11, ""),
    "basic.consume": (60, 20, "s:ticket a:queue a:tag b:no_local b:no_ack b:exclusive b:nowait t:arguments"),
    "basic.consume-ok": (60, 21, "a:tag"),
    "basic.cancel": (60, 30, "a:tag b:nowait"),
    "basic.cancel-ok": (60, 31, "a:tag"),
    "basic.publish": (60, 40, "s:ticket a:exchange a:routing_key b:mandatory b:immediate"),
    "basic.return": (60, 50, "s:code a:text a:exchange a:routing_key"),
    "basic.deliver": (60, 60, "a:tag q:delivery b:redelivered a:exchange a:routing_key"),
    "basic.get": (60, 70, "s:ticket a:queue b:no_ack"),
    "basic.get-ok": (60, 71, "q:delivery b:redelivered a:exchange a:routing_key l:messages"),
    "basic.get-empty": (60, 72, "a:r1"),
    "basic.ack": (60, 80, "q:delivery b:multiple"),
    "basic.reject": (60, 90, "q:delivery b:requeue"),
    "basic.recover-async": (60, 100, "b:requeue"),
    "basic.recover": (60, 110, "b:requeue"),
    "basic.recover-ok": (60, 111, ""),
    "basic.nack": (60, 120, "q:delivery b:multiple b:requeue"),
    "confirm.select": (85, 10, "b:nowait"),
    "confirm.select-ok": (85, 11, ""),
    "tx.select": (90, 10, ""),
    "tx.select-ok": (90, 11, ""),
    "tx.commit": (90, 20, ""),
    "tx.commit-ok": (90, 21, ""),
    "tx.rollback": (90, 30, ""),
    "tx.rollback-ok": (90, 31, ""),
}
NAMES = {(c, m): name for name, (c, m, _) in METHODS.items()}
WITH_CONTENT = {"basic.publish", "basic.return", "basic.deliver", "basic.get-ok"}
PROPERTIES = ["a:content_type", "a:content_encoding", "t:headers", "o:delivery_mode", "o:priority", "a:correlation_id", "a:reply_to", "a:expiration",
              "a:message_id", "q:timestamp", "a:type", "a:user_id", "a:app_id", "a:cluster_id"]


def octets(value):
    return value if isinstance(value, bytes) else value.encode()


def short(value):
    value = octets(value)
    return bytes([len(value)]) + value


def long(value):
    value = octets(value)
    return struct.pack(">I", len(value)) + value


def value(typed):
    """A typed value: (letter, what), the letters being those of RabbitMQ's table of field types."""
    kind, what = typed
    packed = {"b": ">b", "B": ">B", "s": ">h", "u": ">H", "I": ">i", "i": ">I", "l": ">q", "L": ">Q", "f": ">f", "d": ">d", "T": ">Q"}.get(kind)
    letter = kind.encode()
    if packed:
        return letter + struct.pack(packed, what)
    if kind == "t":
        return letter + bytes([what])
    if kind == "V":
        return letter
    if kind in "Sx":
        return letter + long(what)
    if kind == "F":
        return letter + table(what)
    if kind == "A":
        return letter + long(b"".join(value(one) for one in what))
    if kind == "D":
        return letter + struct.pack(">Bi", *what)
    return letter + what


def table(items):
    return long(b"".join(short(key) + value(typed) for key, typed in items))


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, count):
        part = self.data[self.at : self.at + count]
        self.at += count
        return part

    def number(self, form):
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def short(self):
        return self.take(self.number(">B")).decode("utf8", "backslashreplace")

    def long(self):
        return self.take(self.number(">I"))

    def table(self):
        inner, items = Reader(self.long()), []
        while inner.at < len(inner.data):
            key = inner.short()
            items.append((key, inner.value()))
        return items

    def value(self):
        kind = self.take(1).decode("latin1")
        packed = {"b": ">b", "B": ">B", "s": ">h", "u": ">H", "I": ">i", "i": ">I", "l": ">q", "L": ">Q", "f": ">f", "d": ">d", "T": ">Q"}.get(kind)
        if packed:
            return kind, self.number(packed)
        if kind == "t":
            return kind, self.number(">B") != 0
        if kind == "V":
            return kind, None
        if kind in "Sx":
            return kind, self.long().decode("utf8", "backslashreplace")
        if kind == "F":
            return kind, self.table()
        if kind == "A":
            inner, items = Reader(self.long()), []
            while inner.at < len(inner.data):
                items.append(inner.value())
            return kind, items
        if kind == "D":
            return kind, (self.number(">B"), self.number(">i"))
        raise AssertionError(f"a field of type {kind!r}")


def method(name, **given):
    c, m, layout = METHODS[name]
    out, bits, count = struct.pack(">HH", c, m), 0, 0
    for field in layout.split():
        kind, key = field.split(":")
        given_value = given.pop(key, None)
        if kind == "b":
            bits |= bool(given_value) << count
            count += 1
            continue
        if count:
            out, bits, count = out + bytes([bits]), 0, 0
        if kind in "oslq":
            out += struct.pack({"o": ">B", "s": ">H", "l": ">I", "q": ">Q"}[kind], given_value or 0)
        elif kind == "a":
            out += short(given_value or "")
        elif kind == "x":
            out += long(given_value or "")
        else:
            out += table(given_value or [])
    if count:
        out += bytes([bits])
    assert not given, f"{name} has no {given}"
    return out


def read_method(data):
    reader = Reader(data)
    key = reader.number(">H"), reader.number(">H")
    name, fields, bits, left = NAMES[key], {}, 0, 0
    for field in METHODS[name][2].split():
        kind, key = field.split(":")
        if kind == "b":
            if not left:
                bits, left = reader.number(">B"), 8
            fields[key] = bool(bits & 1)
            bits, left = bits >> 1, left - 1
            continue
        left = 0
        if kind in "oslq":
            fields[key] = reader.number({"o": ">B", "s": ">H", "l": ">I", "q": ">Q"}[kind])
        elif kind == "a":
            fields[key] = reader.short()
        elif kind == "x":
            fields[key] = reader.long().decode("utf8", "backslashreplace")
        else:
            fields[key] = reader.table()
    return name, fields


def header(size, given):
    flags, out = 0, b""
    for number, field in enumerate(PROPERTIES):
        kind, key = field.split(":")
        if key not in given:
            continue
        flags |= 1 << (15 - number)
        what = given[key]
        out += short(what) if kind == "a" else table(what) if kind == "t" else struct.pack({"o": ">B", "q": ">Q"}[kind], what)
    assert set(given) <= {field.split(":")[1] for field in PROPERTIES}, given
    return struct.pack(">HHQH", 60, 0, size, flags) + out


def read_header(data):
    reader = Reader(data)
    reader.take(4)
    size, flags, given = reader.number(">Q"), reader.number(">H"), {}
    for number, field in enumerate(PROPERTIES):
        kind, key = field.split(":")
        if flags & 1 << (15 - number):
            given[key] = reader.short() if kind == "a" else reader.table() if kind == "t" else reader.number({"o": ">B", "q": ">Q"}[kind])
    return size, given


def frame(kind, channel, payload, end=b"\xce"):
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + end


class Ended(Exception):
    """The broker closed the socket."""


class Wire:
    """One connection. `open()` makes it usable; before that it is bytes."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer, self.ended, self.contents, self.queued = b"", False, {}, []

    def start(self):
        self.raw(b"AMQP\x00\x00\x09\x01")
        return self.wait(0, "connection.start")

    def open(self, vhost="/", user="guest", password="guest", capabilities=(), tune=(0, 0, 0)):
        self.start()
        capabilities = [(name, ("t", True)) for name in ("consumer_cancel_notify", "basic.nack", "publisher_confirms", "authentication_failure_close", *capabilities)]
        self.send(0, "connection.start-ok", properties=[("product", ("S", "corners")), ("capabilities", ("F", capabilities))], mechanism="PLAIN",
                  response=f"\0{user}\0{password}", locale="en_US")
        got = self.wait(0, "connection.tune")
        self.send(0, "connection.tune-ok", channel_max=tune[0] or got["channel_max"], frame_max=tune[1] or got["frame_max"], heartbeat=tune[2])
        self.send(0, "connection.open", vhost=vhost)
        self.wait(0, "connection.open-ok")
        return self

    def raw(self, data):
        try:
            self.socket.sendall(data)
        except OSError:
            self.ended = True

    def send(self, channel, name, **given):
        self.raw(frame(1, channel, method(name, **given)))

    def publish(self, channel, routing_key, body=b"", exchange="", mandatory=False, immediate=False, **properties):
        body = octets(body)
        data = frame(1, channel, method("basic.publish", exchange=exchange, routing_key=routing_key, mandatory=mandatory, immediate=immediate))
        data += frame(2, channel, header(len(body), properties))
        self.raw(data + (frame(3, channel, body) if body else b""))

    def read(self, seconds):
        """(channel, name, fields), the fields of what has content with `properties` and `body`; None when nothing came."""
        until = time.monotonic() + seconds
        while True:
            if len(self.buffer) >= 7:
                kind, channel, size = struct.unpack(">BHI", self.buffer[:7])
                if self.buffer[:4] == b"AMQP":
                    data, self.buffer = self.buffer[:8], self.buffer[8:]
                    return 0, "protocol", {"header": data.hex()}
                if len(self.buffer) >= size + 8:
                    payload, self.buffer = self.buffer[7 : 7 + size], self.buffer[8 + size :]
                    whole = self.take(kind, channel, payload)
                    if whole is not None:
                        return whole
                    continue
            if self.ended or not select.select([self.socket], [], [], max(0, until - time.monotonic()))[0]:
                return None
            try:
                data = self.socket.recv(1 << 20)
            except OSError:
                data = b""
            self.ended = not data
            self.buffer += data

    def take(self, kind, channel, payload):
        if kind == 1:
            name, fields = read_method(payload)
            if name in WITH_CONTENT:
                self.contents[channel] = [name, fields, None, b""]
                return None
            if name == "channel.close":
                self.send(channel, "channel.close-ok")
            elif name == "connection.close":
                self.send(0, "connection.close-ok")
            return channel, name, fields
        if kind == 8:
            return None
        content = self.contents[channel]
        if kind == 2:
            content[2] = read_header(payload)
        else:
            content[3] += payload
        size, properties = content[2]
        if len(content[3]) < size:
            return None
        del self.contents[channel]
        return channel, content[0], {**content[1], "properties": properties, "body": content[3].decode("latin1")}

    def wait(self, channel, *names, seconds=10):
        whole = self.read(seconds)
        if whole is None:
            raise Ended("ended" if self.ended else "nothing came")
        if whole[0] != channel or whole[1] not in names:
            raise AssertionError(f"instead of {names}: {whole}")
        return whole[2]

    def close(self):
        self.socket.close()
