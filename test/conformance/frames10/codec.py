"""AMQP 1.0 types and frames as bytes, so that scenarios can send what no client library sends.

A Python value encodes as the type that the fields of performatives need most: an int is a uint, a str a string, bytes a binary. The
classes below are the other types.
"""

import struct

UINT_MAX = 0xFFFF_FFFF


class Symbol(str):
    """A symbol."""


class Ubyte(int):
    """A ubyte."""


class Ushort(int):
    """A ushort."""


class Ulong(int):
    """A ulong."""


class Raw(bytes):
    """Bytes that are already encoded."""


class Array(list):
    """An array of symbols."""


class Described:
    """A described value. Its descriptor is a code or a symbol."""

    def __init__(self, descriptor, value):
        self.descriptor = descriptor
        self.value = value

    def __eq__(self, other):
        return isinstance(other, Described) and (self.descriptor, self.value) == (other.descriptor, other.value)

    def __repr__(self):
        return f"Described({self.descriptor!r}, {self.value!r})"


def _variable(short, long, body):
    if len(body) < 256:
        return bytes([short, len(body)]) + body
    return bytes([long]) + struct.pack(">I", len(body)) + body


def encode(value):
    """The bytes of a value."""
    if value is None:
        return b"\x40"
    if isinstance(value, Raw):
        return bytes(value)
    if isinstance(value, bool):
        return b"\x41" if value else b"\x42"
    if isinstance(value, Described):
        descriptor = value.descriptor
        name = Symbol(descriptor) if isinstance(descriptor, str) else Ulong(descriptor)
        return b"\x00" + encode(name) + encode(value.value)
    if isinstance(value, Ubyte):
        return bytes([0x50, value])
    if isinstance(value, Ushort):
        return b"\x60" + struct.pack(">H", value)
    if isinstance(value, Ulong):
        return bytes([0x53, value]) if value < 256 else b"\x80" + struct.pack(">Q", value)
    if isinstance(value, int):
        return b"\x70" + struct.pack(">I", value)
    if isinstance(value, Symbol):
        return _variable(0xA3, 0xB3, value.encode())
    if isinstance(value, str):
        return _variable(0xA1, 0xB1, value.encode())
    if isinstance(value, bytes):
        return _variable(0xA0, 0xB0, value)
    if isinstance(value, Array):
        items = b"".join(bytes([len(item)]) + item.encode() for item in value)
        body = struct.pack(">I", len(value)) + b"\xa3" + items
        return b"\xf0" + struct.pack(">I", len(body)) + body
    if isinstance(value, list):
        body = b"".join(map(encode, value))
        return b"\xd0" + struct.pack(">II", len(body) + 4, len(value)) + body
    if isinstance(value, dict):
        body = b"".join(encode(part) for pair in value.items() for part in pair)
        return b"\xd1" + struct.pack(">II", len(body) + 4, 2 * len(value)) + body
    raise TypeError(f"no AMQP type for {value!r}")


_FIXED = {
    0x50: ">B", 0x51: ">b", 0x52: ">B", 0x53: ">B", 0x54: ">b", 0x55: ">b", 0x60: ">H", 0x61: ">h", 0x70: ">I", 0x71: ">i",
    0x72: ">f", 0x73: ">I", 0x80: ">Q", 0x81: ">q", 0x82: ">d", 0x83: ">q",
}
_CONSTANT = {0x40: None, 0x41: True, 0x42: False, 0x43: 0, 0x44: 0}


class Reader:
    """Reads values from bytes."""

    def __init__(self, data):
        self.data = data
        self.at = 0

    def take(self, size):
        part = self.data[self.at : self.at + size]
        assert len(part) == size, "a value ends early"
        self.at += size
        return part

    def number(self, form):
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def value(self):
        constructor = self.number(">B")
        if constructor == 0:
            descriptor = self.value()
            return Described(descriptor, self.value())
        return self.body(constructor)

    def body(self, constructor):
        if constructor in _CONSTANT:
            return _CONSTANT[constructor]
        if constructor in _FIXED:
            return self.number(_FIXED[constructor])
        if constructor == 0x56:
            return self.number(">B") == 1
        if constructor in (0x98, 0x94):  # uuid, decimal128
            return self.take(16)
        if constructor in (0x74, 0x84):  # decimal32, decimal64
            return self.take(4 if constructor == 0x74 else 8)
        if constructor == 0x45:
            return []
        size = self.number(">B" if constructor >> 4 in (0xA, 0xC, 0xE) else ">I")
        if constructor >> 4 in (0xA, 0xB):
            body = self.take(size)
            return {0: bytes, 1: bytes.decode, 3: lambda text: Symbol(text.decode())}[constructor & 0xF](body)
        end = self.at + size
        count = self.number(">B" if constructor >> 4 in (0xC, 0xE) else ">I")
        if constructor >> 4 in (0xE, 0xF):
            element = self.number(">B")
            if element == 0:
                self.value()  # The descriptor of all elements.
                element = self.number(">B")
            out = [self.body(element) for _ in range(count)]
        else:
            out = [self.value() for _ in range(count)]
        assert self.at == end, "a compound value has another size than it says"
        if constructor & 0xF == 1:
            return dict(zip(out[::2], out[1::2]))
        return out


