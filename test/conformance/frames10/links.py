"""Links: attach, detach, termini and credit."""

import codec
from codec import ACCEPTED, RELEASED, UINT_MAX, Array, Described, Raw, Symbol, Ubyte, Ulong, Ushort, composite, encode, message
from peer import AMQP, RECEIVER, SASL, SENDER, Closed, Peer, Session, Transcript, fresh, note, publish, queue
from suite import check, closed, each, failed, settle, until


# Links: attach and detach (2.6, 2.7.3, 2.7.7).


@each(queue="/queues/{}", exchange="/exchanges/amq.fanout", exchange_and_key="/exchanges/amq.direct/key", encoded="/exchanges/amq%2Etopic/a%2Fb")
def sender_attaches_to(target):
    name = queue().removeprefix("/queues/")
    with Session() as peer:
        attach = peer.sender(target.format(name))
        assert attach.target.address == target.format(name) and attach.max_message_size > 0


@check
def sender_attaches_to_the_anonymous_terminus():
    with Session() as peer:
        peer.sender(composite("target"))


@each(classic="classic", quorum="quorum")
def receiver_attaches_to_a_queue(kind):
    with Session() as peer:
        attach = peer.receiver(queue(kind))
        assert attach.initial_delivery_count is not None and attach.snd_settle_mode == 0
        assert set(attach.source.outcomes) == {f"amqp:{outcome}:list" for outcome in ("accepted", "rejected", "released", "modified")}


BAD_TARGETS = {
    "empty": "", "version_1": "/queue/q", "name": "q", "slash": "/", "no_queue": "/queues/", "default_exchange": "/exchanges/amq.default",
    "no_exchange": "/exchanges/", "too_many_parts": "/exchanges/a/b/c", "not_encoded": "/queues/%zz",
}


@each(**BAD_TARGETS)
def target_is_refused(address):
    with Session() as peer:
        peer.refused(SENDER, "amqp:invalid-field", "me", address)


@each(empty="", version_1="/queue/q", name="q", exchange="/exchanges/amq.fanout", no_queue="/queues/", not_encoded="/queues/%zz")
def source_is_refused(address):
    with Session() as peer:
        peer.refused(RECEIVER, None, address, "me")


@each(queue="/queues/missing", exchange="/exchanges/missing", exchange_and_key="/exchanges/missing/key")
def missing_target_is_refused(address):
    with Session() as peer:
        peer.refused(SENDER, "amqp:not-found", "me", address)


@check
def missing_source_is_refused():
    with Session() as peer:
        peer.refused(RECEIVER, "amqp:not-found", "/queues/missing", "me")


@check
def refused_link_frees_its_handle():
    with Session() as peer:
        peer.refused(SENDER, "amqp:not-found", "me", "/queues/missing")
        peer.send("detach", handle=0, closed=True)
        peer.sender(queue())


@each(
    sender_without_a_target=dict(role=SENDER, source="me", target=None),
    receiver_without_a_source=dict(role=RECEIVER, source=None, target="me"),
    address_is_a_number=dict(role=SENDER, source="me", target=composite("target", address=5)),
)
def link_without_a_terminus_is_refused(attach):
    with Session() as peer:
        peer.refused(attach["role"], "amqp:invalid-field", attach["source"], attach["target"])


@each(
    no_name=composite("attach", handle=0, role=SENDER, initial_delivery_count=0),
    no_handle=composite("attach", name="n", role=SENDER, initial_delivery_count=0),
    no_role=composite("attach", name="n", handle=0, initial_delivery_count=0),
    role_is_a_number=composite("attach", name="n", handle=0, role=5),
    settle_mode_is_unknown=composite("attach", name="n", handle=0, role=RECEIVER, snd_settle_mode=Ubyte(9)),
)
def wrong_attach_ends_the_session_or_the_connection(body):
    with Session() as peer:
        peer.raw(codec.frame(encode(body)))
        _, body = peer.frame()
        assert body.kind in {"end", "close"} and body.error, body


