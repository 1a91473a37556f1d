"""pika against Posthorn: what an application does with it, and what it is told when it does it wrong."""

import hashlib
import time
import uuid

import pika
from pika.exceptions import (
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    NackError,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
    UnroutableError,
)

import recovery
from checks import Checks, until

checks = Checks("pika")
URL = "amqp://guest:guest@127.0.0.1:5672/%2F"
KINDS = ("classic", "quorum")


def connect(url=URL):
    return pika.BlockingConnection(pika.URLParameters(url))


class Opened:
    """A connection with one channel, for a `with`."""

    def __init__(self, url=URL):
        self.url = url

    def __enter__(self):
        self.connection = connect(self.url)
        return self.connection.channel()

    def __exit__(self, *_):
        if self.connection.is_open:
            self.connection.close()


def name(prefix):
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


def declare(channel, kind="classic", **arguments):
    """A durable queue of a name of its own."""
    queue = name(kind)
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": kind, **arguments})
    return queue


def publish(channel, queue, *bodies, **options):
    """With the mode of the channel: confirmed when it is in confirm mode."""
    properties = pika.BasicProperties(delivery_mode=2)
    for body in bodies:
        channel.basic_publish("", queue, body, properties, **options)


def get(channel, queue):
    """The next message, as soon as there is one."""
    return until(lambda: (got := channel.basic_get(queue))[0] and got, f"a message in {queue}")


def bodies(channel, queue, count):
    """Takes and acknowledges that many."""
    taken = []
    for _ in range(count):
        method, _, body = get(channel, queue)
        channel.basic_ack(method.delivery_tag)
        taken.append(body)
    return taken


def closed_with(code, error=ChannelClosedByBroker):
    """`with closed_with(404):` the body must fail so; the text is checked with `.text`."""
    return Closed(code, error)


class Closed:
    def __init__(self, code, error):
        self.code, self.error, self.text = code, error, ""

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _traceback):
        assert kind is not None, f"expected {self.error.__name__} {self.code}"
        if not isinstance(error, self.error):
            return False
        assert error.reply_code == self.code, (error.reply_code, error.reply_text)
        self.text = error.reply_text
        return True


@checks.check
def connects_and_hears_what_the_server_can():
    connection = connect()
    assert connection.publisher_confirms_supported
    assert connection.basic_nack_supported
    assert connection.consumer_cancel_notify_supported
    assert connection.exchange_exchange_bindings_supported
    connection.close()


@checks.check
def a_wrong_password_and_a_wrong_virtual_host_are_told_apart():
    try:
        connect("amqp://guest:wrong@127.0.0.1:5672/%2F")
        raise AssertionError("it let us in")
    except ProbableAuthenticationError as error:
        assert "ACCESS_REFUSED" in str(error), error
    try:
        connect("amqp://guest:guest@127.0.0.1:5672/nowhere")
        raise AssertionError("it let us in")
    except ProbableAccessDeniedError as error:
        assert "(530) 'NOT_ALLOWED - vhost nowhere not found'" in str(error), error


@checks.check
def publishes_with_confirms():
    for kind in KINDS:
        with Opened() as channel:
            channel.confirm_delivery()
            queue = declare(channel, kind)
            publish(channel, queue, *(b"%d" % n for n in range(100)))
            assert bodies(channel, queue, 100) == [b"%d" % n for n in range(100)]


@checks.check
def unroutable_mandatory_messages_come_back():
    with Opened() as channel:
        channel.confirm_delivery()
        try:
            channel.basic_publish("amq.direct", "nowhere", b"lost", mandatory=True)
            raise AssertionError("not returned")
        except UnroutableError as error:
            (returned,) = error.messages
            assert (returned.method.reply_code, returned.method.reply_text) == (312, "NO_ROUTE")
            assert (returned.method.exchange, returned.method.routing_key) == ("amq.direct", "nowhere")
            assert returned.body == b"lost"
        channel.basic_publish("amq.direct", "nowhere", b"lost")


