"""A client that sends single frames and checks the answers frame by frame."""

import itertools
import os
import socket
import struct
import sys

import codec
from codec import Symbol, Ubyte, Ushort, composite

HOST, PORT = os.environ.get("AMQP", "127.0.0.1:5672").rsplit(":", 1)
SASL = b"AMQP\x03\x01\x00\x00"
AMQP = b"AMQP\x00\x01\x00\x00"
PATIENCE = 15  # seconds for one answer
SENDER, RECEIVER = False, True
_numbers = itertools.count()


def fresh(prefix):
    """A name that this run has not used, also against a broker that keeps its data."""
    return f"{prefix}-{os.getpid()}-{next(_numbers)}"


class Closed(Exception):
    """The server has closed the socket."""


class Peer:
    """A socket to the server."""

    def __init__(self):
        self.socket = socket.create_connection((HOST, int(PORT)), PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.input = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def raw(self, data):
        """Sends bytes."""
        self.socket.sendall(data)

    def take(self, size):
        """So many bytes of the server."""
        while len(self.input) < size:
            try:
                part = self.socket.recv(65536)
            except ConnectionResetError:
                part = b""
            if not part:
                raise Closed(f"the server has closed the socket; unread: {self.input!r}")
            self.input += part
        data, self.input = self.input[:size], self.input[size:]
        return data

    def frame(self):
        """The next frame: its channel and body."""
        size = struct.unpack(">I", self.take(4))[0]
        channel, body = codec.parse(struct.pack(">I", size) + self.take(size - 4))
        if os.environ.get("TRACE"):
            print("<-", channel, body, file=sys.stderr)
        return channel, body

    def send(self, kind, channel=0, payload=b"", **fields):
        """Sends a performative."""
        self.raw(codec.frame(codec.encode(composite(kind, **fields)) + payload, channel))

    def expect(self, kind, channel=0, **fields):
        """The next frame must be this performative with these fields. Heartbeats, and flows that are not awaited, are skipped."""
        while True:
            at, body = self.frame()
            if body.kind not in {kind} and body.kind in {"heartbeat", "flow"}:
                continue
            break
        assert body.kind == kind, f"{body} instead of {kind}"
        assert at == channel, f"{kind} on channel {at} instead of {channel}"
        for name, wanted in fields.items():
            assert body.get(name) == wanted, f"{kind}: {name} is {body.get(name)!r} instead of {wanted!r}"
        return body

    def expect_error(self, kind, *conditions, channel=0):
        """The next frame must end something with one of these conditions; with none of them, with any."""
        body = self.expect(kind, channel)
        assert body.error, f"{body} has no error"
        if conditions:
            assert body.error.condition in conditions, f"{body.error} instead of {conditions}"
        assert body.error.description, f"{body.error} has no description"
        return body

    def expect_end_of_socket(self):
        """The server must close the socket, and send nothing but heartbeats and flows before."""
        try:
            while True:
                _, body = self.frame()
                assert body.kind in {"heartbeat", "flow"}, f"{body} instead of the end of the socket"
        except Closed:
            pass

    def is_alive(self, channel=0):
        """A session answers a flow with the flag echo; returns its flow."""
        self.send("flow", channel, incoming_window=1000, next_outgoing_id=0, outgoing_window=1000, echo=True)
        return self.expect("flow", channel)

    # The layers of a connection.

    def log_in(self, mechanism="PLAIN", response=b"\0guest\0guest"):
        """The SASL layer; returns the code of the outcome."""
        self.raw(SASL)
        assert self.take(8) == SASL
        self.expect("mechanisms")
        self.raw(codec.frame(codec.encode(composite("init", mechanism=Symbol(mechanism), initial_response=response)), kind=1))
        return self.expect("outcome").code

    def authenticated(self):
        """A connection whose AMQP headers are exchanged."""
        assert self.log_in() == 0
        self.raw(AMQP)
        assert self.take(8) == AMQP
        return self

    def open(self, **fields):
        """Opens; returns the server's open."""
        self.authenticated()
        fields = {"container_id": "frames10", "channel_max": Ushort(10), **fields}
        self.send("open", **fields)
        return self.expect("open")

    def begin(self, channel=0, **fields):
        """Begins a session; returns the server's begin."""
        fields = {"next_outgoing_id": 0, "incoming_window": 1000, "outgoing_window": 1000, **fields}
        self.send("begin", channel, **fields)
        return self.expect("begin", channel, remote_channel=channel)

    def attach(self, role, source=None, target=None, channel=0, **fields):
        """Sends an attach. The termini are addresses, composites or None."""
        source = source if not isinstance(source, str) else composite("source", address=source)
        target = target if not isinstance(target, str) else composite("target", address=target)
        fields = {"name": fresh("link"), "handle": 0, "role": role, "source": source, "target": target, **fields}
        if role == SENDER:
            fields.setdefault("initial_delivery_count", 0)
        self.send("attach", channel, **fields)

    def sender(self, target, channel=0, **fields):
        """Attaches a link to publish on; returns the server's attach. The link has credit."""
        self.attach(SENDER, "me", target, channel, **fields)
        attach = self.expect("attach", channel, role=RECEIVER, handle=fields.get("handle", 0))
        assert attach.target is not None, "the link is refused"
        assert self.expect("flow", channel).link_credit > 0
        return attach

    def receiver(self, source, channel=0, credit=0, **fields):
        """Attaches a link to consume from; returns the server's attach."""
        self.attach(RECEIVER, source, "me", channel, **fields)
        attach = self.expect("attach", channel, role=SENDER, handle=fields.get("handle", 0))
        assert attach.source is not None, "the link is refused"
        if credit:
            self.credit(credit, channel, handle=fields.get("handle", 0))
        return attach

    def credit(self, credit, channel=0, **fields):
        """Grants credit to a new link."""
        fields = {"handle": 0, **fields}
        self.send("flow", channel, incoming_window=1000, next_outgoing_id=0, outgoing_window=1000,
                  link_credit=credit, **fields)

    def transfer(self, payload, delivery_id=0, channel=0, **fields):
        """Sends a transfer."""
        fields = {"handle": 0, "delivery_id": delivery_id, "delivery_tag": b"tag", **fields}
        self.send("transfer", channel, payload, **fields)

    def refused(self, role, condition, source, target, channel=0, **fields):
        """The server must refuse a link: an attach without its own terminus, and a detach. The session goes on."""
        self.attach(role, source, target, channel, **fields)
        attach = self.expect("attach", channel)
        own = attach.target if role == SENDER else attach.source
        assert own is None, f"the link is not refused: {attach}"
        self.expect_error("detach", *([condition] if condition else []), channel=channel)
        self.is_alive(channel)


class Session(Peer):
    """A connection with a session on channel 0."""

    def __init__(self, **begin):
        super().__init__()
        self.open()
        self.begin(**begin)


def queue(kind="classic", *bodies):
    """Declares a queue with messages; returns its address."""
    name = fresh("frames10")
    with Session() as manager:
        pair = {"name": "pair", "properties": {Symbol("paired"): True}, "snd_settle_mode": Ubyte(1)}
        manager.sender("/management", **pair)
        manager.receiver("/management", handle=1, credit=5, **pair)
        arguments = {"durable": True, "arguments": {"x-queue-type": kind}}
        request = codec.section(0x73, ["id", None, f"/queues/{name}", "PUT", "$me"]) + codec.section(0x77, arguments)
        manager.transfer(request, settled=True)
        answer = manager.expect("transfer", handle=1)
        assert b"201" in answer.payload, answer.payload
    address = f"/queues/{name}"
    if bodies:
        with Session() as publisher:
            publisher.sender(address)
            for number, body in enumerate(bodies):
                publisher.transfer(codec.message(body), number)
                publisher.expect("disposition", first=number, settled=True, state=codec.ACCEPTED)
    return address