@check
def sender_without_an_initial_delivery_count_is_an_error():
    with Session() as peer:
        peer.attach(SENDER, "me", queue(), initial_delivery_count=None)
        while True:
            _, body = peer.frame()
            if body.kind != "attach":
                break
        assert body.kind in {"detach", "end", "close"} and body.error, body


@check
def handle_in_use_ends_the_session():
    address = queue()
    with Session() as peer:
        peer.sender(address)
        peer.attach(RECEIVER, address, "me")
        peer.expect_error("end", "amqp:session:handle-in-use")


@check
def handles_are_those_of_their_session():
    address = queue()
    with Session() as peer:
        peer.begin(1)
        peer.sender(address)
        peer.sender(address, channel=1)
        peer.transfer(message())
        peer.expect("disposition")
        peer.transfer(message(), channel=1)
        peer.expect("disposition", 1)


@check
def links_of_both_roles_have_the_same_name():
    address = queue()
    with Session() as peer:
        peer.sender(address, name="n")
        peer.receiver(address, name="n", handle=1)
        peer.is_alive()


@each(settled=1, unsettled=0, mixed=2)
def settle_mode_of_a_sender_is_accepted(mode):
    with Session() as peer:
        assert peer.sender(queue(), snd_settle_mode=Ubyte(mode)).snd_settle_mode in {mode, None if mode == 2 else mode}


@each(settled=(1, 1), unsettled=(0, 0), mixed=(2, 0))
def settle_mode_of_a_receiver_is_chosen_by_the_server(case):
    requested, chosen = case
    with Session() as peer:
        assert peer.receiver(queue(), snd_settle_mode=Ubyte(requested)).snd_settle_mode == chosen


@each(
    unsettled_deliveries=dict(unsettled={b"tag": None}),
    incomplete_unsettled=dict(incomplete_unsettled=True),
)
def resuming_is_not_implemented(fields):
    with Session() as peer:
        peer.refused(RECEIVER, "amqp:not-implemented", queue(), "me", **fields)


@check
def receiver_that_settles_second_is_served_or_not_implemented():
    address = queue("classic", b"a")
    with Session() as peer:
        peer.attach(RECEIVER, address, "me", rcv_settle_mode=Ubyte(1))
        attach = peer.expect("attach")
        if attach.source is None:  # RabbitMQ
            peer.expect_error("detach", "amqp:not-implemented")
            return
        assert attach.rcv_settle_mode == 1
        peer.credit(1)
        number = peer.expect("transfer").delivery_id
        settle(peer, ACCEPTED, number, settled=False)
        peer.expect("disposition", role=SENDER, first=number, settled=True)


@each(
    outcome=dict(outcomes=Array(["amqp:unknown:list"])),
    dynamic=dict(address=None, dynamic=True),
    dynamic_with_another_capability=dict(address=None, dynamic=True, capabilities=Array(["x"])),
)
def source_is_not_implemented(fields):
    fields = {"address": queue(), **fields}
    with Session() as peer:
        peer.refused(RECEIVER, "amqp:not-implemented", composite("source", **fields), "me")


@check
def dynamic_source_has_an_address():
    source = composite("source", dynamic=True, capabilities=Array(["temporary-queue"]))
    with Session() as peer:
        attach = peer.receiver(source)
        assert attach.source.address.startswith("/queues/amq.dyn") and attach.source.expiry_policy == "link-detach"
        assert attach.source.dynamic_node_properties["lifetime-policy"].descriptor in {0x2B, "amqp:delete-on-close:list"}
        peer.sender(attach.source.address, handle=1)
        peer.transfer(message(), handle=1)
        peer.expect("disposition", state=ACCEPTED)
        peer.credit(1)
        peer.expect("transfer")