@checks.check
def prefetch_bounds_what_is_out():
    for kind in KINDS:
        with Opened() as channel:
            channel.confirm_delivery()
            queue = declare(channel, kind)
            publish(channel, queue, *(b"%d" % n for n in range(12)))
            channel.basic_qos(prefetch_count=5)
            got = []
            channel.basic_consume(queue, lambda _c, method, _p, body: got.append((method.delivery_tag, body)))
            until(lambda: channel.connection.process_data_events() or len(got) >= 5, "five deliveries")
            # The broker answers in order: what it had sent before this answer is here after it.
            assert channel.queue_declare(queue, passive=True).method.message_count == 7
            channel.connection.process_data_events()
            assert len(got) == 5, got
            channel.basic_ack(got[4][0], multiple=True)
            until(lambda: channel.connection.process_data_events() or len(got) >= 10, "five more")
            channel.basic_ack(got[9][0], multiple=True)
            until(lambda: channel.connection.process_data_events() or len(got) >= 12, "the rest")
            assert [body for _, body in got] == [b"%d" % n for n in range(12)]


@checks.check
def the_generator_consumes_and_returns_the_rest():
    with Opened() as channel:
        channel.confirm_delivery()
        queue = declare(channel)
        publish(channel, queue, b"1", b"2", b"3")
        channel.basic_qos(prefetch_count=3)
        for method, _, body in channel.consume(queue, inactivity_timeout=60):
            assert body == b"1"
            channel.basic_ack(method.delivery_tag)
            break
        channel.cancel()
        assert bodies(channel, queue, 2) == [b"2", b"3"]


@checks.check
def nack_and_reject_requeue_or_drop():
    for kind in KINDS:
        with Opened() as channel:
            channel.confirm_delivery()
            queue = declare(channel, kind)
            publish(channel, queue, b"1", b"2", b"3")
            first = get(channel, queue)
            assert not first[0].redelivered
            channel.basic_nack(first[0].delivery_tag, requeue=True)
            again = get(channel, queue)
            if kind == "classic":
                assert again[2] == b"1", "requeued to its old place"
            assert again[0].redelivered == (again[2] == b"1")
            channel.basic_reject(again[0].delivery_tag, requeue=False)
            left = bodies(channel, queue, 2)
            assert sorted(left + [again[2]]) == [b"1", b"2", b"3"]
            assert channel.basic_get(queue) == (None, None, None)


@checks.check
def a_closed_channel_returns_what_it_held():
    for kind in KINDS:
        with Opened() as channel:
            channel.confirm_delivery()
            queue = declare(channel, kind)
            publish(channel, queue, b"held")
            other = channel.connection.channel()
            get(other, queue)
            other.close()
            method, _, body = get(channel, queue)
            assert body == b"held" and method.redelivered


@checks.check
def get_tells_how_many_are_left():
    with Opened() as channel:
        channel.confirm_delivery()
        queue = declare(channel)
        publish(channel, queue, b"1", b"2")
        method, _, body = channel.basic_get(queue, auto_ack=True)
        assert (body, method.message_count, method.exchange, method.routing_key) == (b"1", 1, "", queue)
        assert channel.basic_get(queue, auto_ack=True)[0].message_count == 0
        assert channel.basic_get(queue) == (None, None, None)


@checks.check
def exchanges_route_by_their_type():
    headers = {"x-match": "all", "format": "pdf", "pages": 3}
    wanted = {
        "direct": ("blue", None, [("blue", None)], [("red", None), ("", None)]),
        "topic": ("*.orange.#", None, [("a.orange", None), ("a.orange.b.c", None)], [("orange", None), ("a.red.b", None)]),
        "fanout": ("", None, [("anything", None), ("", None)], []),
        "headers": ("", headers, [("", {"format": "pdf", "pages": 3, "more": 1})], [("", {"format": "pdf"}), ("", None)]),
    }
    with Opened() as channel:
        channel.confirm_delivery()
        for kind, (key, arguments, routed, lost) in wanted.items():
            exchange, queue = name(kind), declare(channel)
            channel.exchange_declare(exchange, kind, durable=True)
            channel.queue_bind(queue, exchange, key, arguments)
            for routing_key, given in routed:
                properties = pika.BasicProperties(headers=given)
                channel.basic_publish(exchange, routing_key, routing_key.encode(), properties, mandatory=True)
            for routing_key, given in lost:
                try:
                    channel.basic_publish(exchange, routing_key, b"", pika.BasicProperties(headers=given), mandatory=True)
                    raise AssertionError(f"{kind}: {routing_key} {given} was routed")
                except UnroutableError:
                    pass
            assert bodies(channel, queue, len(routed)) == [routing_key.encode() for routing_key, _ in routed]
            channel.queue_unbind(queue, exchange, key, arguments)
            channel.exchange_delete(exchange, if_unused=True)


