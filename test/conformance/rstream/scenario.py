"""rstream, the Python client of the stream protocol, against Posthorn: what an application does with it."""

import asyncio
import functools
import itertools
import os
import ssl
import time

from checks import Checks, node
from rstream import (
    AMQPMessage, CompressionType, Consumer, ConsumerOffsetSpecification, OffsetSpecification, OffsetType, Producer,
    RouteType, SuperStreamConsumer, SuperStreamCreationOption, SuperStreamProducer, amqp_decoder)
from rstream.exceptions import (
    AuthenticationFailure, OffsetNotFound, PreconditionFailed, StreamAlreadyExists, StreamDoesNotExist)

LOGIN = {"host": "127.0.0.1", "port": 5552, "username": "guest", "password": "guest"}
# The certificate of the node, if the scenario runs over TLS.
CERTIFICATE = os.environ.get("TLS_CERTIFICATE")
if CERTIFICATE:
    LOGIN.update(port=5551, ssl_context=ssl.create_default_context(cafile=CERTIFICATE))
PATIENCE = 60  # seconds
checks = Checks("rstream-tls" if CERTIFICATE else "rstream")
_numbers = itertools.count()


def fresh(prefix):
    """A name that this run has not used."""
    return f"{prefix}-{next(_numbers)}"


def check(function):
    """Registers a check, which is a coroutine."""
    @functools.wraps(function)
    def checked():
        asyncio.run(asyncio.wait_for(function(), PATIENCE))
    checks.check(checked)
    return checked


async def until(condition):
    """Waits for a condition."""
    while not condition():
        await asyncio.sleep(0.01)


async def publish(stream, bodies, name=None, sub_batch=None):
    """Publishes and waits for all confirms; returns how many were confirmed."""
    confirmed = []

    async def on_confirm(status):
        assert status.is_confirmed
        confirmed.append(status.message_id)

    async with Producer(**LOGIN, default_batch_publishing_delay=0.05) as producer:
        if sub_batch is not None:
            await producer.send_sub_entry(
                stream, [AMQPMessage(body=body) for body in bodies], sub_batch, on_publish_confirm=on_confirm)
            await until(lambda: len(confirmed) == 1)
        else:
            for first in range(0, len(bodies), 500):
                batch = [AMQPMessage(body=body) for body in bodies[first:first + 500]]
                await producer.send_batch(stream, batch, publisher_name=name, on_publish_confirm=on_confirm)
            await until(lambda: len(confirmed) == len(bodies))
    return len(confirmed)


async def consume(stream, count, offset=None, properties=None):
    """Reads messages from an offset: pairs of offset and body."""
    found = []

    def on_message(message, context):
        found.append((context.offset, message.body))

    consumer = Consumer(**LOGIN)
    await consumer.start()
    await consumer.subscribe(
        stream, on_message, decoder=amqp_decoder, offset_specification=offset, properties=properties)
    await until(lambda: len(found) >= count)
    await consumer.close()
    return found


def numbered(publishing_id, body):
    """A message with a publishing id, which the constructor of the client's class does not accept."""
    message = AMQPMessage(body=body)
    message.publishing_id = publishing_id
    return message


async def from_the_start(_is_active, _context):
    """Answers a consumer update. Without a listener, the client starts at the next message."""
    return OffsetSpecification(OffsetType.FIRST, 0)


async def create(prefix, arguments=None):
    """Creates a stream."""
    stream = fresh(prefix)
    async with Producer(**LOGIN) as producer:
        await producer.create_stream(stream, arguments=arguments or {})
    return stream


async def refused(awaitable, *errors):
    """Expects one of some errors of the client."""
    try:
        await awaitable
    except errors:
        return
    raise AssertionError(f"it was not refused with {' or '.join(error.__name__ for error in errors)}")


@check
async def ten_thousand_messages_are_confirmed_and_consumed_in_order():
    stream = await create("many")
    bodies = [b"%d" % n for n in range(10_000)]
    assert await publish(stream, bodies) == 10_000
    found = await consume(stream, 10_000)
    assert found == list(enumerate(bodies))


@check
async def consumer_starts_at_each_kind_of_offset():
    stream = await create("offsets")
    await publish(stream, [b"%d" % n for n in range(100)])
    await asyncio.sleep(0.1)
    between = int(time.time() * 1000)
    await asyncio.sleep(0.1)
    await publish(stream, [b"%d" % n for n in range(100, 200)])
    cases = [
        (OffsetType.FIRST, None, 0), (OffsetType.OFFSET, 50, 50), (OffsetType.TIMESTAMP, between, 100),
        (OffsetType.LAST, None, None)]
    for kind, value, expected in cases:
        offset = ConsumerOffsetSpecification(kind, value)
        found = await consume(stream, 1 if expected is None else 200 - expected, offset)
        if expected is None:
            assert found[0][0] >= 100, found[0]
        else:
            assert found[0] == (expected, b"%d" % expected), found[0]
            assert found[-1] == (199, b"199"), found[-1]


