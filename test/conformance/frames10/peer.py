"""A client that sends single frames and checks the answers frame by frame."""

import contextlib
import http.client
import itertools
import json
import os
import re
import socket
import struct
import sys
import threading
from itertools import zip_longest

import codec
from codec import Described, Symbol, Ubyte, Ushort, composite

SASL = b"AMQP\x03\x01\x00\x00"
AMQP = b"AMQP\x00\x01\x00\x00"
SENDER, RECEIVER = False, True
_numbers = itertools.count()
_thread = threading.local()


def fresh(prefix):
    """A name that this run has not used, also against a broker that keeps its data."""
    return f"{prefix}-{os.getpid()}-{next(_numbers)}"


class Transcript:
    """The answers of a server in a form that is equal for servers that behave alike.

    It leaves out numbers that a server may choose, the texts of errors, heartbeats, and flows that a scenario does not await.
    """

    def __init__(self):
        self.lines = []

    def add(self, line):
        line = re.sub(r"\b([a-z0-9]+)-\d+-\d+", r"\1-N", line)
        line = re.sub(r"args=[\w-]+", "args=HASH", line)
        line = re.sub(r"leader: '[^']*'", "leader", re.sub(r"replicas: \[[^]]*\]", "replicas", line))
        # RabbitMQ adds the type to the arguments of each queue.
        line = re.sub(r"x-queue-type: 'classic'(, )?", "", line).replace(", }", "}")
        line = re.sub(r"amq\.(dyn|gen|rabbitmq\.reply-to)[-.][\w.+=%-]+", r"amq.\1-N", line)
        self.lines.append(line)

    def add_frame(self, channel, body):
        if body.kind == "disposition":
            for number in range(body.first, min(body.get("last", body.first), body.first + 99) + 1):
                self.add(f"{channel} disposition of {number} role={body.role} settled={bool(body.settled)} {_shown(body.state)}")
        else:
            self.add(f"{channel} {_FORMS.get(body.kind, _all_fields)(body)}")


def _shown(value):
    """A value without the texts of errors."""
    if isinstance(value, codec.Composite):
        return _all_fields(value)
    if isinstance(value, Described):
        return f"{value.descriptor:#x}{_shown(value.value)}" if isinstance(value.descriptor, int) else f"{value.descriptor}{_shown(value.value)}"
    if isinstance(value, dict):
        return "{" + ", ".join(sorted(f"{key}: {_shown(inner)}" for key, inner in value.items())) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_shown(codec.named(inner)) for inner in value) + "]"
    return repr(value)


# Fields whose absence means the same.
_DEFAULTS = {
    "attach": {"rcv_settle_mode": 0, "snd_settle_mode": 2}, "source": {"durable": 0, "timeout": 0, "expiry_policy": "session-end", "filter": {}},
    "target": {"durable": 0, "timeout": 0, "expiry_policy": "session-end"},
    "transfer": {"message_format": 0},
}


def _all_fields(body):
    if body.kind == "error":
        return f"error {body.condition}"
    defaults = _DEFAULTS.get(body.kind, {})
    shown = ((name, value) for name, value in body.items() if value is not False and defaults.get(name) != value)
    return f"{body.kind} " + " ".join(f"{name}={_shown(value)}" for name, value in shown)


_CHOSEN = {
    "attach": {"max_message_size", "name", "properties", "offered_capabilities", "desired_capabilities", "initial_delivery_count"},
    "transfer": {"delivery_id", "delivery_tag", "batchable"},
}


def _without_chosen(body):
    return codec.Composite(body.kind, {name: value for name, value in body.items() if name not in _CHOSEN[body.kind]})


def _attach(body):
    fields = _without_chosen(body)
    # The terminus of the client; RabbitMQ does not repeat a target.
    fields.pop("target" if body.role == SENDER else "source", None)
    return _all_fields(fields)


def _transfer(body):
    shown = _sections(body.payload)
    # The text of an error of the management node.
    shown = re.sub(r"(, '4..', None, .*) 0x77['\"].*", r"\1 text", shown)
    return f"{_all_fields(_without_chosen(body))} {shown}"