@checks.check
def exchanges_bind_to_exchanges():
    with Opened() as channel:
        channel.confirm_delivery()
        source, destination, queue = name("source"), name("destination"), declare(channel)
        channel.exchange_declare(source, "topic")
        channel.exchange_declare(destination, "fanout")
        channel.exchange_bind(destination, source, "in.#")
        channel.queue_bind(queue, destination)
        channel.basic_publish(source, "in.here", b"1", mandatory=True)
        assert bodies(channel, queue, 1) == [b"1"]
        channel.exchange_unbind(destination, source, "in.#")
        try:
            channel.basic_publish(source, "in.here", b"2", mandatory=True)
            raise AssertionError("still bound")
        except UnroutableError:
            pass


@checks.check
def the_alternate_exchange_takes_what_has_no_route():
    with Opened() as channel:
        channel.confirm_delivery()
        alternate, exchange, queue = name("alternate"), name("exchange"), declare(channel)
        channel.exchange_declare(alternate, "fanout")
        channel.exchange_declare(exchange, "direct", arguments={"alternate-exchange": alternate})
        channel.queue_bind(queue, alternate)
        channel.basic_publish(exchange, "nowhere", b"1", mandatory=True)
        assert bodies(channel, queue, 1) == [b"1"]


@checks.check
def errors_close_the_channel_with_the_code_and_text():
    connection = connect()
    owner = connect()
    exclusive = owner.channel().queue_declare("", exclusive=True).method.queue
    taken = declare(owner.channel())
    owner.channel().basic_consume(taken, lambda *_: None, exclusive=True)
    wrong = [
        (404, "no queue 'missing' in vhost '/'", lambda c: c.queue_declare("missing", passive=True)),
        (404, "no exchange 'missing' in vhost '/'", lambda c: c.exchange_declare("missing", passive=True)),
        (404, "no queue 'missing' in vhost '/'", lambda c: c.basic_consume("missing", lambda *_: None)),
        (404, "no exchange 'missing' in vhost '/'", lambda c: c.queue_bind(taken, "missing")),
        (405, f"cannot obtain exclusive access to locked queue '{exclusive}'", lambda c: c.basic_get(exclusive)),
        (403, "name 'amq.mine' contains reserved prefix 'amq.*'", lambda c: c.queue_declare("amq.mine")),
        (403, "operation not permitted on the default exchange", lambda c: c.exchange_delete("")),
        (403, f"queue '{taken}' in vhost '/' in exclusive use", lambda c: c.basic_consume(taken, lambda *_: None)),
        (406, f"inequivalent arg 'durable' for queue '{taken}' in vhost '/'", lambda c: c.queue_declare(taken)),
        (406, "inequivalent arg 'type' for exchange 'amq.topic' in vhost '/'", lambda c: c.exchange_declare("amq.topic", "fanout", durable=True)),
        (406, "unknown exchange type 'no-such-type'", lambda c: c.exchange_declare(name("e"), "no-such-type")),
        (406, "invalid arg 'x-message-ttl'", lambda c: c.queue_declare(name("q"), durable=True, arguments={"x-message-ttl": "soon"})),
    ]
    for code, text, action in wrong:
        channel = connection.channel()
        with closed_with(code) as closed:
            action(channel)
        assert text in closed.text, (text, closed.text)
    # What has no answer of its own fails what comes next.
    for code, text, action in [
        (404, "no exchange 'missing' in vhost '/'", lambda c: c.basic_publish("missing", "", b"")),
        (406, "unknown delivery tag 7", lambda c: c.basic_ack(7)),
    ]:
        channel = connection.channel()
        with closed_with(code) as closed:
            action(channel)
            channel.queue_declare(taken, passive=True)
        assert text in closed.text, closed.text
    assert connection.is_open
    connection.close()
    owner.close()


