"""Qpid Proton against Posthorn: what an application does with it, and what it is told when it does it wrong."""

import uuid

import proton
from checks import Checks, node, until
from client import *
from proton import Array, Condition, Data, Terminus, timestamp
from proton.reactor import Copy, Filter, Selector
from proton.utils import BlockingConnection, ConnectionClosed, SendException

checks = Checks("qpid-proton")
check = checks.check

ACCEPTED, REJECTED, RELEASED, MODIFIED = (
    Delivery.ACCEPTED, Delivery.REJECTED, Delivery.RELEASED, Delivery.MODIFIED)


# Connections.


@check
def open_offers_capabilities_and_properties():
    with Client() as client:
        connection = client.connection.conn
        assert connection.remote_container
        capabilities = [str(capability) for capability in connection.remote_offered_capabilities]
        assert "ANONYMOUS-RELAY" in capabilities and "LINK_PAIR_V1_0" in capabilities, capabilities
        properties = {str(key): value for key, value in connection.remote_properties.items()}
        assert properties["product"] == "RabbitMQ" and properties["platform"].startswith("Posthorn"), properties
        assert properties["node"], properties
        assert properties["version"].startswith("4."), properties


@check
def vhost_of_the_hostname_is_opened():
    with Client(virtual_host="vhost:/") as client:
        assert client.count(client.queue()) == 0


@check
def missing_vhost_is_refused():
    try:
        Client(virtual_host="vhost:missing")
    except (ConnectionClosed, proton.ConnectionException) as error:
        assert "amqp:not-found" in str(error), error
    else:
        raise AssertionError("opened")


@check
def wrong_password_is_refused():
    try:
        Client("guest", "wrong")
    except proton.ConnectionException as error:
        assert "amqp:unauthorized-access" in str(error), error
    else:
        raise AssertionError("opened")


@check
def heartbeats_keep_an_idle_connection():
    with Client(heartbeat=2) as client:
        queue = client.queue()
        transport = client.connection.conn.transport
        before = transport.frames_input
        client.wait(lambda: transport.frames_input >= before + 3, "frames of the idle node")
        client.send(queue, "a")
        assert client.count(queue) == 1


@check
def small_frames_carry_large_messages():
    with Client(max_frame_size=512) as client:
        queue = client.queue()
        body = bytes(range(256)) * 40
        client.send(queue, body)
        assert client.take(queue)[0].body == body


@check
def sessions_are_independent():
    with Client() as client:
        queue = client.queue()
        session = client.connection.conn.session()
        session.open()
        client.wait(lambda: session.state & Endpoint.REMOTE_ACTIVE)
        session.close()
        client.wait(lambda: session.state & Endpoint.REMOTE_CLOSED)
        client.send(queue, "a")
        assert client.count(queue) == 1


# Publishing.


@check
def message_is_accepted_and_counted():
    with Client() as client:
        for kind in KINDS:
            queue = client.queue(kind)
            client.send(queue, "a", "b", durable=True)
            assert client.count(queue) == 2


@check
def settled_message_arrives():
    with Client() as client:
        queue = client.queue()
        sender = client.sender(queue, lambda link: setattr(link, "snd_settle_mode", Link.SND_SETTLED))
        sender.send(Message(body="a"))
        assert client.take(queue)[0].body == "a"


@check
def unroutable_message_is_released():
    with Client() as client:
        sender = client.sender(f"/exchanges/{client.exchange('direct')}/nowhere")
        assert outcome(sender, Message(body="a")).remote_state == RELEASED
        try:
            sender.send(Message(body="a"))
        except SendException as error:
            assert error.state == RELEASED
        else:
            raise AssertionError("accepted")


@check
def full_queue_rejects_with_its_name_and_reason():
    with Client() as client:
        for kind in KINDS:
            queue = client.queue(kind, x_max_length=1, x_overflow="reject-publish")
            sender = client.sender(queue)
            states = []
            # A quorum queue refuses messages some messages later than its limit.
            until(lambda: states.append(outcome(sender, Message(body="a"))) or states[-1].remote_state == REJECTED,
                  "a rejection")
            condition = states[-1].remote.condition
            assert condition.name == "amqp:resource-limit-exceeded", condition
            info = {str(key): value for key, value in condition.info.items()}
            assert info["queue"] == queue.rsplit("/", 1)[1] and info["reason"] == "maxlen", info