# Descriptors and the fields of performatives in order.
FIELDS = {
    "open": (0x10, ["container_id", "hostname", "max_frame_size", "channel_max", "idle_time_out", "outgoing_locales",
                    "incoming_locales", "offered_capabilities", "desired_capabilities", "properties"]),
    "begin": (0x11, ["remote_channel", "next_outgoing_id", "incoming_window", "outgoing_window", "handle_max",
                     "offered_capabilities", "desired_capabilities", "properties"]),
    "attach": (0x12, ["name", "handle", "role", "snd_settle_mode", "rcv_settle_mode", "source", "target", "unsettled",
                      "incomplete_unsettled", "initial_delivery_count", "max_message_size", "offered_capabilities",
                      "desired_capabilities", "properties"]),
    "flow": (0x13, ["next_incoming_id", "incoming_window", "next_outgoing_id", "outgoing_window", "handle", "delivery_count",
                    "link_credit", "available", "drain", "echo", "properties"]),
    "transfer": (0x14, ["handle", "delivery_id", "delivery_tag", "message_format", "settled", "more", "rcv_settle_mode", "state",
                        "resume", "aborted", "batchable"]),
    "disposition": (0x15, ["role", "first", "last", "settled", "state", "batchable"]),
    "detach": (0x16, ["handle", "closed", "error"]),
    "end": (0x17, ["error"]),
    "close": (0x18, ["error"]),
    "mechanisms": (0x40, ["mechanisms"]),
    "init": (0x41, ["mechanism", "initial_response", "hostname"]),
    "outcome": (0x44, ["code", "additional_data"]),
    "source": (0x28, ["address", "durable", "expiry_policy", "timeout", "dynamic", "dynamic_node_properties",
                      "distribution_mode", "filter", "default_outcome", "outcomes", "capabilities"]),
    "target": (0x29, ["address", "durable", "expiry_policy", "timeout", "dynamic", "dynamic_node_properties", "capabilities"]),
    "coordinator": (0x30, ["capabilities"]),
    "error": (0x1D, ["condition", "description", "info"]),
}
_NAMES = {code: name for name, (code, _) in FIELDS.items()}

ACCEPTED = Described(0x24, [])
RELEASED = Described(0x26, [])


def composite(kind, **fields):
    """A described list with these fields; the others are null."""
    code, names = FIELDS[kind]
    unknown = set(fields) - set(names)
    assert not unknown, f"{kind} has no fields {unknown}"
    values = [fields.get(name) for name in names]
    while values and values[-1] is None:
        values.pop()
    return Described(code, values)


class Composite(dict):
    """The fields of a received composite; fields that are null or absent are missing."""

    def __init__(self, kind, fields, payload=b""):
        super().__init__(fields)
        self.kind = kind
        self.payload = payload

    def __getattr__(self, name):
        return self.get(name)

    def __repr__(self):
        return f"{self.kind}{dict(self)!r}"


def named(value):
    """Composites instead of described lists, at any depth."""
    if isinstance(value, Described) and value.descriptor in _NAMES and isinstance(value.value, list):
        kind = _NAMES[value.descriptor]
        fields = zip(FIELDS[kind][1], map(named, value.value))
        return Composite(kind, {name: field for name, field in fields if field is not None})
    return value


def frame(body, channel=0, kind=0, doff=2, size=None):
    """A frame around a body in bytes. `size` is the value of the field, when it is not the size of the frame."""
    header = bytes(4 * doff - 8) if doff >= 2 else b""
    length = 8 + len(header) + len(body) if size is None else size
    return struct.pack(">IBBH", length, doff, kind, channel) + header + body


def parse(data):
    """The channel, body and payload of a whole frame."""
    _, doff, kind, channel = struct.unpack(">IBBH", data[:8])
    body = data[4 * doff :]
    if not body:
        return channel, Composite("heartbeat", {})
    reader = Reader(body)
    composite = named(reader.value())
    assert isinstance(composite, Composite), f"{composite!r} is no performative"
    composite.payload = body[reader.at :]
    return channel, composite


def section(code, value):
    """A section of a message."""
    return encode(Described(code, value))


def message(body=b"body", **properties):
    """A message with a data section. `to`, `user_id` and `subject` are properties."""
    names = ["message_id", "user_id", "to", "subject", "reply_to", "correlation_id"]
    out = b""
    if properties:
        out += section(0x73, [properties.get(name) for name in names])
    return out + section(0x75, body)
