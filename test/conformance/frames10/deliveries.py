"""Messages that the client receives, and their outcomes."""

import codec
from codec import ACCEPTED, RELEASED, UINT_MAX, Array, Described, Raw, Symbol, Ubyte, Ulong, Ushort, composite, encode, message
from peer import AMQP, RECEIVER, SASL, SENDER, Closed, Peer, Session, Transcript, fresh, note, publish, queue
from suite import answered, check, closed, each, failed, settle, with_answers


# Deliveries to the client and dispositions (2.6.12, 2.7.6, part 3, 3.4).


@check
def delivery_has_a_tag_and_a_format():
    address = queue("classic", b"a")
    with Session() as peer:
        peer.receiver(address, credit=1)
        transfer = peer.expect("transfer")
        assert transfer.delivery_tag is not None and transfer.message_format == 0 and not transfer.settled and not transfer.more


@check
def receiver_of_settled_deliveries_owes_no_disposition():
    address = queue("classic", b"a", b"b")
    with Session() as peer:
        peer.receiver(address, credit=2, snd_settle_mode=Ubyte(1))
        assert peer.expect("transfer").settled and peer.expect("transfer").settled
        peer.send("detach", handle=0, closed=True)
        peer.expect("detach")
        peer.receiver(address)
        peer.credit(1, drain=True)
        peer.expect("flow", handle=0)


@check
def large_message_is_split_by_the_frame_size_of_the_client():
    address = queue("classic", b"x" * 3000)
    with Peer() as peer:
        peer.open(max_frame_size=512)
        peer.begin()
        peer.receiver(address, credit=1)
        transfer, payload, frames = peer.expect("transfer"), b"", 0
        while True:
            payload += transfer.payload
            frames += 1
            if not transfer.more:
                break
            transfer = peer.expect("transfer")
        assert payload.endswith(b"x" * 3000) and frames > 5


@each(accepted=ACCEPTED, rejected=Described(0x25, []))
def outcome_removes_a_message(state):
    address = queue("quorum", b"a")
    with Session() as peer:
        peer.receiver(address, credit=1)
        settle(peer, state, peer.expect("transfer").delivery_id)
        peer.send("detach", handle=0, closed=True)
        peer.expect("detach")
        peer.receiver(address)
        peer.credit(1, drain=True)
        peer.expect("flow", handle=0)


@each(released=(RELEASED, None), failed=(Described(0x27, [True]), 1), modified=(Described(0x27, []), None))
def outcome_returns_a_message(case):
    state, failures = case
    address = queue("quorum", b"a")
    with Session() as peer:
        peer.receiver(address, credit=2)
        settle(peer, state, peer.expect("transfer").delivery_id)
        again = peer.expect("transfer")
        assert again.payload.endswith(b"a")
        if failures:
            reader = codec.Reader(again.payload)
            header = reader.value()
            assert header.descriptor == 0x70 and header.value[4] == failures, header


@check
def disposition_of_a_range():
    address = queue("classic", b"a", b"b", b"c")
    with Session() as peer:
        peer.receiver(address, credit=3)
        first = peer.expect("transfer").delivery_id
        peer.expect("transfer")
        last = peer.expect("transfer").delivery_id
        settle(peer, ACCEPTED, first, last=last)
        peer.is_alive()
        peer.send("detach", handle=0, closed=True)
        peer.expect("detach")
        peer.receiver(address)
        peer.credit(1, drain=True)
        peer.expect("flow", handle=0)


@check
def unsettled_disposition_is_settled_by_the_server():
    address = queue("classic", b"a")
    with Session() as peer:
        peer.receiver(address, credit=1)
        number = peer.expect("transfer").delivery_id
        settle(peer, ACCEPTED, number, settled=False)
        peer.expect("disposition", role=SENDER, first=number, settled=True, state=ACCEPTED)


@check
def disposition_of_unknown_deliveries_is_ignored():
    with Session() as peer:
        peer.receiver(queue())
        settle(peer, ACCEPTED, 77, last=99)
        peer.is_alive()