@check
def anonymous_terminus_takes_the_address_of_each_message():
    with Client() as client:
        first, second = client.queue(), client.queue("quorum")
        sender = client.sender(None)
        for queue in (first, second):
            assert outcome(sender, Message(body="a", address=queue)).remote_state == ACCEPTED
        assert client.count(first) == 1 and client.count(second) == 1
        for address in (None, "orders", "/exchanges/missing/key"):
            delivery = outcome(sender, Message(body="a", address=address))
            assert delivery.remote_state == REJECTED, (address, delivery.remote_state)
            assert delivery.remote.condition.name in ("amqp:not-found", "amqp:precondition-failed")


@check
def many_messages_in_flight_keep_their_order():
    with Client() as client:
        for kind in KINDS:
            queue = client.queue(kind)
            sender = client.sender(queue)
            deliveries = []
            for number in range(1000):
                client.wait(lambda: sender.link.credit > 0, "credit")
                deliveries.append(sender.link.send(Message(body=number)))
            client.wait(lambda: all(delivery.settled for delivery in deliveries), "outcomes")
            assert all(delivery.remote_state == ACCEPTED for delivery in deliveries)
            assert [message.body for message in client.take(queue, 1000)] == list(range(1000))


@check
def aborted_delivery_is_not_published():
    with Client() as client:
        queue = client.queue()
        sender = client.sender(queue)
        client.wait(lambda: sender.link.credit > 0, "credit")
        delivery = sender.link.delivery("aborted")
        sender.link.stream(Message(body=b"x" * 100_000).encode()[:50_000])
        client.connection.container.process()
        delivery.abort()
        assert outcome(sender, Message(body="b")).remote_state == ACCEPTED
        assert client.count(queue) == 1 and client.take(queue)[0].body == "b"


@check
def message_in_pieces_is_published_once_complete():
    with Client() as client:
        queue = client.queue()
        sender = client.sender(queue)
        client.wait(lambda: sender.link.credit > 0, "credit")
        encoded = Message(body=b"y" * 100_000).encode()
        delivery = sender.link.delivery("pieces")
        for at in range(0, len(encoded), 30_000):
            sender.link.stream(encoded[at:at + 30_000])
            client.connection.container.process()
        sender.link.advance()
        client.wait(lambda: delivery.settled, "the outcome")
        assert delivery.remote_state == ACCEPTED
        assert client.take(queue)[0].body == b"y" * 100_000


@check
def links_of_a_session_publish_side_by_side():
    with Client() as client:
        queues = [client.queue() for _ in range(10)]
        senders = [client.sender(queue) for queue in queues]
        deliveries = [sender.link.send(Message(body=n)) for n in range(5) for sender in senders]
        client.wait(lambda: all(delivery.settled for delivery in deliveries), "outcomes")
        assert [client.count(queue) for queue in queues] == [5] * 10


# Messages.


@check
def bare_message_is_preserved():
    sent = dict(
        id="id-1", user_id=b"guest", subject="subject", reply_to="/queues/answers", correlation_id=uuid.uuid4(),
        content_type="text/plain", content_encoding="identity", expiry_time=2_000_000_000, creation_time=1_600_000_000,
        group_id="group", group_sequence=7, reply_to_group_id="others", durable=True, priority=3)
    with Client() as client:
        for kind in KINDS:
            queue = client.queue(kind)
            client.send(queue, {"list": [1, None, True], "text": "é"}, **sent)
            message = client.take(queue)[0]
            assert message.body == {"list": [1, None, True], "text": "é"}, message.body
            for name, value in sent.items():
                got = getattr(message, name)
                assert (str(got) if name in ("content_type", "content_encoding") else got) == value, (name, got)