def _sections(payload):
    """The sections of a message, or the size of a part of one."""
    reader, out = codec.Reader(payload), []
    try:
        while reader.at < len(payload):
            part = reader.value()
            if part.descriptor == 0x70:  # A header, with its defaults.
                values = zip_longest(part.value, [False, 4, None, False, 0])
                part.value = [default if value is None else value for value, default in values]
            out.append(_shown(part))
    except (AssertionError, struct.error):
        return "part"
    return " ".join(out)


# Kinds of frames that have numbers a server may choose.
_FORMS = {
    "attach": _attach, "transfer": _transfer, "open": lambda _: "open", "begin": lambda body: f"begin remote_channel={body.remote_channel}",
    "flow": lambda body: f"flow handle={body.handle}", "mechanisms": lambda _: "mechanisms", "outcome": lambda body: f"outcome {body.code}",
}


@contextlib.contextmanager
def use(address, patience, transcript):
    """The peers of this thread connect to this server, wait so many seconds for an answer, and add the answers to the transcript.

    An address is HOST:AMQP_PORT,MANAGEMENT_PORT.
    """
    host, ports = address.rsplit(":", 1)
    port, web = map(int, ports.split(","))
    _thread.address, _thread.web, _thread.patience, _thread.transcript = (host, port), (host, web), patience, transcript
    yield transcript


def note(line):
    """Adds a line to the transcript of the scenario."""
    _thread.transcript.add(line)


class Closed(Exception):
    """The server has closed the socket."""


class Peer:
    """A socket to the server."""

    def __init__(self):
        self.socket = socket.create_connection(_thread.address, _thread.patience)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.input = b""
        self.transcript = _thread.transcript
        self.handles = {}  # The name of a link and the client's role -> the client's handle
        self.names = {}  # The channel and handle of the server -> the client's handle

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
                self.transcript.add("the socket ends")
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
        if body.kind not in {"heartbeat", "flow"}:
            self.record(channel, body)
        return channel, body

    def record(self, channel, body):
        """Adds an answer to the transcript with the client's handle, because a server chooses its own."""
        if body.kind == "attach":
            self.names[channel, body.handle] = self.handles.get((body.name, not body.get("role", False)), body.handle)
        if "handle" in body:
            body = codec.Composite(body.kind, {**body, "handle": self.names.get((channel, body.handle), body.handle)}, body.payload)
        self.transcript.add_frame(channel, body)

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
        if kind == "flow" and body.kind == "flow":
            self.record(at, body)
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
        """The server must close the socket after the client has ended its side, and send nothing but heartbeats and flows before.

        RabbitMQ answers the answer to its own close with another close; one scenario shows it, and the others allow it.
        """
        self.end_output()
        kept, self.transcript = self.transcript, Transcript()
        try:
            while True:
                _, body = self.frame()
                assert body.kind in {"heartbeat", "flow"} or (body.kind == "close" and not body.error), f"{body} instead of the end of the socket"
        except Closed:
            kept.add("the socket ends")
        finally:
            self.transcript = kept

    def end_output(self):
        """Ends the client's side of the socket."""
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # The server has closed the socket.

    def is_alive(self, channel=0):
        """The session attaches and detaches another link, and has sent nothing but flows before."""
        name = fresh("probe")
        self.attach(SENDER, "me", composite("target"), channel, name=name, handle=200)
        kept, self.transcript = self.transcript, Transcript()
        try:
            handle = self.expect("attach", channel, name=name).handle
            self.send("detach", channel, handle=200, closed=True)
            self.expect("detach", channel, handle=handle)
        finally:
            self.transcript = kept
        self.transcript.add(f"{channel} is alive")

    def echo(self, channel=0, **fields):
        """The flow that answers one with the flag echo."""
        self.send("flow", channel, incoming_window=1000, next_outgoing_id=0, outgoing_window=1000, echo=True, **fields)
        return self.expect("flow", channel)

    # The layers of a connection.

    def log_in(self, mechanism="PLAIN", response=b"\0guest\0guest"):
        """The SASL layer; returns the code of the outcome."""
        self.raw(SASL)
        assert self.take(8) == SASL
        self.expect("mechanisms")
        self.raw(codec.frame(codec.encode(composite("init", mechanism=Symbol(mechanism), initial_response=response)), kind=1))
        return self.expect("outcome").code

    def authenticated(self, user=None):
        """A connection whose AMQP headers are exchanged. The password of a user is its name."""
        user = user or "guest"
        assert self.log_in(response=f"\0{user}\0{user}".encode()) == 0
        self.raw(AMQP)
        assert self.take(8) == AMQP
        return self

    def open(self, user=None, **fields):
        """Opens; returns the server's open."""
        self.authenticated(user)
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
        self.handles[fields["name"], role] = fields["handle"]
        self.send("attach", channel, **fields)

    def sender(self, target, channel=0, **fields):
        """Attaches a link to publish on; returns the server's attach. The link has credit."""
        self.attach(SENDER, "me", target, channel, **fields)
        attach = self.expect("attach", channel, role=RECEIVER)
        assert attach.target is not None, "the link is refused"
        assert self.expect("flow", channel).link_credit > 0
        return attach

    def receiver(self, source, channel=0, credit=0, **fields):
        """Attaches a link to consume from; returns the server's attach."""
        self.attach(RECEIVER, source, "me", channel, **fields)
        attach = self.expect("attach", channel, role=SENDER)
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

    def __init__(self, user=None, **begin):
        super().__init__()
        self.open(user)
        self.begun = self.begin(**begin)