@check
def disposition_with_an_unknown_state_is_an_error():
    address = queue("classic", b"a")
    with Session() as peer:
        peer.receiver(address, credit=1)
        settle(peer, Described(0x99, []), peer.expect("transfer").delivery_id)
        failed(peer)


@check
def detach_returns_unsettled_deliveries():
    address = queue("classic", b"a")
    with Session() as peer:
        peer.receiver(address, credit=1)
        peer.expect("transfer")
        peer.send("detach", handle=0, closed=True)
        peer.expect("detach")
        peer.receiver(address, credit=1)
        assert peer.expect("transfer", handle=0).payload.endswith(b"a")


@each(end="end", close="close")
def unsettled_deliveries_return_after(kind):
    address = queue("quorum", b"a")
    with Session() as peer, Session() as other:
        peer.receiver(address, credit=1)
        peer.expect("transfer")
        peer.send(kind)
        peer.expect(kind)
        other.receiver(address, credit=1)
        assert other.expect("transfer").payload.endswith(b"a")


@check
def unsettled_deliveries_return_after_the_socket_ends():
    address = queue("quorum", b"a")
    with Session() as peer:
        peer.receiver(address, credit=1)
        peer.expect("transfer")
    with Session() as other:
        other.receiver(address, credit=1)
        assert other.expect("transfer").payload.endswith(b"a")


@check
def message_arrives_as_it_was_sent():
    address = queue()
    sections = (
        codec.section(0x70, [True, Ubyte(7), 60_000])
        + codec.section(0x72, {Symbol("x-mine"): "a"})
        + codec.section(0x73, [Ulong(5), b"guest", address, "subject", "reply", "correlation", Symbol("text/plain")])
        + codec.section(0x74, {"key": "value", "number": 5})
        + codec.section(0x77, {"list": [1, "two", None, True]})
        + codec.section(0x78, {Symbol("foot"): "er"})
    )
    with Session() as peer:
        peer.sender(address)
        peer.transfer(sections, 0)
        peer.expect("disposition", state=ACCEPTED)
        peer.receiver(address, handle=1, credit=1)
        payload, found = peer.expect("transfer").payload, {}
        reader = codec.Reader(payload)
        while reader.at < len(payload):
            part = reader.value()
            found[part.descriptor] = part.value
        assert found[0x70][:2] == [True, 7] and found[0x70][2] <= 60_000
        assert found[0x72]["x-mine"] == "a" and "x-exchange" in found[0x72]
        assert found[0x73][:7] == [5, b"guest", address, "subject", "reply", "correlation", "text/plain"]
        assert found[0x74] == {"key": "value", "number": 5}
        assert found[0x77] == {"list": [1, "two", None, True]}
        assert found[0x78] == {"foot": "er"}


# More of outcomes.


def redelivered(kind, state, **settled):
    """The next delivery of a message after this state, or None."""
    address = queue(kind, b"a")
    with Session() as peer:
        peer.receiver(address, credit=1)
        settle(peer, state, peer.expect("transfer").delivery_id, **settled)
        peer.is_alive()
        peer.receiver(address, handle=1)
        peer.credit(1, handle=1, drain=True)
        while True:
            _, body = peer.frame()
            if body.kind == "transfer":
                return codec.Reader(body.payload)
            if body.kind == "flow" and body.handle == 1:
                return None


@each(
    accepted=(ACCEPTED, False), rejected=(Described(0x25, []), False), rejected_with_an_error=(Described(0x25, [composite("error", condition=Symbol("a:b"), description="d")]), False),
    released=(RELEASED, True), modified=(Described(0x27, []), True), failed=(Described(0x27, [True]), True), undeliverable_here=(Described(0x27, [None, True]), False),
    failed_and_undeliverable=(Described(0x27, [True, True]), False), annotated=(Described(0x27, [None, None, {Symbol("x-opt-a"): 1}]), True),
)
def outcome_on_a_classic_queue(case):
    state, returns = case
    assert (redelivered("classic", state) is not None) == returns