@check
def application_properties_keep_their_types():
    properties = {
        "text": "é", "true": True, "byte": proton.byte(-1), "short": proton.short(-300), "int": proton.int32(-70000),
        "long": -5_000_000_000, "ubyte": proton.ubyte(255), "uint": proton.uint(7), "ulong": ulong(2**63),
        "double": 0.5, "float": proton.float32(0.25), "time": timestamp(1_600_000_000_000), "id": uuid.uuid4(),
        "bytes": b"\0\xff", "symbol": symbol("s"), "char": proton.char("x"), "null": None}
    with Client() as client:
        for kind in KINDS:
            queue = client.queue(kind)
            client.send(queue, "a", properties=properties)
            got = client.take(queue)[0].properties
            assert got == properties, got
            got["bytes"] = bytes(got["bytes"])
            different = {k: type(got[k]) for k in got if type(got[k]) is not type(properties[k])}
            assert not different, different


@check
def bodies_of_every_kind_arrive():
    bodies = [b"data", "text", 7, None, [1, [2, "x"]], {"a": {"b": 1}}, uuid.UUID(int=5), True, 0.5,
              Described(symbol("custom:type"), ["x", 1]), Array(proton.UNDESCRIBED, Data.INT, 1, 2, 3)]
    with Client() as client:
        for kind in KINDS:
            queue = client.queue(kind)
            for body in bodies:
                client.send(queue, Null() if body is None else body)
            for body, message in zip(bodies, client.take(queue, len(bodies)), strict=True):
                assert message.body == body, (body, message.body)


@check
def data_and_sequence_sections_are_kept():
    with Client() as client:
        queue = client.queue()
        client.send(queue, b"data", inferred=True)
        client.send(queue, [1, "two"], inferred=True)
        first, second = client.take(queue, 2)
        assert first.inferred and first.body == b"data"
        assert second.inferred and second.body == [1, "two"], second


@check
def message_annotations_arrive():
    annotations = {symbol("x-opt-text"): "a", symbol("x-opt-number"): 7, symbol("x-opt-list"): [1, 2]}
    with Client() as client:
        queue = client.queue()
        client.send(queue, "a", annotations=annotations)
        got = client.take(queue)[0].annotations
        for key, value in annotations.items():
            assert got[key] == value, got
        assert got[symbol("x-routing-key")] == queue.rsplit("/", 1)[1], got


@check
def empty_and_large_bodies_arrive():
    with Client() as client:
        for kind in KINDS:
            queue = client.queue(kind)
            bodies = [b"", b"z" * (4 << 20)]
            client.send(queue, *bodies)
            assert [message.body for message in client.take(queue, 2)] == bodies


@check
def time_to_live_expires_a_message():
    with Client() as client:
        for kind in KINDS:
            dead = client.queue()
            queue = client.queue(kind, x_dead_letter_exchange="", x_dead_letter_routing_key=dead.rsplit("/", 1)[1])
            client.send(queue, "a", ttl=0.01)
            message = client.take(dead)[0]
            assert message.body == "a"
            assert client.count(queue) == 0


@check
def remaining_time_to_live_is_delivered():
    with Client() as client:
        queue = client.queue()
        client.send(queue, "a", ttl=60)
        assert 0 < client.take(queue)[0].ttl <= 60


# Consuming.


@check
def credit_limits_deliveries():
    with Client() as client:
        for kind in KINDS:
            queue = client.queue(kind)
            client.send(queue, *range(10))
            receiver = client.receiver(queue, credit=3)
            client.wait(lambda: receiver.fetcher.has_message == 3, "three messages")
            client.count(queue)
            assert receiver.fetcher.has_message == 3
            receiver.link.flow(2)
            client.wait(lambda: receiver.fetcher.has_message == 5, "five messages")


@check
def drain_uses_up_the_credit():
    with Client() as client:
        for kind in KINDS:
            queue = client.queue(kind)
            client.send(queue, "a", "b")
            receiver = client.receiver(queue, credit=False)
            receiver.link.drain(10)
            client.wait(lambda: receiver.link.credit == 0, "the end of the drain")
            assert receiver.fetcher.has_message == 2, receiver.fetcher.has_message
            receiver.link.drain_mode = False
            client.send(queue, "c")
            receiver.link.flow(1)
            client.wait(lambda: receiver.fetcher.has_message == 3, "a message after the drain")