@check
def dynamic_target_has_an_address():
    target = composite("target", dynamic=True, capabilities=Array(["temporary-queue"]))
    with Session() as peer:
        address = peer.sender(target).target.address
        peer.transfer(message())
        peer.expect("disposition", state=ACCEPTED)
        peer.send("detach", handle=0, closed=True)
        peer.expect("detach")

        peer.transcript = Transcript()  # The number of attempts may differ.

        def is_refused():
            peer.attach(SENDER, "me", address)
            is_gone = peer.expect("attach").target is None
            peer.send("detach", handle=0, closed=True)
            peer.expect("detach")
            return is_gone

        until(is_refused, "the end of the queue")


@check
def priority_of_a_receiver_is_accepted():
    with Session() as peer:
        peer.receiver(queue(), properties={Symbol("rabbitmq:priority"): Raw(b"\x71\xff\xff\xff\xfb")})


@each(no_properties=None, not_paired={Symbol("paired"): False})
def management_link_must_be_paired(properties):
    with Session() as peer:
        peer.refused(SENDER, "amqp:invalid-field", "me", "/management", snd_settle_mode=Ubyte(1), properties=properties)


@check
def closing_detach_is_answered():
    with Session() as peer:
        peer.sender(queue())
        peer.send("detach", handle=0, closed=True)
        assert peer.expect("detach", handle=0).closed


@check
def detach_frees_the_handle():
    address = queue()
    with Session() as peer:
        for _ in range(3):
            peer.sender(address, name="n")
            peer.send("detach", handle=0, closed=True)
            peer.expect("detach")


@check
def detach_of_a_handle_without_a_link():
    with Session() as peer:
        peer.send("detach", handle=9, closed=True)
        # RabbitMQ ignores it; the standard allows to end the session.
        peer.is_alive()


@check
def deleted_queue_detaches_its_links():
    address = queue()
    with Session() as peer, Session() as manager:
        peer.receiver(address)
        pair = {"name": "pair", "properties": {Symbol("paired"): True}, "snd_settle_mode": Ubyte(1)}
        manager.sender("/management", **pair)
        manager.receiver("/management", handle=1, credit=5, **pair)
        request = codec.section(0x73, ["id", None, address, "DELETE", "$me"]) + codec.section(0x77, None)
        manager.transfer(request, settled=True)
        manager.expect("transfer", handle=1)
        assert peer.expect("detach").error.condition == "amqp:resource-deleted"
        peer.is_alive()


# Credit (2.6.7).


@check
def receiver_without_credit_gets_nothing():
    address = queue("classic", b"a")
    with Session() as peer:
        peer.receiver(address)
        peer.is_alive()
        peer.credit(1)
        assert peer.expect("transfer", handle=0).payload.endswith(b"a")


@each(classic="classic", quorum="quorum")
def receiver_gets_as_many_as_its_credit(kind):
    address = queue(kind, b"a", b"b", b"c")
    with Session() as peer:
        peer.receiver(address, credit=2)
        first, second = peer.expect("transfer"), peer.expect("transfer")
        assert second.delivery_id == (first.delivery_id + 1) & UINT_MAX
        peer.is_alive()


@check
def credit_counts_from_the_delivery_count():
    address = queue("classic", b"a", b"b", b"c")
    with Session() as peer:
        count = peer.receiver(address, credit=1).initial_delivery_count
        peer.expect("transfer")
        # The client has not seen the delivery: the credit of 2 allows one more.
        peer.credit(2, delivery_count=count)
        assert peer.expect("transfer").payload.endswith(b"b")
        peer.is_alive()
        peer.credit(1, delivery_count=(count + 2) & UINT_MAX)
        assert peer.expect("transfer").payload.endswith(b"c")


@each(classic="classic", quorum="quorum")
def drain_uses_up_the_credit(kind):
    address = queue(kind, b"a")
    with Session() as peer:
        count = peer.receiver(address).initial_delivery_count
        peer.credit(10, drain=True)
        peer.expect("transfer")
        drained = peer.expect("flow", handle=0)
        assert drained.link_credit == 0 and drained.delivery_count == (count + 10) & UINT_MAX, drained