@checks.check
def errors_close_the_connection_with_the_code_and_text():
    with Opened() as channel:
        with closed_with(540, ConnectionClosedByBroker) as closed:
            channel.basic_qos(prefetch_size=1)
        assert "prefetch_size!=0 (1)" in closed.text, closed.text


@checks.check
def exclusive_server_named_and_auto_delete_queues_go():
    with Opened() as watcher:
        connection = connect()
        channel = connection.channel()
        exclusive = channel.queue_declare("", exclusive=True).method.queue
        assert exclusive.startswith("amq.gen-"), exclusive
        automatic = channel.queue_declare(name("automatic"), auto_delete=True).method.queue
        tag = channel.basic_consume(automatic, lambda *_: None)
        channel.basic_cancel(tag)
        with closed_with(404):
            channel.queue_declare(automatic, passive=True)
        with closed_with(405):
            watcher.queue_declare(exclusive, passive=True)
        connection.close()
        watcher = watcher.connection.channel()
        with closed_with(404):
            watcher.queue_declare(exclusive, passive=True)


@checks.check
def a_consumer_hears_that_its_queue_is_gone():
    for kind in KINDS:
        with Opened() as channel:
            queue, cancelled = declare(channel, kind), []
            channel.add_on_cancel_callback(cancelled.append)
            tag = channel.basic_consume(queue, lambda *_: None)
            with Opened() as other:
                other.queue_delete(queue)
            until(lambda: channel.connection.process_data_events() or cancelled, "basic.cancel")
            assert cancelled[0].method.consumer_tag == tag
            assert channel.is_open


@checks.check
def large_bodies_travel_in_many_frames():
    body = hashlib.shake_128(b"large").digest(5_000_000)
    for kind in KINDS:
        with Opened(URL + "?frame_max=4096") as channel:
            channel.confirm_delivery()
            queue = declare(channel, kind)
            publish(channel, queue, body, b"")
            assert bodies(channel, queue, 2) == [body, b""]


@checks.check
def delayed_messages_come_when_they_are_due():
    with Opened() as channel:
        channel.confirm_delivery()
        exchange, queue = name("later"), declare(channel, "quorum")
        channel.exchange_declare(exchange, "x-delayed-message", arguments={"x-delayed-type": "topic"})
        channel.queue_bind(queue, exchange, "job.#")
        sent = time.monotonic()
        for delay in (1200, 600, 0):
            properties = pika.BasicProperties(delivery_mode=2, headers={"x-delay": delay})
            channel.basic_publish(exchange, "job.one", str(delay).encode(), properties)
        assert bodies(channel, queue, 3) == [b"0", b"600", b"1200"]
        assert time.monotonic() - sent >= 1.2
        channel.exchange_delete(exchange)


@checks.check
def a_delayed_message_exchange_refuses_what_would_deliver_early():
    with Opened() as channel:
        exchange, classic = name("later"), declare(channel)
        with closed_with(406):
            channel.exchange_declare(exchange, "x-delayed-message")
    with Opened() as channel:
        channel.exchange_declare(exchange, "x-delayed-message", arguments={"x-delayed-type": "direct"})
        with closed_with(406):
            channel.queue_bind(classic, exchange, "k")
    with Opened() as channel:
        channel.exchange_delete(exchange)


@checks.check
def properties_and_headers_arrive_as_they_were():
    properties = pika.BasicProperties(
        content_type="text/plain", content_encoding="utf-8", delivery_mode=2, priority=3, correlation_id="c", reply_to="r",
        expiration="600000", message_id="m", timestamp=1_700_000_000, type="t", user_id="guest", app_id="a", cluster_id="x",
        headers={
            "number": -5, "large": 2**40, "text": "é", "yes": True, "nothing": None,
            "table": {"inner": [1, "two", {"three": 3}]}, "bytes": b"\x00\xff",
        },
    )
    for kind in KINDS:
        with Opened() as channel:
            channel.confirm_delivery()
            queue = declare(channel, kind)
            channel.basic_publish("", queue, b"", properties)
            _, arrived, _ = get(channel, queue)
            assert arrived == properties, (arrived, properties)