@check
async def named_producer_is_deduplicated():
    stream = await create("dedup")
    async with Producer(**LOGIN) as producer:
        for _ in range(2):
            messages = [numbered(n, b"%d" % n) for n in range(1, 101)]
            await producer.send_batch(stream, messages, publisher_name="p")
        await producer.send_wait(stream, numbered(101, b"last"), publisher_name="p")
    found = await consume(stream, 101)
    assert [body for _, body in found] == [b"%d" % n for n in range(1, 101)] + [b"last"]


@check
async def stored_offset_is_found_again():
    stream = await create("tracking")
    await publish(stream, [b"x"] * 10)
    consumer = Consumer(**LOGIN)
    await consumer.start()
    await refused(consumer.query_offset(stream, "group"), OffsetNotFound)
    for offset in (3, 7):
        await consumer.store_offset(stream, "group", offset)
    assert await consumer.query_offset(stream, "group") == 7
    await consumer.close()


@check
async def sub_batch_with_gzip_is_consumed():
    stream = await create("gzip")
    await publish(stream, [b"%d" % n for n in range(100)], sub_batch=CompressionType.Gzip)
    found = await consume(stream, 100)
    assert found == [(n, b"%d" % n) for n in range(100)]


@check
async def super_stream_is_written_and_read():
    name = fresh("super")
    option = SuperStreamCreationOption(n_partitions=3)

    async def key(message):
        return message.application_properties["id"]

    async with SuperStreamProducer(
            **LOGIN, super_stream=name, super_stream_creation_option=option, routing=RouteType.Hash,
            routing_extractor=key) as producer:
        for n in range(300):
            await producer.send(AMQPMessage(body=b"%d" % n, application_properties={"id": str(n)}))
    found = set()
    streams = set()

    def on_message(message, context):
        found.add(bytes(message.body))
        streams.add(context.stream)

    consumer = SuperStreamConsumer(**LOGIN, super_stream=name)
    await consumer.start()
    properties = {"single-active-consumer": "true", "name": "group", "super-stream": name}
    await consumer.subscribe(
        callback=on_message, decoder=amqp_decoder, properties=properties, consumer_update_listener=from_the_start,
        offset_specification=ConsumerOffsetSpecification(OffsetType.FIRST, None))
    await until(lambda: len(found) == 300)
    assert streams == {f"{name}-{n}" for n in range(3)}, streams
    await consumer.close()


@check
async def next_single_active_consumer_takes_over():
    stream = await create("single")
    await publish(stream, [b"a"])
    found = {"one": [], "two": []}
    properties = {"single-active-consumer": "true", "name": "group"}
    consumers = {}
    for name in ("one", "two"):
        def on_message(message, _context, name=name):
            found[name].append(bytes(message.body))

        consumers[name] = Consumer(**LOGIN)
        await consumers[name].start()
        await consumers[name].subscribe(
            stream, on_message, decoder=amqp_decoder, properties=dict(properties), subscriber_name="group",
            consumer_update_listener=from_the_start)
        if name == "one":
            await until(lambda: found["one"] == [b"a"])
    await publish(stream, [b"b"])
    await until(lambda: found["one"] == [b"a", b"b"])
    assert found["two"] == []
    await consumers["one"].close()
    await until(lambda: b"b" in found["two"])
    await consumers["two"].close()


@check
async def errors_have_the_codes_of_rabbitmq():
    stream = await create("errors", {"max-length-bytes": "1000000", "max-age": "1h"})
    async with Producer(**LOGIN) as producer:
        same = {"max-length-bytes": "1000000", "max-age": "1h"}
        await refused(producer.create_stream(stream, arguments=same), StreamAlreadyExists)
        await refused(producer.create_stream(stream, arguments={"max-age": "2h"}), PreconditionFailed)
        await producer.delete_stream(stream)
        await refused(producer.delete_stream(stream), StreamDoesNotExist)
    wrong = Producer(**{**LOGIN, "password": "wrong"})
    # Over TLS the response and the end of the connection reach the client at once. It drops the response then, and waits.
    await refused(wrong.start(), AuthenticationFailure, *([asyncio.TimeoutError] if CERTIFICATE else []))


@check
async def confirmed_messages_survive_a_kill():
    stream = await create("kill")
    await publish(stream, [b"%d" % n for n in range(1000)])
    node("kill", "one")
    node("start", "one")
    found = await consume(stream, 1000)
    assert found == [(n, b"%d" % n) for n in range(1000)]


checks.run()
