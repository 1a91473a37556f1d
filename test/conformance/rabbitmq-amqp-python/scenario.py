"""RabbitMQ's Python client for AMQP 1.0 against Posthorn: what an application does with it."""

import asyncio
import functools
import itertools
import threading
from datetime import timedelta

from checks import Checks, node, until
from rabbitmq_amqp_python_client import (
    AddressHelper, AMQPMessagingHandler, ClassicQueueSpecification, ConsumerOptions, ConsumerSettleStrategy,
    Environment, ExchangeSpecification, ExchangeToExchangeBindingSpecification, ExchangeToQueueBindingSpecification,
    ExchangeType, Message, OutcomeState, QuorumConsumerOptions, QuorumQueueSpecification, QueueType,
    RecoveryConfiguration, ValidationCodeException)
from rabbitmq_amqp_python_client.asyncio import AsyncEnvironment
from rabbitmq_amqp_python_client.exceptions import AmqpMessageRejectedException
from rabbitmq_amqp_python_client.qpid.proton import Delivery, symbol
from rabbitmq_amqp_python_client.qpid.proton.utils import ConnectionClosed, LinkDetached, SendException

URI = "amqp://guest:guest@127.0.0.1:5672/"
checks = Checks("rabbitmq-amqp-python")
_numbers = itertools.count()


def fresh(prefix):
    """A name that this run has not used."""
    return f"{prefix}-{next(_numbers)}"


def check(function):
    """Registers a check. The client's errors are no subclasses of Exception."""
    @functools.wraps(function)
    def checked():
        try:
            function()
        except ValidationCodeException as error:
            raise RuntimeError(str(error)) from error
    checks.check(checked)
    return checked


class Consumed(Exception):
    """Ends the loop of a consumer."""


class Client:
    """A connection with its management."""

    def __enter__(self):
        self.environment = Environment(uri=URI)
        self.connection = self.environment.connection()
        self.connection.dial()
        self.management = self.connection.management()
        return self

    def __exit__(self, *_):
        self.environment.close()

    def queue(self, specification=QuorumQueueSpecification, **arguments):
        name = fresh("queue")
        self.management.declare_queue(specification(name=name, **arguments))
        return name

    def publish(self, queue, *bodies, **properties):
        publisher = self.connection.publisher(AddressHelper.queue_address(queue))
        for body in bodies:
            assert publisher.publish(Message(body=body, inferred=True, **properties)).remote_state == Delivery.ACCEPTED
        publisher.close()

    def count(self, queue):
        return self.management.queue_info(queue).message_count

    def consume(self, queue, count, act=lambda handler, event: handler.delivery_context.accept(event), **options):
        """Consumes so many messages with `act`, over a connection whose loop it runs; returns the messages."""
        messages = []

        class Handler(AMQPMessagingHandler):
            def on_amqp_message(self, event):
                messages.append(event.message)
                act(self, event)
                if len(messages) == count:
                    raise Consumed

        connection = self.environment.connection()
        connection.dial()
        consumer = connection.consumer(AddressHelper.queue_address(queue), message_handler=Handler(), **options)
        try:
            consumer.run()
        except Consumed:
            pass
        consumer.close()
        connection.close()
        assert len(messages) == count, messages
        return messages


KINDS = [ClassicQueueSpecification, QuorumQueueSpecification]


@check
def connection_is_opened_and_closed():
    with Client() as client:
        assert client.environment.active_connections == 1
    try:
        Environment(uri="amqp://guest:wrong@127.0.0.1:5672/").connection().dial()
    except Exception as error:
        assert "unauthorized" in str(error), error
    else:
        raise AssertionError("connected")


@check
def queues_are_declared_described_and_deleted():
    with Client() as client:
        for kind, type_ in zip(KINDS, (QueueType.classic, QueueType.quorum), strict=True):
            queue = client.queue(kind, max_len=100, message_ttl=timedelta(seconds=60))
            client.publish(queue, b"a")
            info = client.management.queue_info(queue)
            assert (info.name, info.queue_type, info.message_count) == (queue, type_, 1), info
            assert info.leader and list(info.members) == [info.leader], info
            assert info.arguments["x-max-length"] == 100 and info.arguments["x-message-ttl"] == 60000, info.arguments
            client.management.delete_queue(queue)
            try:
                client.management.queue_info(queue)
            except ValidationCodeException:
                pass
            else:
                raise AssertionError("the queue is still there")