@check
def drain_of_an_empty_queue_is_answered():
    with Session() as peer:
        count = peer.receiver(queue()).initial_delivery_count
        peer.credit(3, drain=True)
        drained = peer.expect("flow", handle=0)
        assert drained.link_credit == 0 and drained.delivery_count == (count + 3) & UINT_MAX, drained


@check
def flow_with_echo_of_a_link_tells_the_available_messages():
    address = queue("classic", b"a", b"b")
    with Session() as peer:
        peer.receiver(address)
        peer.credit(0, echo=True)
        assert peer.expect("flow", handle=0).available == 2


@check
def flow_of_an_unknown_handle_ends_the_session():
    with Session() as peer:
        peer.credit(1, handle=9)
        peer.expect_error("end", "amqp:session:unattached-handle")


# More of attach and detach.


def attached(peer, role=SENDER, address=None, **fields):
    """Attaches to a new queue, or an address."""
    address = queue() if address is None else address
    return peer.sender(address, **fields) if role == SENDER else peer.receiver(address, **fields)


@each(
    empty_name=dict(name=""), long_name=dict(name="n" * 1000), unicode_name=dict(name="\u00e4"), large_handle=dict(handle=100), properties=dict(properties={Symbol("a"): 1}),
    capabilities=dict(desired_capabilities=Array(["a"]), offered_capabilities=Array(["b"])), max_message_size=dict(max_message_size=Ulong(0)), empty_unsettled=dict(unsettled={}),
    second_settles=dict(rcv_settle_mode=Ubyte(0)), not_incomplete=dict(incomplete_unsettled=False),
)
def attach_is_accepted_with(fields):
    with Session() as peer:
        attached(peer, **fields)
        attached(peer, RECEIVER, **{**fields, "name": "other", "handle": 1})
        peer.is_alive()


@each(
    durable=dict(durable=1), unsettled_state=dict(durable=2), link_detach=dict(expiry_policy=Symbol("link-detach")), session_end=dict(expiry_policy=Symbol("session-end")),
    connection_close=dict(expiry_policy=Symbol("connection-close")), never=dict(expiry_policy=Symbol("never")), timeout=dict(timeout=60), largest_timeout=dict(timeout=UINT_MAX),
    capabilities=dict(capabilities=Array(["queue"])), topic=dict(capabilities=Array(["topic"])), symbol_capability=dict(capabilities=Symbol("queue")),
)
def terminus_is_accepted_with(fields):
    address = queue()
    with Session() as peer:
        peer.sender(composite("target", address=address, **fields))
        peer.receiver(composite("source", address=address, **fields), handle=1)
        peer.is_alive()


@each(
    durable_is_three=dict(durable=3), durable_is_text=dict(durable="1"), unknown_policy=dict(expiry_policy=Symbol("sometimes")), policy_is_text=dict(expiry_policy="never"),
    timeout_is_text=dict(timeout="1"), capabilities_are_text=dict(capabilities="queue"), dynamic_is_text=dict(dynamic="yes"),
)
def terminus_with_a_wrong_field(fields):
    with Session() as peer:
        peer.attach(SENDER, "me", composite("target", address=queue(), **fields))
        while True:
            _, body = peer.frame()
            if body.kind not in {"attach", "flow"}:
                break
        assert body.kind in {"detach", "end", "close"} and body.error, body


@each(
    move=dict(distribution_mode=Symbol("move")), all_outcomes=dict(outcomes=Array([f"amqp:{name}:list" for name in ("accepted", "rejected", "released", "modified")])),
    accepted_alone=dict(outcomes=Array(["amqp:accepted:list"])), symbol_outcome=dict(outcomes=Symbol("amqp:released:list")), default_accepted=dict(default_outcome=ACCEPTED),
    default_modified=dict(default_outcome=Described(0x27, [True])), empty_filter=dict(filter={}), node_properties=dict(dynamic_node_properties={}),
)
def source_is_accepted_with(fields):
    with Session() as peer:
        attach = peer.receiver(composite("source", address=queue(), **fields))
        assert attach.source.default_outcome == RELEASED and attach.source.outcomes, attach
        peer.is_alive()