@each(
    accepted=(ACCEPTED, False), rejected_with_an_error=(Described(0x25, [composite("error", condition=Symbol("a:b"))]), False), undeliverable_here=(Described(0x27, [None, True]), False),
    annotated=(Described(0x27, [True, None, {Symbol("x-opt-a"): 1}]), True),
)
def outcome_on_a_quorum_queue(case):
    state, returns = case
    reader = redelivered("quorum", state)
    assert (reader is not None) == returns
    if returns:
        header, annotations = reader.value(), reader.value()
        assert header.value[4] == 1 and annotations.value["x-opt-a"] == 1, (header, annotations)


@each(classic="classic", quorum="quorum")
def settled_disposition_without_a_state(kind):
    """The message has the default outcome of the source, released."""
    assert redelivered(kind, None) is not None


@each(**with_answers("end amqp:invalid-field", {"accepted_by_symbol": "attach", "received": "attach", "accepted_with_fields": "end amqp:decode-error", "transactional": "end amqp:transaction:unknown-id"},
    accepted_by_symbol=Described("amqp:accepted:list", []), accepted_with_fields=Described(0x24, [None]), received=Described(0x23, [0, Ulong(0)]), rejected_is_a_map=Described(0x25, {}), modified_is_text=Described(0x27, ["yes"]),
    not_described="accepted", a_number=5, transactional=Described(0x34, [b"id", ACCEPTED]), declared=Described(0x33, [b"id"]), error=composite("error", condition=Symbol("a:b")),
))
def state_of_another_form(case):
    wanted, state = case
    address = queue("classic", b"a")
    with Session() as peer:
        peer.receiver(address, credit=1)
        settle(peer, state, peer.expect("transfer").delivery_id)
        peer.attach(SENDER, "me", composite("target"), handle=9)
        answered(peer, wanted)


@each(
    no_role=dict(first=0, settled=True, state=ACCEPTED), no_first=dict(role=RECEIVER, settled=True), role_is_a_number=dict(role=1, first=0), first_is_text=dict(role=RECEIVER, first="0"),
    last_is_text=dict(role=RECEIVER, first=0, last="1"), settled_is_text=dict(role=RECEIVER, first=0, settled="yes"), batchable_is_text=dict(role=RECEIVER, first=0, batchable="yes"),
)
def wrong_disposition(fields):
    address = queue("classic", b"a")
    with Session() as peer:
        peer.receiver(address, credit=1)
        peer.expect("transfer")
        peer.send("disposition", **fields)
        failed(peer)


@each(**with_answers("attach", {"last_before_first": "end amqp:invalid-field", "whole_range": "end amqp:invalid-field"},
    last_before_first=dict(first=5, last=0), whole_range=dict(first=0, last=UINT_MAX), far=dict(first=2**31, last=2**31 + 5), wrapping=dict(first=UINT_MAX, last=3), batchable=dict(first=50, batchable=True),
    unsettled=dict(first=50, settled=False), no_state=dict(first=50, state=None),
))
def disposition_of_deliveries_that_do_not_exist(case):
    wanted, fields = case
    with Session() as peer:
        peer.receiver(queue())
        peer.send("disposition", **{"role": RECEIVER, "settled": True, "state": ACCEPTED, **fields})
        peer.attach(SENDER, "me", composite("target"), handle=9)
        answered(peer, wanted)


@check
def second_disposition_of_a_delivery_is_ignored():
    address = queue("classic", b"a")
    with Session() as peer:
        peer.receiver(address, credit=1)
        number = peer.expect("transfer").delivery_id
        settle(peer, ACCEPTED, number)
        settle(peer, RELEASED, number)
        peer.is_alive()
        peer.credit(1, drain=True)
        assert peer.expect("flow", handle=0).link_credit == 0


@check
def disposition_of_the_sender_is_ignored():
    with Session() as peer:
        peer.sender(queue())
        peer.transfer(message())
        peer.expect("disposition", first=0)
        peer.send("disposition", role=SENDER, first=0, settled=True, state=ACCEPTED)
        peer.is_alive()