@checks.check
def transactions_commit_and_roll_back():
    with Opened() as channel:
        queue = declare(channel)
        channel.tx_select()
        publish(channel, queue, b"1", b"2")
        assert channel.queue_declare(queue, passive=True).method.message_count == 0
        channel.tx_rollback()
        publish(channel, queue, b"3")
        channel.tx_commit()
        method, _, body = get(channel, queue)
        assert body == b"3"
        channel.basic_ack(method.delivery_tag)
        channel.tx_rollback()
        channel.basic_nack(method.delivery_tag, requeue=True)
        channel.tx_commit()
        assert get(channel, queue)[0].redelivered


@checks.check
def purge_and_delete_count_and_mind_their_conditions():
    for kind in KINDS:
        with Opened() as channel:
            channel.confirm_delivery()
            queue = declare(channel, kind)
            publish(channel, queue, b"1", b"2", b"3")
            if kind == "classic":
                other = channel.connection.channel()
                with closed_with(406):
                    other.queue_delete(queue, if_empty=True)
            assert channel.queue_purge(queue).method.message_count == 3
            publish(channel, queue, b"4")
            assert channel.queue_delete(queue).method.message_count == 1
            assert channel.queue_delete(queue).method.message_count == 0


@checks.check
def full_queues_refuse_or_drop():
    with Opened() as channel:
        channel.confirm_delivery()
        queue = declare(channel, "classic", **{"x-max-length": 2, "x-overflow": "reject-publish"})
        publish(channel, queue, b"1", b"2")
        try:
            publish(channel, queue, b"3")
            raise AssertionError("taken")
        except NackError:
            pass
        queue = declare(channel, "classic", **{"x-max-length": 2})
        publish(channel, queue, b"1", b"2", b"3")
        assert bodies(channel, queue, 2) == [b"2", b"3"]


@checks.check
def one_active_consumer_at_a_time():
    with Opened() as channel:
        channel.confirm_delivery()
        queue, got = declare(channel, "quorum", **{"x-single-active-consumer": True}), []
        first, second = channel.connection.channel(), channel.connection.channel()
        first.basic_consume(queue, lambda c, m, _p, body: (got.append((1, body)), c.basic_ack(m.delivery_tag)), consumer_tag="first")
        second.basic_consume(queue, lambda c, m, _p, body: (got.append((2, body)), c.basic_ack(m.delivery_tag)))
        publish(channel, queue, b"1", b"2")
        until(lambda: channel.connection.process_data_events() or len(got) == 2, "two deliveries")
        first.basic_cancel("first")
        publish(channel, queue, b"3")
        until(lambda: channel.connection.process_data_events() or len(got) == 3, "the third")
        assert got == [(1, b"1"), (1, b"2"), (2, b"3")], got


@checks.check
def replies_come_directly():
    with Opened() as client, Opened() as server:
        requests, got = declare(server), []
        client.basic_consume("amq.rabbitmq.reply-to", lambda _c, _m, p, body: got.append((p.correlation_id, body)), auto_ack=True)
        client.basic_publish("", requests, b"ping", pika.BasicProperties(reply_to="amq.rabbitmq.reply-to", correlation_id="7"))
        _, properties, _ = get(server, requests)
        server.basic_publish("", properties.reply_to, b"pong", pika.BasicProperties(correlation_id=properties.correlation_id))
        until(lambda: client.connection.process_data_events() or got, "the reply")
        assert got == [("7", b"pong")]


@checks.check
def heartbeats_keep_an_idle_connection():
    with Opened(URL + "?heartbeat=1") as channel:
        # pika closes a connection that is silent for the interval and a little.
        channel.connection.process_data_events(time_limit=4)
        channel.queue_declare("", exclusive=True)


@checks.check
def the_secret_can_be_renewed():
    with Opened() as channel:
        channel.connection.update_secret("guest", "rotated")
        channel.queue_declare("", exclusive=True)


recovery.register(checks, KINDS)

if __name__ == "__main__":
    checks.run()