@check
def drain_of_an_empty_queue_answers():
    with Client() as client:
        for kind in KINDS:
            receiver = client.receiver(client.queue(kind), credit=False)
            receiver.link.drain(100)
            client.wait(lambda: receiver.link.credit == 0, "the end of the drain")
            assert not receiver.link.draining()


@check
def outcomes_settle_messages():
    with Client() as client:
        for kind in KINDS:
            dead = client.queue()
            queue = client.queue(kind, x_dead_letter_exchange="", x_dead_letter_routing_key=dead.rsplit("/", 1)[1])
            client.send(queue, "accept", "reject", "release", "modify")
            receiver = client.receiver(queue, credit=4)
            for act in (receiver.accept, receiver.reject, lambda: receiver.release(False), receiver.release):
                receiver.receive()
                act()
            client.settled(receiver)
            receiver.close()
            until(lambda: client.count(dead) == 1 and client.count(queue) == 2, "the messages")
            assert client.take(dead)[0].body == "reject"
            assert sorted(message.body for message in client.take(queue, 2)) == ["modify", "release"]


@check
def modified_delivery_counts_as_failed_and_released_does_not():
    with Client() as client:
        for kind in KINDS:
            queue = client.queue(kind)
            client.send(queue, "a")
            receiver = client.receiver(queue, credit=1)
            assert receiver.receive().delivery_count == 0
            receiver.release(False)
            message = receiver.receive()
            # A classic queue only knows that a message was delivered before.
            assert kind == "classic" or message.delivery_count == 0, message.delivery_count
            delivery = receiver.fetcher.unsettled.popleft()
            delivery.local.failed = True
            delivery.update(MODIFIED)
            delivery.settle()
            message = receiver.receive()
            assert message.delivery_count == 1 and not message.first_acquirer, message
            receiver.accept()


@check
def modified_annotations_survive():
    with Client() as client:
        queue = client.queue("quorum")
        client.send(queue, "a")
        receiver = client.receiver(queue, credit=1)
        receiver.receive()
        delivery = receiver.fetcher.unsettled.popleft()
        delivery.local.annotations = {
            symbol("x-opt-why"): "busy", symbol("x-opt-times"): 2, symbol("x-opt-list"): [1, symbol("a")],
            symbol("x-other"): True}
        delivery.update(MODIFIED)
        delivery.settle()
        annotations = receiver.receive().annotations
        assert annotations[symbol("x-opt-why")] == "busy" and annotations[symbol("x-opt-times")] == 2, annotations
        assert annotations[symbol("x-opt-list")] == [1, "a"] and annotations[symbol("x-other")] is True, annotations
        receiver.accept()


@check
def undeliverable_here_dead_letters_the_message():
    with Client() as client:
        for kind in KINDS:
            dead = client.queue()
            queue = client.queue(kind, x_dead_letter_exchange="", x_dead_letter_routing_key=dead.rsplit("/", 1)[1])
            client.send(queue, "a")
            receiver = client.receiver(queue, credit=1)
            receiver.receive()
            delivery = receiver.fetcher.unsettled.popleft()
            delivery.local.undeliverable = True
            delivery.update(MODIFIED)
            delivery.settle()
            assert client.take(dead)[0].body == "a"


@check
def settled_receiver_needs_no_disposition():
    with Client() as client:
        for kind in KINDS:
            queue = client.queue(kind)
            client.send(queue, "a", "b")
            receiver = client.receiver(queue, 2, lambda link: setattr(link, "snd_settle_mode", Link.SND_SETTLED))
            assert receiver.link.remote_snd_settle_mode == Link.SND_SETTLED
            assert [receiver.receive().body for _ in range(2)] == ["a", "b"]
            assert not receiver.fetcher.unsettled
            receiver.close()
            until(lambda: client.count(queue) == 0, "the settlement")


@check
def second_settle_mode_answers_the_disposition():
    with Client() as client:
        queue = client.queue()
        client.send(queue, "a")
        receiver = client.receiver(queue, 1, lambda link: setattr(link, "rcv_settle_mode", Link.RCV_SECOND))
        receiver.receive()
        delivery = receiver.fetcher.unsettled.popleft()
        delivery.update(ACCEPTED)
        client.wait(lambda: delivery.settled, "the settlement of the sender")
        delivery.settle()
        assert client.count(queue) == 0