@contextlib.contextmanager
def unrecorded():
    """The answers to the peers that are made meanwhile are not in the transcript."""
    kept, _thread.transcript = _thread.transcript, Transcript()
    try:
        yield
    finally:
        _thread.transcript = kept


def sections(payload):
    """The sections of a message: descriptor -> value; the values of data sections are joined."""
    reader, out = codec.Reader(payload), {}
    while reader.at < len(payload):
        part = reader.value()
        out[part.descriptor] = out.get(0x75, b"") + part.value if part.descriptor == 0x75 else part.value
    return out


class Manager(Session):
    """A session with the pair of links to the management node: handle 0 for requests, and 1 for answers."""

    def __init__(self, user=None):
        super().__init__(user)
        pair = {"name": "pair", "properties": {Symbol("paired"): True}, "snd_settle_mode": Ubyte(1)}
        self.sender("/management", **pair)
        self.receiver("/management", handle=1, credit=100, **pair)
        self.requests = 0

    def request(self, method, path, body=None, *, encoded=None, message_id="id", reply_to="$me"):
        """Sends a request; returns the status and the body of the answer. `encoded` is the body as sections."""
        properties = codec.section(0x73, [message_id, None, path, method, reply_to])
        self.transfer(properties + (codec.section(0x77, body) if encoded is None else encoded), self.requests, settled=True)
        self.requests += 1
        answer = sections(self.expect("transfer").payload)
        return answer[0x73][3], answer.get(0x77)

    def must(self, status, *request, **options):
        """A request with this status; returns the body of its answer."""
        got, body = self.request(*request, **options)
        assert got == str(status), f"{got} {body}"
        return body


def queue(kind="classic", *bodies, name=None, **arguments):
    """Declares a queue with messages; returns its address. The underscores in the names of arguments stand for hyphens."""
    address = f"/queues/{name or fresh('frames10')}"
    arguments = {"x-queue-type": kind, **{key.replace("_", "-"): value for key, value in arguments.items()}}
    with unrecorded():
        with Manager() as manager:
            manager.must(201, "PUT", address, {"durable": True, "arguments": arguments})
        publish(address, *bodies)
    return address


def user(configure="", write="", read=""):
    """Creates a user with these permissions on the virtual host /; returns its name, which is its password."""
    name = fresh("user")
    permissions = {"configure": configure, "write": write, "read": read}
    for path, document in ((f"users/{name}", {"password": name, "tags": ""}), (f"permissions/%2F/{name}", permissions)):
        connection = http.client.HTTPConnection(*_thread.web, timeout=_thread.patience)
        credentials = {"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q=", "Content-Type": "application/json"}
        connection.request("PUT", f"/api/{path}", json.dumps(document), credentials)
        status = connection.getresponse().status
        connection.close()
        assert status in (201, 204), status
    return name


def publish(address, *bodies):
    """Publishes messages, and waits for their outcomes. A body is bytes, or a message that is Raw."""
    with unrecorded(), Session() as publisher:
        publisher.sender(address)
        for number, body in enumerate(bodies):
            publisher.transfer(body if isinstance(body, codec.Raw) else codec.message(body), number)
            publisher.expect("disposition", first=number, settled=True, state=codec.ACCEPTED)
