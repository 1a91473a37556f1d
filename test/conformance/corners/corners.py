"""Groups of questions about RabbitMQ's corners, and what asks them: a line for each answer, so that two brokers' lines can be compared."""

import time
import traceback

import amqp

GROUPS = {}


def group(function):
    GROUPS[function.__name__] = function
    return function


def show(what):
    if isinstance(what, dict):
        return "{" + ", ".join(f"{key}={show(inner)}" for key, inner in what.items() if key not in ("r1", "ticket")) + "}"
    if isinstance(what, list) and what and isinstance(what[0], tuple) and len(what[0]) == 2 and isinstance(what[0][1], tuple):
        return "[" + ", ".join(f"{key}:{typed(inner, key)}" for key, inner in sorted(what, key=lambda pair: pair[0])) + "]"  # RabbitMQ sorts some tables
    return repr(what)


def typed(pair, key=None):
    kind, what = pair
    if kind == "T" and key == "time":
        return "T:(time)"
    if kind == "F":
        return "F" + show(what)
    if kind == "A":
        return "A[" + ", ".join(typed(one) for one in what) + "]"
    return f"{kind}:{what!r}"


class Client:
    def __init__(self, side, **how):
        self.side, self.how = side, how
        self.wire, self.closed = None, False
        self.again()

    def again(self):
        """A new connection in place of one that an error has ended."""
        if self.wire:
            self.wire.close()
        self.wire, self.closed, self.channels, self.tag = amqp.Wire(self.side.amqp).open(**self.how), False, set(), 0

    def channel(self, number=1):
        if self.closed or self.wire.ended:
            self.again()
        if number not in self.channels:
            self.wire.send(number, "channel.open")
            self.wire.wait(number, "channel.open-ok")
            self.channels.add(number)

    def line(self, whole):
        if whole is None:
            return "(ended)" if self.wire.ended else "(nothing)"
        channel, name, fields = whole
        if name in ("basic.get-ok", "basic.deliver"):
            self.tag = fields["delivery"]
        if name == "channel.close":
            self.channels.discard(channel)
            return f"channel {fields['code']} {fields['text']} ({fields['class']},{fields['method']})"
        if name == "connection.close":
            self.closed = True
            self.channels.clear()
            return f"connection {fields['code']} {fields['text']} ({fields['class']},{fields['method']})"
        return name + (" " + show(fields) if fields and set(fields) != {"r1"} else "")

    def do(self, name, channel=1, seconds=5, **given):
        """Sends a method and returns what comes next."""
        self.channel(channel)
        self.wire.send(channel, name, **given)
        return self.line(self.wire.read(seconds))

    def must(self, name, channel=1, **given):
        got = self.do(name, channel, **given)
        assert got.startswith(name + "-ok"), got
        return got

    def seen(self, quiet=0.25):
        lines = []
        while True:
            whole = self.wire.read(quiet)
            if whole is None:
                return lines + (["(ended)"] if self.wire.ended else [])
            lines.append(self.line(whole))

    def publish(self, key, body=b"", channel=1, **given):
        self.channel(channel)
        self.wire.publish(channel, key, body, **given)

    def get(self, queue, channel=1, no_ack=True, seconds=3):
        """basic.get, again while there is nothing."""
        until = time.monotonic() + seconds
        while True:
            got = self.do("basic.get", channel, queue=queue, no_ack=no_ack)
            if got != "basic.get-empty" or time.monotonic() > until:
                return got
            time.sleep(0.03)

    def count(self, queue, want, seconds=3, channel=1):
        """Waits until a queue has so many ready messages."""
        until = time.monotonic() + seconds
        while True:
            self.channel(channel)
            self.wire.send(channel, "queue.declare", queue=queue, passive=True)
            whole = self.wire.read(5)
            if whole is None or whole[1] != "queue.declare-ok":
                return self.line(whole)
            if whole[2]["messages"] == want or time.monotonic() > until:
                return f"{whole[2]['messages']} messages"
            time.sleep(0.03)


class Side:
    def __init__(self, amqp_port, http_port, name):
        self.amqp, self.http, self.name = amqp_port, http_port, name
        self.lines = []
        self.clients = []

    def client(self, **how):
        made = Client(self, **how)
        self.clients.append(made)
        return made

    def only(self, **how):
        """A client in place of all that there are."""
        for client in self.clients:
            client.wire.close()
        if self.clients:
            time.sleep(0.1)
        self.clients.clear()
        return self.client(**how)

    def say(self, what, answer):
        self.lines.append((what, answer))


VALUES = {
    "I0": ("I", 0), "I1": ("I", 1), "I5": ("I", 5), "I-1": ("I", -1), "I-5": ("I", -5), "I256": ("I", 256), "l5": ("l", 5), "l2^31": ("l", 2**31), "l2^32": ("l", 2**32),
    "l max": ("l", 2**63 - 1), "l10y": ("l", 315360000000), "l10y+1": ("l", 315360000001), "b5": ("b", 5), "B5": ("B", 5), "s5": ("s", 5), "u5": ("u", 5), "i5": ("i", 5),
    "S''": ("S", ""), "S'5'": ("S", "5"), "Sabc": ("S", "abc"), "t1": ("t", True), "t0": ("t", False), "d1.5": ("d", 1.5), "f1.5": ("f", 1.5), "V": ("V", None),
    "T5": ("T", 5), "D": ("D", (1, 15)), "x": ("x", "abc"), "F": ("F", []), "A": ("A", []),
}


def table_of(kind, *more):
    return [("x-queue-type", ("S", kind))] * (kind != "") + list(more)


def rest(c, queue, channel=1):
    """The bodies of all that a queue has left, with an r behind those that are redelivered."""
    left = []
    while (got := c.get(queue, channel=channel, seconds=0.15)).startswith("basic.get-ok"):
        left.append(got.split("body='")[1][:-2] + ("r" if "redelivered=True" in got else ""))
    return left if got == "basic.get-empty" else [*left, got]


def run(side, name):
    try:
        GROUPS[name](side)
    except Exception:
        told = [line.strip() for line in traceback.format_exc().splitlines()]
        side.say(f"FAILED {name}", told[-1] + " " + " / ".join(told[-6:-1]))
    for client in side.clients:
        client.wire.close()
    side.clients.clear()
    time.sleep(0.3)
    return side.lines