@check
def unsettled_messages_return_with_the_link():
    with Client() as client:
        for kind in KINDS:
            queue = client.queue(kind)
            client.send(queue, "a", "b")
            receiver = client.receiver(queue, credit=2)
            assert [receiver.receive().body for _ in range(2)] == ["a", "b"]
            receiver.close()
            messages = client.take(queue, 2)
            assert [message.body for message in messages] == ["a", "b"]
            assert not messages[0].first_acquirer
            assert messages[0].delivery_count == (1 if kind == "classic" else 0), messages[0].delivery_count


@check
def unsettled_messages_return_with_the_connection():
    with Client() as client:
        for kind in KINDS:
            queue = client.queue(kind)
            client.send(queue, "a")
            with Client() as other:
                other.receiver(queue, credit=1).receive()
            message = client.take(queue)[0]
            assert (message.body, message.delivery_count) == ("a", 1), message


@check
def receivers_share_a_queue():
    with Client() as client:
        for kind in KINDS:
            queue = client.queue(kind)
            receivers = [client.receiver(queue, credit=5) for _ in range(2)]
            client.send(queue, *range(10))
            client.wait(lambda: all(receiver.fetcher.has_message == 5 for receiver in receivers), "five each")


@check
def consumer_priority_is_a_link_property():
    with Client() as client:
        for kind in KINDS:
            queue = client.queue(kind)
            low = client.receiver(queue, credit=5)
            high = client.receiver(queue, 5, lambda link: setattr(link, "properties", {
                symbol("rabbitmq:priority"): proton.int32(5)}))
            client.send(queue, "a", "b")
            client.wait(lambda: high.fetcher.has_message == 2, "messages of the consumer with priority")
            assert not low.fetcher.has_message


@check
def single_active_consumer_hands_over():
    with Client() as client:
        for kind in KINDS:
            queue = client.queue(kind, x_single_active_consumer=True)
            first, second = [client.receiver(queue, credit=5) for _ in range(2)]
            client.send(queue, "a")
            client.wait(lambda: first.fetcher.has_message == 1, "the message")
            assert not second.fetcher.has_message
            first.close()
            client.wait(lambda: second.fetcher.has_message == 1, "the hand-over")


@check
def detach_without_close_ends_the_consumer():
    with Client() as client:
        queue = client.queue()
        receiver = client.receiver(queue, credit=5)
        receiver.link.detach()
        until(lambda: client.call(200, "GET", queue)["consumer_count"] == 0, "the end of the consumer")


@check
def deleted_queue_detaches_its_receivers():
    for kind in KINDS:
        with Client() as client:
            queue = client.queue(kind)
            receiver = client.receiver(queue)
            expect_detached("amqp:resource-deleted", lambda: (
                client.call(200, "DELETE", queue), receiver.receive()))


@check
def deleted_queue_detaches_its_senders():
    for kind in KINDS:
        with Client() as client:
            queue = client.queue(kind)
            client.sender(queue)
            expect_detached("amqp:resource-deleted", lambda: (client.call(200, "DELETE", queue), client.wait(lambda: False)))


# Attaching.


@check
def missing_terminus_refuses_the_link_only():
    with Client() as client:
        queue = client.queue()
        kept = client.sender(queue)
        for address in ("/queues/missing", "/exchanges/missing/key"):
            expect_link_error(lambda: client.sender(address), "amqp:not-found")
        expect_link_error(lambda: client.receiver("/queues/missing"), "amqp:not-found")
        assert outcome(kept, Message(body="a")).remote_state == ACCEPTED


@check
def addresses_of_version_1_are_refused():
    with Client() as client:
        for address in ("orders", "/queue/orders", "/exchange/amq.topic/key", "/topic/key"):
            expect_link_error(lambda: client.sender(address), "amqp:invalid-field")


