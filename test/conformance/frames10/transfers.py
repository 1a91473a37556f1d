"""Messages that the client sends."""

import codec
from codec import ACCEPTED, RELEASED, UINT_MAX, Array, Described, Raw, Symbol, Ubyte, Ulong, Ushort, composite, encode, message
from peer import AMQP, RECEIVER, SASL, SENDER, Closed, Peer, Session, Transcript, fresh, note, publish, queue
from suite import answered, check, closed, each, failed, settle, with_answers


# Transfers of the client (2.6.12, 2.7.5).


@each(classic="classic", quorum="quorum")
def transfer_is_accepted(kind):
    with Session() as peer:
        peer.sender(queue(kind))
        peer.transfer(message(), 0)
        peer.expect("disposition", role=RECEIVER, first=0, settled=True, state=ACCEPTED)


@check
def settled_transfer_has_no_disposition():
    address = queue()
    with Session() as peer:
        peer.sender(address)
        peer.transfer(message(b"a"), 0, settled=True)
        peer.transfer(message(b"b"), 1)
        assert peer.expect("disposition").first == 1


@check
def message_in_several_transfers():
    address, whole = queue(), message(b"x" * 1000)
    with Session() as peer:
        peer.sender(address)
        parts = [whole[at : at + 100] for at in range(0, len(whole), 100)]
        peer.transfer(parts[0], 0, more=True)
        for part in parts[1:-1]:
            peer.send("transfer", payload=part, handle=0, more=True)
        peer.send("transfer", payload=parts[-1], handle=0)
        peer.expect("disposition", first=0, state=ACCEPTED)
        peer.receiver(address, handle=1, credit=1)
        assert peer.expect("transfer").payload.endswith(b"x" * 1000)


@check
def last_transfer_may_be_empty():
    with Session() as peer:
        peer.sender(queue())
        peer.transfer(message(), 0, more=True)
        peer.send("transfer", handle=0)
        peer.expect("disposition", first=0, state=ACCEPTED)


@check
def aborted_message_is_not_published():
    address = queue()
    with Session() as peer:
        peer.sender(address)
        peer.transfer(b"\x00\x53\x75\xa0\x09part", 0, more=True)
        peer.send("transfer", handle=0, aborted=True)
        peer.transfer(message(b"whole"), 1)
        peer.expect("disposition", first=1, state=ACCEPTED)
        peer.receiver(address, handle=1, credit=2)
        assert peer.expect("transfer").payload.endswith(b"whole")
        peer.is_alive()


@each(
    no_delivery_id=dict(delivery_id=None),
    delivery_id_is_a_string=dict(delivery_id="0"),
    handle_is_missing=dict(handle=None),
)
def wrong_transfer_is_an_error(fields):
    with Session() as peer:
        peer.sender(queue())
        fields = dict({"delivery_id": 0}, **fields)
        peer.transfer(message(), **fields)
        failed(peer)


@check
def continuation_with_another_delivery_id_detaches():
    with Session() as peer:
        peer.sender(queue())
        peer.transfer(message()[:4], 0, more=True, settled=False)
        peer.send("transfer", payload=message()[4:], handle=0, delivery_id=5)
        assert failed(peer).kind in {"detach", "end"}


@each(
    settled_in_mode_unsettled=(0, True),
    unsettled_in_mode_settled=(1, False),
)
def transfer_against_the_settle_mode_of_the_link_detaches(case):
    mode, settled = case
    with Session() as peer:
        peer.sender(queue(), snd_settle_mode=Ubyte(mode))
        peer.transfer(message(), 0, settled=settled)
        failed(peer, "amqp:invalid-field")


@check
def transfer_to_an_unknown_handle_ends_the_session():
    with Session() as peer:
        peer.transfer(message(), handle=9)
        peer.expect_error("end", "amqp:session:unattached-handle")
        peer.begin(1)


@check
def transfer_on_a_link_of_a_receiver_is_an_error():
    with Session() as peer:
        peer.receiver(queue())
        peer.transfer(message())
        failed(peer)