@each(
    copy=dict(distribution_mode=Symbol("copy")), unknown_mode=dict(distribution_mode=Symbol("other")), mode_is_text=dict(distribution_mode="move"), outcomes_are_text=dict(outcomes="amqp:accepted:list"),
    outcome_is_a_number=dict(outcomes=5), default_is_text=dict(default_outcome="accepted"),
)
def source_with_another_mode_or_outcome(fields):
    with Session() as peer:
        peer.attach(RECEIVER, composite("source", address=queue(), **fields), "me")
        body = peer.frame()[1]
        if body.kind == "attach" and body.source is not None:
            peer.is_alive()
        elif body.kind == "attach":
            peer.expect_error("detach")
        else:
            assert body.kind in {"end", "close"} and body.error, body


@each(
    name_is_a_symbol=dict(name=Symbol("n")), handle_is_text=dict(handle="0"), unsettled_is_a_list=dict(unsettled=[]), count_is_text=dict(initial_delivery_count="0"),
    size_is_a_uint=dict(max_message_size=5), properties_are_a_list=dict(properties=[]), source_is_text=dict(source="me"), target_is_a_source=dict(target=composite("source", address="q")),
    rcv_mode_is_two=dict(rcv_settle_mode=Ubyte(2)), mode_is_a_uint=dict(snd_settle_mode=1), incomplete_is_text=dict(incomplete_unsettled="yes"), capabilities_are_a_number=dict(desired_capabilities=5),
)
def attach_with_a_field_of_another_type(fields):
    address = queue()
    with Session() as peer:
        values = {"name": "n", "handle": 0, "role": SENDER, "source": composite("source"), "target": composite("target", address=address), "initial_delivery_count": 0, **fields}
        peer.send("attach", **values)
        _, body = peer.frame()
        if body.kind == "attach":
            assert body.target is None, body
            _, body = peer.frame()
        assert body.kind in {"detach", "end", "close"} and body.error, body


@check
def attach_with_too_many_fields():
    with Session() as peer:
        peer.raw(codec.frame(encode(Described(0x12, ["n", 0, False] + [None] * 12))))
        failed(peer)


@each(zero=0, middle=1000, last=UINT_MAX, wrapping=UINT_MAX - 1)
def delivery_count_of_a_sender_wraps(start):
    with Session() as peer:
        peer.sender(queue(), initial_delivery_count=start)
        for number in range(3):
            peer.transfer(message(), number)
            peer.expect("disposition", first=number, state=ACCEPTED)
        peer.send("flow", incoming_window=9, next_outgoing_id=3, outgoing_window=9, handle=0, delivery_count=(start + 3) & UINT_MAX, link_credit=1, echo=True)
        flow = peer.expect("flow")
        assert flow.delivery_count == (start + 3) & UINT_MAX and flow.link_credit > 0, flow


@check
def name_in_use_on_the_same_session():
    address = queue()
    with Session() as peer:
        peer.sender(address, name="n")
        peer.attach(SENDER, "me", address, name="n", handle=1)
        failed(peer)


@check
def name_in_use_on_another_session():
    address = queue()
    with Session() as peer:
        peer.begin(1)
        peer.sender(address, name="n")
        peer.sender(address, name="n", channel=1)
        peer.is_alive()
        peer.is_alive(1)


@check
def name_in_use_on_another_connection():
    address = queue()
    with Session() as peer, Session() as other:
        peer.sender(address, name="n")
        other.sender(address, name="n")
        peer.transfer(message())
        peer.expect("disposition", state=ACCEPTED)


@each(closed=True, detached=False)
def detach_is_answered(closed_link):
    with Session() as peer:
        peer.receiver(queue())
        peer.send("detach", handle=0, closed=closed_link)
        peer.expect("detach")
        peer.is_alive()


