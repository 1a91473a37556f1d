"""MQTT's bytes, as little as walks need: packets are made loosely (anything may be wrong on purpose) and read strictly."""
import struct

PROPERTIES = {  # identifier: (name, type), MQTT 5.0 table 2-4
    0x01: ("payload format", "u8"), 0x02: ("expiry", "u32"), 0x03: ("content type", "text"), 0x08: ("response topic", "text"),
    0x09: ("correlation", "bytes"), 0x0B: ("subscription id", "varint"), 0x11: ("session expiry", "u32"), 0x12: ("assigned id", "text"),
    0x13: ("keep alive", "u16"), 0x15: ("method", "text"), 0x16: ("data", "bytes"), 0x17: ("problem", "u8"), 0x18: ("delay", "u32"),
    0x19: ("request response", "u8"), 0x1A: ("response", "text"), 0x1C: ("reference", "text"), 0x1F: ("reason", "text"),
    0x21: ("receive maximum", "u16"), 0x22: ("alias maximum", "u16"), 0x23: ("alias", "u16"), 0x24: ("maximum qos", "u8"),
    0x25: ("retain available", "u8"), 0x26: ("user", "pair"), 0x27: ("maximum packet", "u32"), 0x28: ("wildcards", "u8"),
    0x29: ("subscription ids", "u8"), 0x2A: ("shared", "u8"),
}
IDENTIFIERS = {name: key for key, (name, _) in PROPERTIES.items()}
NAMES = {1: "CONNECT", 2: "CONNACK", 3: "PUBLISH", 4: "PUBACK", 5: "PUBREC", 6: "PUBREL", 7: "PUBCOMP", 8: "SUBSCRIBE",
         9: "SUBACK", 10: "UNSUBSCRIBE", 11: "UNSUBACK", 12: "PINGREQ", 13: "PINGRESP", 14: "DISCONNECT", 15: "AUTH"}


def varint(n):
    out = b""
    while True:
        n, low = n >> 7, n & 127
        out += bytes([low | (128 if n else 0)])
        if not n:
            return out


def text(value):
    value = value if isinstance(value, bytes) else value.encode()
    return struct.pack(">H", len(value)) + value


def packet(first, body):
    return bytes([first]) + varint(len(body)) + body


def properties(version, pairs):
    """Of 5.0; nothing in other versions."""
    if version != 5:
        return b""
    out = b""
    for name, value in pairs or ():
        kind = PROPERTIES[IDENTIFIERS[name]][1]
        out += varint(IDENTIFIERS[name])
        if kind == "pair":
            out += text(value[0]) + text(value[1])
        elif kind in ("text", "bytes"):
            out += text(value)
        elif kind == "varint":
            out += varint(value)
        else:
            out += value.to_bytes({"u8": 1, "u16": 2, "u32": 4}[kind], "big")
    return varint(len(out)) + out


def connect(version, client, clean=True, keep_alive=600, will=None, props=()):
    flags = 2 if clean else 0
    body = text(client)
    if will:
        flags |= 4 | will["qos"] << 3 | (32 if will["retain"] else 0)
        body += properties(version, will["props"]) + text(will["topic"]) + text(will["payload"])
    head = text("MQIsdp" if version == 3 else "MQTT") + bytes([version, flags]) + struct.pack(">H", keep_alive)
    return packet(0x10, head + properties(version, props) + body)


def publish(version, topic, payload, qos=0, retain=False, dup=False, mid=0, props=()):
    body = text(topic) + (struct.pack(">H", mid) if qos else b"") + properties(version, props) + payload.encode()
    return packet(0x30 | qos << 1 | retain | dup << 3, body)


def subscribe(version, mid, filters, props=()):
    body = struct.pack(">H", mid) + properties(version, props)
    return packet(0x82, body + b"".join(text(name) + bytes([options]) for name, options in filters))


def unsubscribe(version, mid, filters):
    return packet(0xA2, struct.pack(">H", mid) + properties(version, ()) + b"".join(text(name) for name in filters))


def answer(kind, mid):
    return packet(kind << 4 | (2 if kind == 6 else 0), struct.pack(">H", mid))


def disconnect(version, reason=0, props=()):
    if version != 5 or (reason == 0 and not props):
        return b"\xe0\0"
    return packet(0xE0, bytes([reason]) + properties(5, props))


class Reader:
    def __init__(self, body):
        self.body, self.at = body, 0

    def take(self, n):
        if self.at + n > len(self.body):
            raise ValueError("a packet that ends early")
        self.at += n
        return self.body[self.at - n:self.at]

    def number(self, n):
        return int.from_bytes(self.take(n), "big")

    def varint(self):
        value = shift = 0
        while True:
            byte = self.number(1)
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def text(self):
        return self.take(self.number(2))

    def rest(self):
        return self.take(len(self.body) - self.at)

    def properties(self):
        end = self.varint() + self.at
        found = []
        while self.at < end:
            name, kind = PROPERTIES[self.varint()]
            if kind == "pair":
                value = (self.text().decode(), self.text().decode())
            elif kind == "text":
                value = self.text().decode()
            elif kind == "bytes":
                value = self.text().hex()
            elif kind == "varint":
                value = self.varint()
            else:
                value = self.number({"u8": 1, "u16": 2, "u32": 4}[kind])
            found.append((name, value))
        if self.at != end:
            raise ValueError("properties that end elsewhere")
        return found


def read(version, first, body):
    """A packet of a server as a dictionary; raises what is wrong with it."""
    kind, r = first >> 4, Reader(body)
    p = {"kind": NAMES.get(kind, "?"), "props": []}
    if kind == 2:
        p["present"], p["reason"] = r.number(1), r.number(1)
        p["props"] = r.properties() if version == 5 else []
    elif kind == 3:
        p["qos"], p["retain"], p["dup"] = first >> 1 & 3, first & 1, first >> 3 & 1
        p["topic"] = r.text().decode()
        p["mid"] = r.number(2) if p["qos"] else 0
        p["props"] = r.properties() if version == 5 else []
        p["payload"] = r.rest().decode(errors="replace")
    elif kind in (4, 5, 6, 7):
        if first & 15 != (2 if kind == 6 else 0):
            raise ValueError("flags")
        p["mid"] = r.number(2)
        p["reason"] = r.number(1) if version == 5 and r.at < len(body) else 0
        p["props"] = r.properties() if version == 5 and r.at < len(body) else []
    elif kind in (9, 11):
        p["mid"] = r.number(2)
        p["props"] = r.properties() if version == 5 else []
        p["codes"] = list(r.rest())
    elif kind == 14:
        if version != 5:
            raise ValueError("a server sends no DISCONNECT before 5.0")
        p["reason"] = r.number(1) if body else 0
        p["props"] = r.properties() if r.at < len(body) else []
    elif kind != 13:
        raise ValueError("a packet that servers do not send: %02x" % first)
    if r.at != len(body):
        raise ValueError("bytes left over in %s" % p["kind"])
    return p