@check
def transfers_without_credit_are_an_error():
    with Session() as peer:
        # The management node renews credit with its answers, for which the client grants no credit.
        pair = {"name": "pair", "properties": {Symbol("paired"): True}, "snd_settle_mode": Ubyte(1)}
        peer.attach(SENDER, "me", "/management", **pair)
        peer.expect("attach")
        credit = peer.expect("flow").link_credit
        peer.receiver("/management", handle=1, **pair)
        request = codec.section(0x73, ["id", None, "/queues/q", "GET", "$me"]) + codec.section(0x77, None)
        for number in range(2 * credit):
            peer.transfer(request, number, settled=True)
        failed(peer)


@each(
    garbage=b"\xff\xff\xff",
    unknown_section=codec.section(0x79, b"x"),
    section_ends_early=b"\x00\x53\x75\xb0\x00\x00\x00\x09abc",
)
def undecodable_message_detaches(payload):
    address = queue()
    with Session() as peer:
        peer.sender(address)
        peer.transfer(payload, 0)
        assert failed(peer, "amqp:decode-error").kind == "detach"
        peer.is_alive()


@check
def foreign_user_id_detaches_without_an_outcome():
    with Session() as peer:
        peer.sender(queue())
        peer.transfer(message(user_id=b"other"), 0)
        peer.expect_error("detach", "amqp:unauthorized-access")
        peer.is_alive()


@check
def own_user_id_is_accepted():
    with Session() as peer:
        peer.sender(queue())
        peer.transfer(message(user_id=b"guest"), 0)
        peer.expect("disposition", state=ACCEPTED)