@check
def detached_link_attaches_again():
    address = queue("classic", b"a", b"b")
    with Session() as peer:
        peer.receiver(address, name="n", credit=1)
        peer.expect("transfer")
        peer.send("detach", handle=0)
        peer.expect("detach")
        peer.receiver(address, name="n", credit=2)
        assert [peer.expect("transfer").payload[-1:] for _ in range(2)] == [b"a", b"b"]


@check
def detach_with_an_error_is_answered():
    with Session() as peer:
        peer.sender(queue())
        peer.send("detach", handle=0, closed=True, error=composite("error", condition=Symbol("amqp:link:detach-forced"), description="d"))
        assert not peer.expect("detach").error
        peer.is_alive()


@each(handle_is_missing=dict(closed=True), handle_is_text=dict(handle="0"), closed_is_text=dict(handle=0, closed="yes"), error_is_text=dict(handle=0, error="e"))
def wrong_detach(fields):
    with Session() as peer:
        peer.sender(queue())
        peer.send("detach", **fields)
        _, body = peer.frame()
        assert body.kind in {"end", "close"} and body.error, body


@check
def second_detach_is_ignored_or_an_error():
    with Session() as peer:
        peer.sender(queue())
        peer.send("detach", handle=0, closed=True)
        peer.expect("detach")
        peer.send("detach", handle=0, closed=True)
        peer.is_alive()


@check
def frames_after_an_error_detach_are_ignored():
    address = queue()
    with Session() as peer:
        peer.sender(address)
        peer.transfer(b"\xff", 0)
        peer.expect_error("detach", "amqp:decode-error")
        peer.transfer(message(), 1)
        peer.credit(5)
        peer.send("detach", handle=0, closed=True)
        peer.sender(address)
        peer.transfer(message(), 2)
        peer.expect("disposition", state=ACCEPTED)


@check
def many_links_of_a_session():
    address = queue()
    with Session() as peer:
        for handle in range(50):
            peer.sender(address, handle=handle)
        for handle in range(50):
            peer.transfer(message(), handle, handle=handle)
            peer.expect("disposition", first=handle, state=ACCEPTED)


@check
def coordinator_is_accepted():
    with Session() as peer:
        peer.attach(SENDER, "me", composite("coordinator"))
        assert peer.expect("attach").target is not None


# More of credit.


@each(classic="classic", quorum="quorum")
def credit_is_replaced_and_not_added(kind):
    address = queue(kind, b"a", b"b", b"c")
    with Session() as peer:
        count = peer.receiver(address).initial_delivery_count
        peer.credit(1, delivery_count=count)
        peer.expect("transfer")
        peer.credit(1, delivery_count=count)
        peer.is_alive()
        peer.credit(2, delivery_count=count)
        peer.expect("transfer")
        peer.is_alive()


@each(classic="classic", quorum="quorum")
def credit_of_zero_stops(kind):
    address = queue(kind)
    with Session() as peer:
        peer.receiver(address, credit=5)
        peer.is_alive()
        peer.credit(0)
        peer.is_alive()
        publish(address, b"a")
        peer.is_alive()
        peer.credit(1)
        peer.expect("transfer")


@check
def largest_credit():
    address = queue("classic", b"a", b"b")
    with Session() as peer:
        peer.receiver(address, credit=UINT_MAX)
        peer.expect("transfer")
        peer.expect("transfer")
        peer.is_alive()


@check
def credit_waits_for_messages():
    address = queue()
    with Session() as peer:
        peer.receiver(address, credit=2)
        publish(address, b"a", b"b")
        assert peer.expect("transfer").payload.endswith(b"a")
        assert peer.expect("transfer").payload.endswith(b"b")


@check
def drain_without_credit():
    with Session() as peer:
        count = peer.receiver(queue("classic", b"a")).initial_delivery_count
        peer.credit(0, drain=True, echo=True)
        flow = peer.expect("flow", handle=0)
        assert flow.link_credit == 0 and flow.delivery_count == count, flow


