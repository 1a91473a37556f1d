"""Random walks: a seeded sequence of AMQP 0.9.1 operations, and all that a client sees of each. A walk decides what to do next by what the
broker sent (delivery tags, channels closed), so two brokers that answer alike walk alike."""

import collections
import random
import time

import wire
from wire import spec

CHANNELS = (1, 2, 3)

# A delivery that is not settled. Deliveries of several sources have no order among each other.
Held = collections.namedtuple("Held", "step source tag")

# kind -> queues that are declared at the beginning: name -> arguments; the first ones are used, one named "dead" takes dead letters.
KINDS = {
    "classic": {"a": {}, "b": {}},
    "classic-limits": {
        "a": {"x-max-length": 4, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"},
        "b": {"x-max-length": 3, "x-overflow": "reject-publish"},
        "c": {"x-max-length-bytes": 40, "x-overflow": "reject-publish-dlx", "x-dead-letter-exchange": "walk.dlx"},
        "dead": {},
    },
    "classic-ttl": {
        "a": {"x-message-ttl": 0, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"},
        "b": {"x-dead-letter-exchange": "walk.dlx"},
        "dead": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "b"},
    },
    "priority": {"a": {"x-max-priority": 5}, "b": {"x-max-priority": 3, "x-max-length": 5, "x-dead-letter-exchange": "walk.dlx"}, "dead": {}},
    "classic-sac": {"a": {"x-single-active-consumer": True}, "b": {"x-single-active-consumer": True, "x-max-priority": 4}},
    "quorum": {"a": {"x-queue-type": "quorum"}, "b": {"x-queue-type": "quorum", "x-delivery-limit": 2}},
    "quorum-limits": {
        "a": {"x-queue-type": "quorum", "x-max-length": 4, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-delivery-limit": 1},
        "b": {"x-queue-type": "quorum", "x-max-length": 3, "x-overflow": "reject-publish"},
        "dead": {"x-queue-type": "quorum"},
    },
    "quorum-ttl": {
        "a": {"x-queue-type": "quorum", "x-message-ttl": 0, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"},
        "b": {"x-queue-type": "quorum", "x-dead-letter-exchange": "walk.dlx", "x-delivery-limit": 2},
        "dead": {"x-queue-type": "quorum", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "b"},
    },
    "quorum-sac": {"a": {"x-queue-type": "quorum", "x-single-active-consumer": True}},
    "transactions": {"a": {}, "b": {"x-max-length": 3}},
}


class Walk:
    """One walk at one broker. `quiet`: so many seconds without a frame and the broker has done all that it will do."""

    def __init__(self, port, kind, seed, quiet, side):
        self.port, self.kind, self.quiet = port, kind, quiet
        self.random = random.Random(f"{kind} {seed}")
        self.queues = KINDS[kind]
        self.quorum = kind.startswith("quorum")
        self.names = {name: f"walk.{side}.{kind}.{seed}.{name}" for name in self.queues}
        self.lines = []
        self.published = 0
        self.consumers = 0
        self.busy = set()  # channels that have not answered yet
        self.consumed = {}  # consumer tag -> queue
        self.priorities = {}  # consumer tag -> x-priority

    # What is known of a channel.
    def fresh(self):
        return {"held": [], "tag": 0, "consumers": [], "seq": 0, "confirms": False, "tx": False, "prefetch": 0, "limited": False}

    def run(self, steps):
        self.connect()
        try:
            self.declare_all()
            for self.number in range(steps):
                self.step(self.number)
            self.end()
        finally:
            self.connect()
            for name in self.names.values():
                self.ask(1, spec.Queue.Delete(queue=name), spec.Queue.DeleteOk)
            self.ask(1, spec.Exchange.Delete(exchange=self.exchange()), spec.Exchange.DeleteOk)
            self.wire.close()
        return self.lines

    def exchange(self):
        return "walk.dlx." + self.names["a"]

    def connect(self):
        self.wire = wire.Wire(self.port)
        self.channels = {}
        for channel in CHANNELS:
            self.open(channel)

    def leave(self):
        """Ends the connection, and gives the broker time to find out. Without consumers: while the channels of a RabbitMQ end one by one, those that
        still have consumers are given what the others held, and fail with it."""
        open_ones = [(self.priorities[tag], channel, tag) for channel, state in self.channels.items() for tag in state["consumers"]]
        for _, channel, tag in sorted(open_ones):
            if tag in self.channels[channel]["consumers"]:
                self.end_consumer(channel, self.channels[channel], tag)
                self.drain()
        holding = [channel for channel, state in self.channels.items() if state["held"]]
        for channel in holding[1:]:
            # Which of several channels of a lost connection ends first is chance.
            self.reopen(channel, self.channels[channel])
        self.wire.close()
        time.sleep(0.2 + self.quiet)

    def open(self, channel):
        self.ask(channel, spec.Channel.Open(), spec.Channel.OpenOk)
        self.channels[channel] = self.fresh()

    def ask(self, channel, method, answer):
        self.wire.send(channel, method)
        return self.wire.wait(channel, answer)

    def declare_all(self):
        self.ask(1, spec.Exchange.Declare(exchange=self.exchange(), type="fanout"), spec.Exchange.DeclareOk)
        for name, arguments in self.queues.items():
            arguments = {
                key: self.exchange() if value == "walk.dlx" else self.names[value] if key == "x-dead-letter-routing-key" else value
                for key, value in arguments.items()
            }
            self.ask(1, spec.Queue.Declare(queue=self.names[name], durable=True, arguments=arguments), spec.Queue.DeclareOk)
        if "dead" in self.names:
            self.ask(1, spec.Queue.Bind(queue=self.names["dead"], exchange=self.exchange(), routing_key=""), spec.Queue.BindOk)

    def step(self, number):
        channel = self.random.choice(CHANNELS)
        state = self.channels[channel]
        choices = [
            (self.publish, 8), (self.burst, 3), (self.get, 5), (self.consume, 5), (self.cancel, 2), (self.ack, 6), (self.nack, 5), (self.reject, 4),
            (self.recover, 1), (self.qos, 2), (self.confirms, 1), (self.purge, 0.3), (self.passive, 0.7), (self.reopen, 0.8), (self.reconnect, 0.2),
            (self.wrong, 0.15),
        ]
        if self.kind == "transactions":
            choices += [(self.select, 3), (self.commit, 6), (self.rollback, 3)]
        operation = self.random.choices([c[0] for c in choices], [c[1] for c in choices])[0]
        said = operation(channel, state)
        self.lines.append(f"#{number} {channel} {operation.__name__} {said}")
        self.drain()

    def nothing_seen(self):
        return {channel: {"first": [], "deliver": {}, "confirm": set(), "refuse": set()} for channel in (0, *CHANNELS)}

    # Everything until it is quiet, channel by channel and queue by queue: queues have no order among each other, and confirms none.
    def drain(self, seen=None):
        seen = seen or self.nothing_seen()
        # Each channel has done what it was asked before it answers this.
        self.busy = set(self.channels)
        for channel in self.channels:
            self.wire.send(channel, spec.Exchange.Declare(exchange="amq.direct", passive=True))
        while self.busy and (whole := self.wire.read(20)) is not None:
            self.take(seen, *whole)
        while (whole := self.wire.read(self.quiet)) is not None:
            self.take(seen, *whole)
        for channel, parts in seen.items():
            for line in parts["first"]:
                self.lines.append(f"  {channel} {line}")
            for name, lines in sorted(parts["deliver"].items()):
                self.lines.extend(f"  {channel} {name} {line}" for line in lines)
            for word in ("confirm", "refuse"):
                if parts[word]:
                    self.lines.append(f"  {channel} {word} {sorted(parts[word])}")
        if self.wire.ended:
            self.lines.append("  the connection ended")
            self.wire.close()
            self.connect()

    def take(self, seen, channel, method, properties, body):
        parts, state = seen[channel], self.channels.get(channel)
        if isinstance(method, (spec.Exchange.DeclareOk, spec.Channel.Close)):
            self.busy.discard(channel)
        if isinstance(method, spec.Basic.Deliver):
            # What a RabbitMQ's quorum queue hands out at a time goes out consumer by consumer.
            source = method.consumer_tag if self.quorum else self.consumed[method.consumer_tag]
            if not method.consumer_tag.startswith("n"):
                state["held"].append(Held(self.number, source, method.delivery_tag))
            parts["deliver"].setdefault(source, []).append(
                f"deliver {method.consumer_tag}{self.next_tag(state, method)} {self.flag(method, properties)} {self.short(method.exchange)}/{self.short(method.routing_key)} {self.content(properties, body)}"
            )
        elif isinstance(method, (spec.Basic.Ack, spec.Basic.Nack)):
            word = "confirm" if isinstance(method, spec.Basic.Ack) else "refuse"
            low = 1 if method.multiple else method.delivery_tag
            known = state.setdefault("answered", set())
            now = {n for n in range(low, method.delivery_tag + 1) if n not in known}
            known |= now
            parts[word] |= now
        elif isinstance(method, spec.Basic.Return):
            late = "" if state["seq"] not in state.get("answered", ()) else " after its confirm"
            parts["first"].append(f"return {method.reply_code} {method.reply_text} {self.content(properties, body)}{late}")
        elif isinstance(method, spec.Basic.GetOk):
            queue, no_ack = state["got"]
            if not no_ack:
                state["held"].append(Held(self.number, queue, method.delivery_tag))
            parts["first"].append(
                f"get-ok{self.next_tag(state, method)} {self.flag(method, properties)} left {method.message_count} {self.content(properties, body)}"
            )
        elif isinstance(method, spec.Channel.Close):
            # RabbitMQ 4.3 names a type as Erlang prints it.
            text = self.short(method.reply_text).replace('<<"quorum">>', "quorum")
            parts["first"].append(f"close {method.reply_code} {text} {method.class_id}.{method.method_id}")
            self.wire.send(channel, spec.Channel.CloseOk())
            self.open_after(seen, channel)
        elif isinstance(method, spec.Connection.Close):
            parts["first"].append(f"end {method.reply_code} {self.short(method.reply_text)} {method.class_id}.{method.method_id}")
            self.wire.send(0, spec.Connection.CloseOk())
        elif isinstance(method, spec.Exchange.DeclareOk):
            pass
        elif isinstance(method, spec.Queue.DeclareOk):
            # What a quorum queue tells of itself here is some seconds old in RabbitMQ.
            parts["first"].append("declare-ok" + ("" if self.quorum else f" {method.message_count} {method.consumer_count}"))
        elif isinstance(method, spec.Queue.PurgeOk):
            parts["first"].append(f"purge-ok {method.message_count}")
        elif isinstance(method, spec.Basic.Cancel):
            parts["first"].append(f"cancel {method.consumer_tag}")
        else:
            parts["first"].append(method.NAME)

    def next_tag(self, state, method):
        """Nothing when the delivery tag is the next of its channel."""
        state["tag"] += 1
        return "" if method.delivery_tag == state["tag"] else f" tag {method.delivery_tag} instead of {state['tag']}"

    def open_after(self, seen, channel):
        self.wire.send(channel, spec.Channel.Open())
        while True:
            whole = self.wire.read(20)
            if whole is None:
                raise wire.Ended
            if whole[0] == channel and isinstance(whole[1], spec.Channel.OpenOk):
                break
            self.take(seen, *whole)
        self.channels[channel] = self.fresh()

    def short(self, text):
        for name, whole in self.names.items():
            text = text.replace(whole, name)
        return text

    def flag(self, method, properties):
        """Whether it is marked as redelivered. RabbitMQ marks a dead letter of a quorum queue by channels that ended with it, too."""
        if self.quorum and "x-death" in (properties.headers or {}):
            return "dead"
        return "again" if method.redelivered else "new"

    def content(self, properties, body):
        headers = wire.simple(properties.headers or {})
        if self.quorum and "x-death" in headers:
            # RabbitMQ counts deliveries in earlier queues too; see "Counts of a dead letter" in docs/compatibility.md.
            headers.pop("x-delivery-count", None)
            headers.pop("x-acquired-count", None)
        for death in headers.get("x-death", []):
            death["time"] = "?"
        fields = {key: value for key, value in vars(properties).items() if value is not None and key != "headers"}
        return self.short(f"{body.split(b' ')[0].decode()} {fields} {dict(sorted(headers.items()))}")

    def queue(self):
        return self.random.choice(list(self.names))

    def message(self):
        """Properties and body of a message; what is numbered is the same in both brokers."""
        self.published += 1
        draw = self.random
        properties = spec.BasicProperties(delivery_mode=draw.choice((1, 2, 2, None)))
        if draw.random() < 0.4:
            properties.priority = draw.randrange(0, 11)
        if "ttl" in self.kind and draw.random() < 0.4:
            properties.expiration = draw.choice(("0", "1", "60000"))
        headers = {}
        if draw.random() < 0.1:
            headers["CC"] = [self.names[self.queue()]]
        if draw.random() < 0.05:
            headers["BCC"] = [self.names[self.queue()]]
        if headers:
            properties.headers = headers
        return properties, b"m%d %s" % (self.published, b"." * draw.choice((0, 0, 0, 20)))

    def one(self, channel, state, queue, mandatory):
        properties, body = self.message()
        state["seq"] += 1
        self.wire.send(channel, spec.Basic.Publish(exchange="", routing_key=queue, mandatory=mandatory), properties, body)
        return f"{self.short(queue)} m{self.published} {'mandatory ' if mandatory else ''}{self.short(str({k: v for k, v in vars(properties).items() if v is not None}))}"

    def publish(self, channel, state):
        queue = self.names[self.queue()] if self.random.random() < 0.95 else "nowhere"
        return self.one(channel, state, queue, self.random.random() < 0.3)

    def burst(self, channel, state):
        queue = self.queue()
        # A publisher learns some time later that a RabbitMQ's quorum queue refuses what it has published.
        refuses = self.quorum and "x-overflow" in self.queues[queue]
        count = 1 if refuses else self.random.randrange(2, 7)
        return "; ".join(self.one(channel, state, self.names[queue], False) for _ in range(count))

    def get(self, channel, state):
        no_ack, queue = self.random.random() < 0.2, self.queue()
        state["got"] = queue, no_ack
        self.wire.send(channel, spec.Basic.Get(queue=self.names[queue], no_ack=no_ack))
        return f"{queue}{' no-ack' if no_ack else ''}"

    def consume(self, channel, state):
        draw = self.random
        self.consumers += 1
        no_ack, queue = draw.random() < 0.15, self.queue()
        tag = f"{'n' if no_ack else 'c'}{self.consumers}"
        arguments = {"x-priority": draw.choice((-1, 1, 2))} if draw.random() < 0.3 else {}
        exclusive = draw.random() < 0.05
        self.wire.send(channel, spec.Basic.Consume(queue=self.names[queue], consumer_tag=tag, no_ack=no_ack, exclusive=exclusive, arguments=arguments))
        state["consumers"].append(tag)
        self.consumed[tag] = queue
        self.priorities[tag] = arguments.get("x-priority", 0)
        return f"{queue} {tag} {arguments}{' exclusive' if exclusive else ''}"

    def cancel(self, channel, state):
        if not state["consumers"]:
            return "nothing"
        tag = self.random.choice(state["consumers"])
        if self.kind == "quorum-sac" and self.is_above_another(tag):
            return f"not {tag}"
        return self.end_consumer(channel, state, tag)

    def end_consumer(self, channel, state, tag):
        state["consumers"].remove(tag)
        self.wire.send(channel, spec.Basic.Cancel(consumer_tag=tag))
        return tag

    def is_above_another(self, tag):
        """Whether a consumer has a higher priority than another one of its queue. When it is cancelled while the other one has yet to settle
        its deliveries, RabbitMQ gives the other one nothing until then."""
        queue = self.consumed[tag]
        others = [other for state in self.channels.values() for other in state["consumers"] if self.consumed[other] == queue]
        return any(self.priorities[other] < self.priorities[tag] for other in others)

    def choose(self, state):
        """A delivery to settle and whether all before it are meant, or None. Of the deliveries of one step those of several sources have no
        order among each other, so with "all before" nothing but the last of such is chosen."""
        if not state["held"]:
            return None
        multiple = self.random.random() < 0.3
        held = sorted(state["held"], key=lambda one: (one.step, one.source, one.tag))
        if multiple:
            steps = {}
            for one in held:
                steps.setdefault(one.step, []).append(one)
            ends = []
            for of_step in steps.values():
                ends += of_step if len({one.source for one in of_step}) == 1 else [max(of_step, key=lambda one: one.tag)]
            tag = self.random.choice(ends).tag
        else:
            tag = self.random.choice(held).tag
        gone = [one for one in held if (one.tag <= tag if multiple else one.tag == tag)]
        state["held"] = [one for one in held if one not in gone]
        said = " ".join(f"{one.step}:{one.source}" for one in gone)
        return tag, multiple, f"{said}{' and all before' if multiple else ''}"

    def ack(self, channel, state):
        chosen = self.choose(state)
        if chosen is None:
            return "nothing"
        self.wire.send(channel, spec.Basic.Ack(chosen[0], chosen[1]))
        return chosen[2]

    def nack(self, channel, state):
        chosen = self.choose(state)
        if chosen is None:
            return "nothing"
        requeue = self.random.random() < 0.7
        self.wire.send(channel, spec.Basic.Nack(chosen[0], chosen[1], requeue))
        return f"{chosen[2]} {'requeue' if requeue else 'drop'}"

    def reject(self, channel, state):
        if not state["held"]:
            return "nothing"
        one = self.random.choice(sorted(state["held"], key=lambda one: (one.step, one.source, one.tag)))
        state["held"].remove(one)
        requeue = self.random.random() < 0.6
        self.wire.send(channel, spec.Basic.Reject(one.tag, requeue))
        return f"{one.step}:{one.source} {'requeue' if requeue else 'drop'}"

    def recover(self, channel, state):
        state["held"] = []
        self.wire.send(channel, spec.Basic.Recover(True))
        return ""

    def qos(self, channel, state):
        """A limit on the channel is set while it has nothing, and stays: RabbitMQ counts what basic.get gave out before against it for ever; a
        consumer that it held up is served in another order there once it is lifted; what is too much goes back to its queue here, where it may
        have expired meanwhile."""
        if state["limited"]:
            return "nothing"
        empty = not state["consumers"] and not state["held"]
        whole = empty and not self.quorum and "ttl" not in self.kind and self.random.random() < 0.3
        count = self.random.choice((1, 2, 3) if whole else (0, 1, 1, 2, 3, 5))
        if whole:
            state["limited"] = True
        else:
            state["prefetch"] = count
        self.wire.send(channel, spec.Basic.Qos(prefetch_count=count, global_qos=whole))
        return f"{count}{' global' if whole else ''}"

    def confirms(self, channel, state):
        if not state["confirms"]:
            if not state["tx"]:
                state["seq"], state["confirms"] = 0, True
            self.wire.send(channel, spec.Confirm.Select())
        return ""

    def purge(self, channel, state):
        queue = self.queue()
        self.wire.send(channel, spec.Queue.Purge(queue=self.names[queue]))
        return queue

    def passive(self, channel, state):
        queue = self.queue()
        self.wire.send(channel, spec.Queue.Declare(queue=self.names[queue], passive=True))
        return queue

    def reopen(self, channel, state):
        self.wire.send(channel, spec.Channel.Close(200, "", 0, 0))
        seen = self.nothing_seen()
        while True:
            whole = self.wire.read(20)
            if whole is None:
                raise wire.Ended
            if whole[0] == channel and isinstance(whole[1], spec.Channel.CloseOk):
                break
            self.take(seen, *whole)
        del self.channels[channel]
        self.drain(seen)
        self.open(channel)
        return ""

    def reconnect(self, channel, state):
        self.leave()
        self.connect()
        return ""

    def wrong(self, channel, state):
        """A tag that is not known, settled or never given."""
        self.wire.send(channel, spec.Basic.Ack(10_000))
        return ""

    def select(self, channel, state):
        if not state["confirms"]:
            state["tx"] = True
        self.wire.send(channel, spec.Tx.Select())
        return ""

    def commit(self, channel, state):
        self.wire.send(channel, spec.Tx.Commit())
        # RabbitMQ ends a connection that asks for anything else meanwhile.
        time.sleep(self.quiet)
        return ""

    def rollback(self, channel, state):
        self.wire.send(channel, spec.Tx.Rollback())
        return ""

    def end(self):
        """All that is left, once nobody holds anything."""
        self.leave()
        self.connect()
        for queue, name in self.names.items():
            lines, died = [], []
            while True:
                self.wire.send(1, spec.Basic.Get(queue=name, no_ack=True))
                whole = self.wire.read(20)
                if whole is None:
                    raise wire.Ended
                if not isinstance(whole[1], spec.Basic.GetOk):
                    break
                properties = whole[2]
                line = f"left in {queue}: {self.flag(whole[1], properties)} {self.content(properties, whole[3])}"
                # What a RabbitMQ's quorum queue drops at a time comes to the next queue in the reverse of its order.
                (died if self.quorum and "x-death" in (properties.headers or {}) else lines).append(line)
            self.lines += lines + sorted(died)