@check
def message_larger_than_the_maximum_detaches():
    with Session() as peer:
        size = peer.sender(queue()).max_message_size
        if size > 64 << 20:
            return
        part = bytes(60_000)
        peer.transfer(part, 0, more=True)
        # Fewer transfers than the window of the session.
        for _ in range(size // len(part) + 1):
            peer.send("transfer", payload=part, handle=0, more=True)
        assert failed(peer, "amqp:link:message-size-exceeded").kind == "detach"


@check
def unroutable_message_is_released():
    with Session() as peer:
        peer.sender("/exchanges/amq.direct/nowhere")
        peer.transfer(message(), 0)
        peer.expect("disposition", first=0, settled=True, state=RELEASED)


@check
def message_names_its_target():
    address = queue()
    with Session() as peer:
        peer.sender(composite("target"))
        peer.transfer(message(to=address), 0)
        peer.expect("disposition", state=ACCEPTED)


@each(
    no_to=(None, "amqp:precondition-failed"),
    bad_to=("q", "amqp:precondition-failed"),
    missing_exchange=("/exchanges/missing", "amqp:not-found"),
)
def message_without_a_usable_target_is_rejected(case):
    to, condition = case
    with Session() as peer:
        peer.sender(composite("target"))
        peer.transfer(message(to=to), 0)
        state = peer.expect("disposition", first=0, settled=True).state
        assert state.descriptor == 0x25 and codec.named(state.value[0]).condition == condition, state
        peer.transfer(message(to=to), 1, settled=True)
        error = peer.expect_error("detach", condition).error
        assert error.condition == condition
        peer.is_alive()


# More of transfers.


@each(**with_answers("disposition", {"no_tag": "detach amqp:invalid-field", "long_tag": "end amqp:invalid-field", "tag_is_text": "end amqp:invalid-field", "other_format": "detach amqp:not-implemented", "receiver_second": "detach amqp:invalid-field", "resume": "detach amqp:not-implemented", "settled_is_text": "end amqp:invalid-field", "more_is_a_number": "end amqp:invalid-field", "format_is_text": "end amqp:invalid-field"},
    no_tag=dict(delivery_tag=None), empty_tag=dict(delivery_tag=b""), long_tag=dict(delivery_tag=b"t" * 33), longest_tag=dict(delivery_tag=b"t" * 32), tag_is_text=dict(delivery_tag="tag"),
    message_format=dict(message_format=0), other_format=dict(message_format=7), batchable=dict(batchable=True), receiver_first=dict(rcv_settle_mode=Ubyte(0)), receiver_second=dict(rcv_settle_mode=Ubyte(1)),
    accepted_state=dict(state=ACCEPTED), received_state=dict(state=Described(0x23, [0, Ulong(0)])), resume=dict(resume=True), not_more=dict(more=False), settled_is_text=dict(settled="yes"),
    more_is_a_number=dict(more=1), format_is_text=dict(message_format="0"),
))
def transfer_with(case):
    wanted, fields = case
    with Session() as peer:
        peer.sender(queue())
        peer.transfer(message(), 0, **fields)
        answered(peer, wanted)


@each(**with_answers("end amqp:invalid-field", {"gap": "disposition"},
repeated=[0, 0], gap=[0, 5], backwards=[5, 4], far=[0, 2**31]
))
def delivery_ids_in_another_order(case):
    wanted, numbers = case
    with Session() as peer:
        peer.sender(queue())
        for number in numbers:
            peer.transfer(message(), number)
        while True:
            _, body = peer.frame()
            if body.kind == "disposition" and body.get("last", body.first) == numbers[-1] and wanted == "disposition":
                break
            if body.kind not in {"flow", "disposition"}:
                assert wanted == f"{body.kind} {body.error.condition}", body
                break


@check
def delivery_tags_may_repeat_after_settlement():
    with Session() as peer:
        peer.sender(queue())
        for number in range(3):
            peer.transfer(message(), number, delivery_tag=b"same")
            peer.expect("disposition", first=number, state=ACCEPTED)


@check
def deliveries_of_two_links_interleave():
    first, second = queue(), queue()
    with Session() as peer:
        peer.sender(first)
        peer.sender(second, handle=1)
        whole = message(b"x" * 100)
        peer.transfer(whole[:50], 0, more=True)
        peer.transfer(whole[:30], 1, handle=1, more=True)
        peer.send("transfer", payload=whole[50:], handle=0)
        peer.expect("disposition", first=0, state=ACCEPTED)
        peer.send("transfer", payload=whole[30:], handle=1)
        peer.expect("disposition", first=1, state=ACCEPTED)


@each(same_id=dict(delivery_id=0), same_tag=dict(delivery_tag=b"tag"), same_format=dict(message_format=0), settled=dict(settled=False))
def continuation_may_repeat(fields):
    with Session() as peer:
        peer.sender(queue())
        peer.transfer(message()[:4], 0, more=True, message_format=0)
        peer.send("transfer", payload=message()[4:], handle=0, **fields)
        peer.expect("disposition", first=0, state=ACCEPTED)


@each(other_tag=dict(delivery_tag=b"other"), other_format=dict(message_format=5))
def continuation_with_another(fields):
    with Session() as peer:
        peer.sender(queue())
        peer.transfer(message()[:4], 0, more=True, message_format=0)
        peer.send("transfer", payload=message()[4:], handle=0, **fields)
        answered(peer, "detach amqp:invalid-field")


@check
def settled_at_the_last_transfer():
    address = queue()
    with Session() as peer:
        peer.sender(address)
        peer.transfer(message(b"a")[:4], 0, more=True)
        peer.send("transfer", payload=message(b"a")[4:], handle=0, settled=True)
        peer.transfer(message(b"b"), 1)
        peer.expect("disposition", first=1, state=ACCEPTED)
        peer.receiver(address, handle=1, credit=2)
        assert [peer.expect("transfer").payload[-1:] for _ in range(2)] == [b"a", b"b"]


@each(first=dict(more=True, aborted=True), alone=dict(aborted=True), settled=dict(aborted=True, settled=True))
def first_transfer_is_aborted(fields):
    address = queue()
    with Session() as peer:
        peer.sender(address)
        peer.transfer(message(b"aborted"), 0, **fields)
        peer.transfer(message(b"whole"), 1)
        peer.expect("disposition", first=1, state=ACCEPTED)
        peer.receiver(address, handle=1, credit=2)
        assert peer.expect("transfer").payload.endswith(b"whole")
        peer.is_alive()


@check
def aborted_delivery_whose_bytes_are_incomplete():
    address = queue()
    with Session() as peer:
        peer.sender(address)
        peer.transfer(message(b"aborted")[:5], 0, more=True)
        peer.send("transfer", handle=0, aborted=True)
        peer.transfer(message(b"whole"), 1)
        peer.expect("disposition", first=1, state=ACCEPTED)


@check
def detach_within_a_delivery_discards_it():
    address = queue()
    with Session() as peer:
        peer.sender(address)
        peer.transfer(message(b"partial")[:5], 0, more=True)
        peer.send("detach", handle=0, closed=True)
        peer.expect("detach")
        peer.sender(address)
        peer.transfer(message(b"whole"), 1)
        peer.expect("disposition", first=1, state=ACCEPTED)
        peer.receiver(address, handle=1, credit=2)
        assert peer.expect("transfer").payload.endswith(b"whole")
        peer.is_alive()


@check
def end_within_a_delivery_discards_it():
    address = queue()
    with Session() as peer:
        peer.sender(address)
        peer.transfer(message(b"partial")[:5], 0, more=True)
        peer.send("end")
        peer.expect("end")
    with Session() as peer:
        peer.receiver(address)
        peer.credit(1, drain=True)
        assert peer.expect("flow", handle=0).link_credit == 0


@check
def empty_transfers_of_a_delivery():
    with Session() as peer:
        peer.sender(queue())
        peer.transfer(b"", 0, more=True)
        for _ in range(5):
            peer.send("transfer", handle=0, more=True)
        peer.send("transfer", payload=message(), handle=0)
        peer.expect("disposition", first=0, state=ACCEPTED)


@check
def message_without_bytes():
    with Session() as peer:
        peer.sender(queue())
        peer.transfer(b"", 0)
        peer.expect("disposition", first=0, state=ACCEPTED)


@check
def message_with_a_header_alone():
    with Session() as peer:
        peer.sender(queue())
        peer.transfer(codec.section(0x70, [True]), 0)
        peer.expect("disposition", first=0, state=ACCEPTED)


@each(before_the_attach=False, after_the_detach=True)
def transfer_without_a_link(was_attached):
    with Session() as peer:
        if was_attached:
            peer.sender(queue())
            peer.send("detach", handle=0, closed=True)
            peer.expect("detach")
        peer.transfer(message())
        peer.expect_error("end", "amqp:session:unattached-handle")


@each(classic="classic", quorum="quorum", stream="stream")
def messages_are_confirmed_in_order(kind):
    with Session() as peer:
        peer.sender(queue(kind))
        for number in range(20):
            peer.transfer(message(), number)
        seen = set()
        while len(seen) < 20:
            body = peer.expect("disposition", state=ACCEPTED, settled=True, role=RECEIVER)
            seen |= set(range(body.first, body.get("last", body.first) + 1))
        peer.transcript.lines = [line for line in peer.transcript.lines if "disposition" not in line]


@each(reject_publish="reject-publish", drop_head="drop-head")
def full_queue(overflow):
    address = queue("classic", b"a", x_max_length=1, x_overflow=overflow)
    with Session() as peer:
        peer.sender(address)
        peer.transfer(message(b"b"), 0)
        state = peer.expect("disposition", first=0).state
        assert state.descriptor == (0x25 if overflow == "reject-publish" else 0x24), state


@check
def rejected_message_has_a_condition():
    address = queue("quorum", b"a", x_max_length=1, x_overflow="reject-publish")
    with Session() as peer:
        peer.sender(address)
        for number in range(5):
            peer.transfer(message(b"b"), number)
            state = peer.expect("disposition", first=number).state
            if state.descriptor == 0x25:
                break
        assert state.descriptor == 0x25, state