@each(classic="classic", quorum="quorum", stream="stream")
def drain_twice(kind):
    with Session() as peer:
        count = peer.receiver(queue(kind)).initial_delivery_count
        for number in (1, 2):
            peer.credit(1, drain=True, delivery_count=(count + number - 1) & UINT_MAX)
            flow = peer.expect("flow", handle=0)
            while flow.delivery_count != (count + number) & UINT_MAX:  # Another flow tells that the link is active.
                flow = peer.expect("flow", handle=0)
            assert flow.link_credit == 0, flow
        peer.transcript.lines = [line for line in peer.transcript.lines if "flow" not in line]


@check
def drain_of_one_link_leaves_another():
    with Session() as peer:
        first, second = queue(), queue()
        peer.receiver(first, credit=5)
        peer.receiver(second, handle=1)
        peer.credit(5, handle=1, drain=True)
        assert peer.expect("flow", handle=1).link_credit == 0
        publish(first, b"a")
        assert peer.expect("transfer", handle=0).payload.endswith(b"a")


@check
def credit_of_two_links_is_separate():
    address = queue("classic", b"a", b"b", b"c")
    with Session() as peer:
        peer.receiver(address, credit=1)
        peer.expect("transfer", handle=0)
        peer.receiver(address, handle=1, credit=1)
        peer.expect("transfer", handle=1)
        peer.is_alive()


@each(sender_drain=dict(drain=True), credit=dict(link_credit=50), available=dict(available=5, delivery_count=0), no_count=dict())
def flow_on_the_link_of_a_sender(fields):
    with Session() as peer:
        peer.sender(queue())
        peer.send("flow", incoming_window=1000, next_outgoing_id=0, outgoing_window=1000, handle=0, **fields)
        peer.transfer(message())
        peer.expect("disposition", state=ACCEPTED)


@check
def echo_on_the_link_of_a_sender():
    with Session() as peer:
        peer.sender(queue())
        peer.send("flow", incoming_window=1000, next_outgoing_id=0, outgoing_window=1000, handle=0, delivery_count=0, link_credit=1, echo=True)
        flow = peer.expect("flow", handle=0)
        assert flow.link_credit > 0 and flow.delivery_count == 0, flow


@check
def credit_of_a_sender_is_renewed():
    with Session() as peer:
        peer.attach(SENDER, "me", queue())
        peer.expect("attach")
        credit = peer.expect("flow").link_credit
        assert 0 < credit < 5000, credit
        for number in range(2 * credit):
            peer.transfer(message(), number)
            peer.expect("disposition", first=number, state=ACCEPTED)


@check
def message_above_the_size_of_a_receiver_detaches():
    address = queue("classic", b"small", b"x" * 2000)
    with Session() as peer:
        peer.receiver(address, credit=2, max_message_size=Ulong(1000))
        assert peer.expect("transfer").payload.endswith(b"small")
        peer.expect_error("detach", "amqp:link:message-size-exceeded")
        peer.is_alive()
    with Session() as peer:
        peer.receiver(address, credit=2, handle=1)
        assert peer.expect("transfer").payload.endswith(b"small")
        assert peer.expect("transfer").payload.endswith(b"x" * 2000)


@check
def delivery_count_of_the_server_wraps_with_credit():
    address = queue("classic", *(b"%d" % number for number in range(5)))
    with Session() as peer:
        count = peer.receiver(address).initial_delivery_count
        for number in range(5):
            peer.credit(1, delivery_count=(count + number) & UINT_MAX)
            peer.expect("transfer")
        peer.credit(1, delivery_count=(count + 5) & UINT_MAX, echo=True)
        assert peer.expect("flow", handle=0).delivery_count == (count + 5) & UINT_MAX


@each(ahead=5, far=2**31)
def delivery_count_ahead_of_the_server(ahead):
    """The credit is that of the receiver's delivery-count (2.6.7): it allows as many more as the receiver is ahead."""
    address = queue("classic", b"a")
    with Session() as peer:
        count = peer.receiver(address).initial_delivery_count
        peer.credit(1, delivery_count=(count + ahead) & UINT_MAX)
        if ahead < 2**31:
            peer.expect("transfer")
        peer.is_alive()