@check
def addresses_are_percent_encoded():
    with Client() as client:
        name = fresh("a/b é%")
        encoded = "/queues/" + name.replace("%", "%25").replace("/", "%2F").replace(" ", "%20").replace("é", "%C3%A9")
        client.call(201, "PUT", encoded, {})
        client.send(encoded, "a")
        assert client.take(encoded)[0].body == "a"
        client.call(200, "DELETE", encoded)


@check
def dynamic_source_is_a_queue_of_the_connection():
    with Client() as client:
        receiver = client.receiver(None, 1, lambda link: link.source.capabilities.put_array(
            False, Data.SYMBOL) or link.source.capabilities.enter() and link.source.capabilities.put_symbol(
                symbol("temporary-queue")), dynamic=True)
        address = receiver.link.remote_source.address
        assert address.startswith("/queues/"), address
        client.send(address, "a")
        assert receiver.receive().body == "a"
        receiver.accept()
        receiver.close()
        until(lambda: client.request("GET", address)[0] == 404, "the end of the queue")


@check
def exclusive_queue_of_another_connection_is_locked():
    with Client() as client, Client() as other:
        name = fresh("exclusive")
        client.call(201, "PUT", f"/queues/{name}", {"exclusive": True, "durable": False})
        expect_link_error(lambda: other.receiver(f"/queues/{name}"), "amqp:resource-locked")


@check
def link_name_is_unique_in_each_direction():
    with Client() as client:
        queue = client.queue()
        sender = client.sender(queue, name="same")
        receiver = client.receiver(queue, 1, name="same")
        sender.send(Message(body="a"))
        assert receiver.receive().body == "a"
        receiver.accept()


# Exchanges.


@check
def direct_exchange_routes_by_key():
    with Client() as client:
        exchange, queue = client.exchange("direct"), client.queue()
        client.bind(exchange, queue, "key")
        assert outcome(client.sender(f"/exchanges/{exchange}/key"), Message(body="a")).remote_state == ACCEPTED
        assert outcome(client.sender(f"/exchanges/{exchange}/other"), Message(body="b")).remote_state == RELEASED
        message = client.take(queue)[0]
        assert message.annotations[symbol("x-exchange")] == exchange, message.annotations
        assert message.annotations[symbol("x-routing-key")] == "key", message.annotations


@check
def fanout_exchange_reaches_every_queue():
    with Client() as client:
        exchange, queues = client.exchange("fanout"), [client.queue(kind) for kind in KINDS]
        for queue in queues:
            client.bind(exchange, queue)
        client.send(f"/exchanges/{exchange}", "a")
        assert [client.take(queue)[0].body for queue in queues] == ["a", "a"]


@check
def topic_exchange_routes_by_pattern():
    with Client() as client:
        queue = client.queue()
        client.bind("amq.topic", queue, "orders.*.eu")
        client.send("/exchanges/amq.topic/orders.7.eu", "a")
        assert outcome(client.sender("/exchanges/amq.topic/orders.us"), Message(body="b")).remote_state == RELEASED
        assert client.take(queue)[0].body == "a"


@check
def headers_exchange_matches_application_properties():
    with Client() as client:
        exchange, queue = client.exchange("headers"), client.queue()
        client.bind(exchange, queue, "", {"x-match": "all", "colour": "red", "size": 7})
        sender = client.sender(f"/exchanges/{exchange}")
        for properties, state in (({"colour": "red", "size": 7}, ACCEPTED), ({"colour": "red"}, RELEASED)):
            assert outcome(sender, Message(body="a", properties=properties)).remote_state == state, properties


@check
def copies_of_a_message_go_to_the_routing_keys_of_x_cc():
    with Client() as client:
        first, second = client.queue(), client.queue()
        annotations = {symbol("x-cc"): [second.rsplit("/", 1)[1]]}
        client.send(first, "a", annotations=annotations)
        assert client.take(first)[0].body == client.take(second)[0].body == "a"


@check
def bindings_are_listed_and_removed():
    with Client() as client:
        exchange, queue = client.exchange("direct"), client.queue()
        name = queue.rsplit("/", 1)[1]
        client.bind(exchange, queue, "key", {"a": 1})
        path = f"/bindings?src={exchange}&dstq={name}&key=key"
        (binding,) = client.call(200, "GET", path)
        assert binding["arguments"] == {"a": 1} and binding["destination_queue"] == name, binding
        client.call(204, "DELETE", binding["location"])
        assert client.call(200, "GET", path) == []
        client.call(204, "DELETE", f"/exchanges/{exchange}")