@check
def different_declaration_fails():
    with Client() as client:
        queue = client.queue(QuorumQueueSpecification)
        try:
            client.management.declare_queue(ClassicQueueSpecification(name=queue))
        except ValidationCodeException as error:
            assert "PreconditionFailed" in str(error), error
        else:
            raise AssertionError("declared")


@check
def queue_with_every_argument_is_declared():
    with Client() as client:
        for kind in KINDS:
            client.queue(kind, max_len=10, max_len_bytes=10_000, auto_expires=timedelta(seconds=60),
                         message_ttl=timedelta(seconds=1), overflow_behaviour="reject-publish",
                         dead_letter_exchange="amq.fanout", dead_letter_routing_key="key", single_active_consumer=True)


@check
def exchanges_of_every_type_are_declared():
    with Client() as client:
        for kind in (ExchangeType.direct, ExchangeType.topic, ExchangeType.fanout, ExchangeType.headers):
            name = fresh("exchange")
            for _ in range(2):
                client.management.declare_exchange(ExchangeSpecification(name=name, exchange_type=kind))
            client.management.delete_exchange(name)


@check
def binding_routes_until_it_is_removed():
    with Client() as client:
        exchange, queue = fresh("exchange"), client.queue()
        client.management.declare_exchange(ExchangeSpecification(name=exchange, exchange_type=ExchangeType.direct))
        path = client.management.bind(ExchangeToQueueBindingSpecification(
            source_exchange=exchange, destination_queue=queue, binding_key="key"))
        publisher = client.connection.publisher(AddressHelper.exchange_address(exchange, "key"))
        publisher.publish(Message(body=b"a", inferred=True))
        client.management.unbind(path)
        try:
            publisher.publish(Message(body=b"b", inferred=True))
        except SendException as error:
            assert error.state == OutcomeState.RELEASED.value if hasattr(OutcomeState, "RELEASED") else True
        else:
            raise AssertionError("routed")
        assert client.count(queue) == 1


@check
def exchanges_are_bound_to_exchanges():
    with Client() as client:
        first, second, queue = fresh("exchange"), fresh("exchange"), client.queue()
        for name in (first, second):
            client.management.declare_exchange(ExchangeSpecification(name=name, exchange_type=ExchangeType.fanout))
        path = client.management.bind(ExchangeToExchangeBindingSpecification(
            source_exchange=first, destination_exchange=second, binding_key=""))
        client.management.bind(ExchangeToQueueBindingSpecification(source_exchange=second, destination_queue=queue))
        client.connection.publisher(AddressHelper.exchange_address(first)).publish(Message(body=b"a", inferred=True))
        assert client.count(queue) == 1
        client.management.unbind(path)


@check
def names_are_encoded():
    with Client() as client:
        # The client encodes other characters than those of ASCII by their number, not as UTF-8.
        name = fresh("a/b %&;=")
        client.management.declare_queue(QuorumQueueSpecification(name=name))
        client.publish(name, b"a")
        assert client.consume(name, 1)[0].body == b"a"
        client.management.delete_queue(name)


@check
def purge_counts_messages():
    with Client() as client:
        for kind in KINDS:
            queue = client.queue(kind)
            client.publish(queue, b"a", b"b", b"c")
            assert client.management.purge_queue(queue) == 3
            assert client.count(queue) == 0


@check
def message_names_its_address():
    with Client() as client:
        queue = client.queue()
        publisher = client.connection.publisher()
        message = Message(body=b"a", inferred=True)
        publisher.publish(AddressHelper.message_to_address_helper(message, AddressHelper.queue_address(queue)))
        assert client.count(queue) == 1


@check
def messages_are_consumed_with_their_properties():
    with Client() as client:
        for kind in KINDS:
            queue = client.queue(kind)
            client.publish(queue, b"a", b"b", id="id-1", subject="subject", correlation_id="id-0",
                           application_properties={"text": "é", "number": 7}, priority=3, durable=True)
            first, second = client.consume(queue, 2)
            assert (first.body, second.body, first.id, first.subject) == (b"a", b"b", "id-1", "subject")
            assert first.application_properties == {"text": "é", "number": 7} and first.durable, first
            until(lambda: client.count(queue) == 0, "an empty queue")


@check
def many_messages_arrive_in_order():
    with Client() as client:
        for kind in KINDS:
            queue = client.queue(kind)
            bodies = [str(n).encode() for n in range(300)]
            client.publish(queue, *bodies)
            assert [message.body for message in client.consume(queue, 300)] == bodies