@check
def range_with_settled_deliveries_inside():
    address = queue("classic", b"a", b"b", b"c")
    with Session() as peer:
        peer.receiver(address, credit=3)
        first = [peer.expect("transfer").delivery_id for _ in range(3)][0]
        settle(peer, ACCEPTED, first + 1)
        settle(peer, RELEASED, first, last=first + 2)
        peer.is_alive()
        peer.credit(5, delivery_count=3)
        assert [peer.expect("transfer").payload[-1:] for _ in range(2)] == [b"a", b"c"]
        peer.is_alive()


@check
def range_over_two_links():
    first, second = queue("classic", b"a"), queue("classic", b"b")
    with Session() as peer:
        peer.receiver(first, credit=1)
        number = peer.expect("transfer").delivery_id
        peer.receiver(second, handle=1, credit=1)
        peer.expect("transfer")
        settle(peer, ACCEPTED, number, last=number + 1)
        peer.is_alive()
        peer.send("end")
        peer.expect("end")
    with Session() as peer:
        for handle, address in enumerate((first, second)):
            peer.receiver(address, handle=handle)
            peer.credit(1, handle=handle, drain=True)
            assert peer.expect("flow").link_credit == 0


@check
def deliveries_of_two_sessions_have_their_own_numbers():
    address = queue("classic", b"a", b"b")
    with Session() as peer:
        peer.begin(1)
        peer.receiver(address, credit=1)
        one = peer.expect("transfer").delivery_id
        peer.receiver(address, channel=1, credit=1)
        other = peer.expect("transfer", 1).delivery_id
        assert one == other, (one, other)
        settle(peer, ACCEPTED, one)
        peer.is_alive()


@each(classic="classic", quorum="quorum")
def rejected_message_is_dead_lettered(kind):
    target = queue()
    address = queue(kind, b"a", x_dead_letter_exchange="", x_dead_letter_routing_key=target.removeprefix("/queues/"))
    with Session() as peer:
        peer.receiver(address, credit=1)
        settle(peer, Described(0x25, []), peer.expect("transfer").delivery_id)
        peer.receiver(target, handle=1, credit=1)
        payload = peer.expect("transfer").payload
        assert b"x-opt-deaths" in payload and payload.endswith(b"a"), payload
        peer.transcript.lines = [line for line in peer.transcript.lines if "x-opt-deaths" not in line]


@check
def unsettled_messages_of_a_quorum_queue_count_deliveries():
    address = queue("quorum", b"a")
    for count in range(3):
        with Session() as peer:
            peer.receiver(address, credit=1)
            header = codec.Reader(peer.expect("transfer").payload).value()
            assert (header.value + [0] * 5)[4] == count, header


@check
def settled_receiver_of_a_quorum_queue():
    address = queue("quorum", b"a")
    with Session() as peer:
        peer.receiver(address, credit=1, snd_settle_mode=Ubyte(1))
        assert peer.expect("transfer").settled
    with Session() as peer:
        peer.receiver(address)
        peer.credit(1, drain=True)
        assert peer.expect("flow", handle=0).link_credit == 0


@check
def exclusive_and_single_active_receivers():
    address = queue("quorum", b"a", x_single_active_consumer=True)
    with Session() as peer:
        peer.receiver(address, credit=1)
        number = peer.expect("transfer").delivery_id
        peer.receiver(address, handle=1, credit=1)
        settle(peer, RELEASED, number)
        peer.is_alive()


@each(priority=10)
def receiver_of_higher_priority_is_served_first(priority):
    address = queue()
    with Session() as peer:
        peer.receiver(address, credit=5)
        peer.receiver(address, handle=1, credit=5, properties={Symbol("rabbitmq:priority"): Raw(b"\x71" + priority.to_bytes(4, "big"))})
        peer.is_alive()
        publish(address, b"a")
        peer.expect("transfer", handle=1)