# Queues.


@check
def queue_describes_itself():
    with Client() as client:
        for kind in KINDS:
            queue = client.queue(kind)
            client.send(queue, "a")
            client.receiver(queue, credit=False)
            status = client.call(200, "GET", queue)
            expected = {"name": queue.rsplit("/", 1)[1], "vhost": "/", "durable": True, "auto_delete": False,
                        "exclusive": False, "type": kind, "message_count": 1, "consumer_count": 1}
            assert {key: status[key] for key in expected} == expected, status
            assert status["leader"], status


@check
def purge_and_deletion_count_messages():
    with Client() as client:
        for kind in KINDS:
            queue = client.queue(kind)
            client.send(queue, "a", "b")
            assert client.call(200, "DELETE", f"{queue}/messages")["message_count"] == 2
            client.send(queue, "c")
            assert client.call(200, "DELETE", queue)["message_count"] == 1
            assert client.call(404, "GET", queue)


@check
def different_declaration_conflicts():
    with Client() as client:
        queue = client.queue("classic")
        client.call(200, "PUT", queue, {"arguments": {"x-queue-type": "classic"}})
        client.call(409, "PUT", queue, {"arguments": {"x-queue-type": "quorum"}})
        client.call(400, "PUT", "/queues/x", {"unknown": True})
        client.call(404, "GET", "/nothing")


@check
def dead_letter_names_its_history():
    with Client() as client:
        for kind in KINDS:
            dead = client.queue()
            queue = client.queue(kind, x_dead_letter_exchange="", x_dead_letter_routing_key=dead.rsplit("/", 1)[1])
            client.send(queue, "a")
            receiver = client.receiver(queue, credit=1)
            receiver.receive()
            receiver.reject()
            message = client.take(dead)[0]
            assert not message.first_acquirer, message
            assert message.delivery_count == (0 if kind == "classic" else 1), message.delivery_count
            (death,) = message.annotations[symbol("x-opt-deaths")].elements
            death = death.value if isinstance(death, Described) else death
            assert {str(key): value for key, value in death.items()}["reason"] == "rejected", death
            assert message.annotations[symbol("x-first-death-queue")] == queue.rsplit("/", 1)[1]


# Filters.


@check
def selector_filters_messages():
    with Client() as client:
        queue = client.queue()
        client.send(queue, "a", properties={"colour": "blue"})
        client.send(queue, "b", properties={"colour": "red"})
        receiver = client.connection.create_receiver(queue, credit=1, options=Selector("colour = 'red'"))
        message = receiver.receive()
        receiver.close()
        assert message.body == "b"


@check
def transaction_coordinator_is_attached():
    with Client() as client:
        client.sender(None, lambda link: setattr(link.target, "type", Terminus.COORDINATOR))


@check
def browser_gets_copies():
    with Client() as client:
        for kind in KINDS:
            queue = client.queue(kind)
            client.send(queue, "a", "b")
            receiver = client.connection.create_receiver(queue, credit=10, options=Copy())
            assert [receiver.receive().body for _ in range(2)] == ["a", "b"]
            receiver.accept()
            receiver.release()
            # It follows the queue.
            client.send(queue, "c")
            assert receiver.receive().body == "c"
            receiver.close()
            assert client.count(queue) == 3
            assert [message.body for message in client.take(queue, 3)] == ["a", "b", "c"]


# Recovery.


@check
def confirmed_messages_survive_a_killed_node():
    with Client() as client:
        queues = [client.queue(kind) for kind in KINDS]
        for queue in queues:
            client.send(queue, *range(20), durable=True)
        node("kill", "one")
        try:
            client.wait(lambda: False)
        except proton.ConnectionException:
            pass
        client.connection.closing = True
    node("start", "one")
    with Client() as client:
        for queue in queues:
            assert [message.body for message in client.take(queue, 20)] == list(range(20))


if __name__ == "__main__":
    checks.run()