@check
def discarded_messages_are_dead_lettered():
    with Client() as client:
        for kind in KINDS:
            dead = client.queue()
            queue = client.queue(kind, dead_letter_exchange="", dead_letter_routing_key=dead)
            client.publish(queue, b"a", b"b")
            acts = iter([lambda h, e: h.delivery_context.discard(e),
                         lambda h, e: h.delivery_context.discard_with_annotations(e, {symbol("x-opt-why"): "bad"})])
            client.consume(queue, 2, lambda handler, event: next(acts)(handler, event))
            first, second = sorted(client.consume(dead, 2), key=lambda message: bytes(message.body))
            assert (first.body, second.body) == (b"a", b"b")
            if kind is QuorumQueueSpecification:
                assert second.annotations[symbol("x-opt-why")] == "bad", second.annotations


@check
def requeued_messages_return():
    with Client() as client:
        for kind in KINDS:
            queue = client.queue(kind)
            client.publish(queue, b"a")
            acts = iter([lambda h, e: h.delivery_context.requeue(e),
                         lambda h, e: h.delivery_context.requeue_with_annotations(e, {symbol("x-opt-why"): "busy"}),
                         lambda h, e: h.delivery_context.accept(e)])
            messages = client.consume(queue, 3, lambda handler, event: next(acts)(handler, event))
            if kind is QuorumQueueSpecification:
                assert messages[2].annotations[symbol("x-opt-why")] == "busy", messages[2].annotations
            until(lambda: client.count(queue) == 0, "an empty queue")


@check
def settled_consumer_needs_no_disposition():
    with Client() as client:
        queue = client.queue()
        client.publish(queue, b"a", b"b")
        options = ConsumerOptions(settle_strategy=ConsumerSettleStrategy.PreSettled)
        messages = client.consume(queue, 2, lambda *_: None, consumer_options=options)
        assert [message.body for message in messages] == [b"a", b"b"]
        until(lambda: client.count(queue) == 0, "an empty queue")


@check
def full_queue_rejects_with_its_reason():
    with Client() as client:
        for kind in KINDS:
            queue = client.queue(kind, max_len=1, overflow_behaviour="reject-publish")
            publisher = client.connection.publisher(AddressHelper.queue_address(queue))

            def refused():
                try:
                    publisher.publish(Message(body=b"a", inferred=True))
                except AmqpMessageRejectedException as error:
                    return str(error)
            assert "maximum length" in until(refused, "a rejection")


@check
def missing_queue_is_refused():
    for method in ("publisher", "consumer"):
        with Client() as client:
            try:
                getattr(client.connection, method)("/queues/missing")
            except LinkDetached as error:
                assert error.condition == "amqp:not-found", error
            else:
                raise AssertionError("attached")


@check
def asynchronous_client_publishes_and_describes():
    async def scenario():
        async with AsyncEnvironment(uri=URI) as environment, await environment.connection() as connection:
            async with await connection.management() as management:
                queue = fresh("async")
                await management.declare_queue(QuorumQueueSpecification(name=queue))
                async with await connection.publisher(AddressHelper.queue_address(queue)) as publisher:
                    await publisher.publish(Message(body=b"a", inferred=True))
                assert (await management.queue_info(queue)).message_count == 1
                await management.delete_queue(queue)
    asyncio.run(scenario())


@check
def single_active_consumer_is_told_its_state():
    with Client() as first, Client() as second:
        queue = first.queue(single_active_consumer=True)
        first.publish(queue, b"a")
        first.publish(queue, b"b")
        first_states, second_states = [], []
        first_consumes, second_waits = threading.Event(), threading.Event()

        def accept_once_the_other_waits(handler, event):
            first_consumes.set()
            assert second_waits.wait(20)
            handler.delivery_context.accept(event)

        def second_is_told(is_active):
            second_states.append(is_active)
            second_waits.set()

        def consume_first():
            options = QuorumConsumerOptions(sac_state_handler=first_states.append)
            first.consume(queue, 1, accept_once_the_other_waits, consumer_options=options)

        thread = threading.Thread(target=consume_first)
        thread.start()
        assert first_consumes.wait(20)
        second.consume(queue, 1, consumer_options=QuorumConsumerOptions(sac_state_handler=second_is_told))
        thread.join()
        assert (first_states, second_states) == ([True], [False, True]), (first_states, second_states)


@check
def direct_reply_to_names_an_address():
    with Client() as client:
        options = ConsumerOptions(settle_strategy=ConsumerSettleStrategy.DirectReplyTo)
        consumer = client.connection.consumer(message_handler=AMQPMessagingHandler(), consumer_options=options)
        assert consumer.address.startswith("/queues/amq.rabbitmq.reply-to."), consumer.address


if __name__ == "__main__":
    checks.run()
