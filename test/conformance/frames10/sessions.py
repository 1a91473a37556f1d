"""Sessions: begin, end and windows."""

import codec
from codec import ACCEPTED, RELEASED, UINT_MAX, Array, Described, Raw, Symbol, Ubyte, Ulong, Ushort, composite, encode, message
from peer import AMQP, RECEIVER, SASL, SENDER, Closed, Peer, Session, Transcript, fresh, note, publish, queue
from suite import check, closed, each, failed, settle


# Begin and end (2.5, 2.7.2, 2.7.8).


@check
def begin_is_answered_with_the_channel_of_the_client():
    with Peer() as peer:
        peer.open()
        answer = peer.begin(7)
        assert answer.incoming_window > 0 and answer.outgoing_window > 0 and answer.next_outgoing_id is not None


@each(
    no_next_outgoing_id=composite("begin", incoming_window=1, outgoing_window=1),
    no_incoming_window=composite("begin", next_outgoing_id=0, outgoing_window=1),
    window_is_a_string=composite("begin", next_outgoing_id=0, incoming_window="1", outgoing_window=1),
)
def wrong_begin_is_refused(body):
    with Peer() as peer:
        peer.open()
        peer.raw(codec.frame(encode(body)))
        closed(peer)


@check
def channel_above_the_maximum_ends_the_connection():
    with Peer() as peer:
        answer = peer.open(channel_max=Ushort(0xFFFF))
        peer.send("begin", answer.channel_max + 1, next_outgoing_id=0, incoming_window=1, outgoing_window=1)
        closed(peer, "amqp:connection:framing-error", "amqp:not-allowed")


@check
def frame_of_a_channel_without_a_session_ends_the_connection():
    with Peer() as peer:
        peer.open()
        peer.send("flow", 4, incoming_window=1, next_outgoing_id=0, outgoing_window=1)
        closed(peer)


@check
def sessions_are_independent():
    address = queue()
    with Session() as peer:
        peer.begin(1)
        peer.sender(address, channel=1)
        peer.send("end")
        peer.expect("end")
        peer.transfer(message(), channel=1)
        peer.expect("disposition", 1, state=ACCEPTED)


@check
def channel_is_free_after_the_end():
    with Session() as peer:
        for _ in range(3):
            peer.send("end")
            assert not peer.expect("end").error
            peer.begin()


@check
def end_with_an_error_is_answered():
    with Session() as peer:
        peer.send("end", error=composite("error", condition=Symbol("amqp:internal-error"), description="d"))
        peer.expect("end")


@check
def handle_above_the_maximum_of_the_client_is_not_used():
    with Session(handle_max=0) as peer:
        peer.receiver(queue())


@check
def handle_above_the_maximum_of_the_server_is_an_error():
    with Peer() as peer:
        peer.open()
        limit = peer.begin().handle_max
        if limit is None or limit == UINT_MAX:
            return
        peer.attach(SENDER, "me", None, handle=limit + 1)
        _, body = peer.frame()
        assert body.kind in {"end", "close"} and body.error.condition == "amqp:connection:framing-error", body


@each(
    no_incoming_window=composite("flow", next_outgoing_id=0, outgoing_window=1),
    no_next_outgoing_id=composite("flow", incoming_window=1, outgoing_window=1),
    link_credit_is_a_string=composite("flow", incoming_window=1, next_outgoing_id=0, outgoing_window=1, link_credit="9"),
)
def wrong_flow_ends_the_session_or_the_connection(body):
    with Session() as peer:
        peer.raw(codec.frame(encode(body)))
        _, body = peer.frame()
        assert body.kind in {"end", "close"} and body.error, body


# Session windows (2.5.6).


@check
def flow_with_echo_is_answered():
    with Session() as peer:
        flow = peer.echo()
        assert flow.incoming_window > 0 and flow.handle is None


@check
def next_incoming_id_ahead_of_the_server_ends_the_session():
    with Peer() as peer:
        peer.open()
        ahead = (peer.begin().next_outgoing_id + 5) & UINT_MAX
        peer.send("flow", next_incoming_id=ahead, incoming_window=1, next_outgoing_id=0, outgoing_window=1)
        peer.expect_error("end", "amqp:session:window-violation")
        peer.begin(1)


@check
def closed_window_holds_deliveries_back():
    address = queue("classic", b"a", b"b")
    with Session(incoming_window=1) as peer:
        peer.attach(RECEIVER, address, "me")
        peer.expect("attach")
        peer.send("flow", incoming_window=1, next_outgoing_id=0, outgoing_window=9, handle=0, link_credit=5)
        first = peer.expect("transfer")
        assert first.payload.endswith(b"a")
        peer.is_alive()  # It has not sent the second message.
        peer.send("flow", next_incoming_id=(peer.begun.next_outgoing_id + 1) & UINT_MAX, incoming_window=9, next_outgoing_id=0, outgoing_window=9)
        assert peer.expect("transfer").payload.endswith(b"b")


@check
def server_renews_its_window():
    address = queue()
    with Session() as peer:
        peer.sender(address)
        for number in range(0, 1500, 50):
            for settled in range(number, number + 49):
                peer.transfer(message(), settled, settled=True)
            peer.transfer(message(), number + 49)
            peer.expect("disposition", first=number + 49, state=ACCEPTED)


# More of begin, end and flow.


@each(
    largest_windows=dict(incoming_window=UINT_MAX, outgoing_window=UINT_MAX), no_outgoing_window=dict(outgoing_window=0), wrapping_id=dict(next_outgoing_id=UINT_MAX),
    smallest_handle_max=dict(handle_max=0), largest_handle_max=dict(handle_max=UINT_MAX), properties=dict(properties={Symbol("a"): 1}), capabilities=dict(desired_capabilities=Array(["a"])),
)
def begin_is_accepted_with(fields):
    with Session(**fields) as peer:
        peer.sender(queue())


@each(
    handle_max_is_text=dict(handle_max="1"), properties_are_a_list=dict(properties=[]), remote_channel_is_a_uint=dict(remote_channel=5), capabilities_are_a_number=dict(offered_capabilities=5),
)
def begin_with_a_field_of_another_type(fields):
    with Peer() as peer:
        peer.open()
        peer.send("begin", **{"next_outgoing_id": 0, "incoming_window": 9, "outgoing_window": 9, **fields})
        failed(peer)


@check
def begin_of_a_client_with_a_remote_channel():
    with Peer() as peer:
        peer.open()
        peer.send("begin", remote_channel=Ushort(5), next_outgoing_id=0, incoming_window=9, outgoing_window=9)
        failed(peer)


@check
def second_begin_on_a_channel():
    with Session() as peer:
        peer.send("begin", next_outgoing_id=0, incoming_window=9, outgoing_window=9)
        failed(peer)


@check
def end_without_a_session():
    with Peer() as peer:
        peer.open()
        peer.send("end", 3)
        closed(peer, "amqp:illegal-state")


@check
def second_end_ends_the_connection():
    with Session() as peer:
        peer.send("end")
        peer.expect("end")
        peer.send("end")
        closed(peer, "amqp:illegal-state")


@each(begin="begin", attach="attach", transfer="transfer", disposition="disposition", detach="detach")
def frame_after_the_end(kind):
    with Session() as peer:
        peer.send("end")
        peer.expect("end")
        fields = {
            "attach": dict(name="n", handle=0, role=False), "transfer": dict(handle=0), "disposition": dict(role=True, first=0), "detach": dict(handle=0),
            "begin": dict(next_outgoing_id=0, incoming_window=9, outgoing_window=9),
        }[kind]
        peer.send(kind, **fields)
        if kind == "begin":
            peer.expect("begin")
        else:
            failed(peer)


@check
def frames_after_an_error_end_are_ignored():
    with Session() as peer:
        peer.send("flow", incoming_window=9, next_outgoing_id=0, outgoing_window=9, handle=9)
        peer.expect_error("end", "amqp:session:unattached-handle")
        peer.transfer(message())
        peer.send("detach", handle=0)
        peer.send("end")
        peer.begin(1)
        peer.is_alive(1)
        peer.begin(0)
        peer.is_alive()


@check
def all_channels_have_sessions():
    with Peer() as peer:
        limit = peer.open(channel_max=Ushort(7)).channel_max
        for channel in range(limit + 1):
            peer.begin(channel)
        for channel in range(limit + 1):
            peer.is_alive(channel)


@check
def error_of_a_session_leaves_others():
    address = queue()
    with Session() as peer:
        peer.begin(1)
        peer.sender(address, channel=1)
        peer.transfer(message(), handle=7)
        peer.expect_error("end", "amqp:session:unattached-handle")
        peer.transfer(message(), channel=1)
        peer.expect("disposition", 1, state=ACCEPTED)


@each(first=0, middle=77, last=UINT_MAX, wrapping=UINT_MAX - 1)
def next_incoming_id_counts_the_transfers(start):
    with Session(next_outgoing_id=start) as peer:
        peer.sender(queue())
        for number in range(3):
            peer.transfer(message(), number)
            peer.expect("disposition", first=number)
        peer.send("flow", incoming_window=9, next_outgoing_id=(start + 3) & UINT_MAX, outgoing_window=9, handle=0, delivery_count=3, echo=True, link_credit=5)
        assert peer.expect("flow").next_incoming_id == (start + 3) & UINT_MAX


@each(before=UINT_MAX, at=0, wrapping=UINT_MAX - 1)
def delivery_ids_wrap(first):
    with Session() as peer:
        peer.sender(queue())
        for number in range(3):
            peer.transfer(message(), (first + number) & UINT_MAX)
            peer.expect("disposition", first=(first + number) & UINT_MAX, state=ACCEPTED)


@check
def next_incoming_id_behind_the_server_reopens_the_window():
    address = queue("classic", b"a", b"b", b"c")
    with Session(incoming_window=2) as peer:
        start = peer.begun.next_outgoing_id
        peer.attach(RECEIVER, address, "me")
        peer.expect("attach")
        peer.send("flow", next_incoming_id=start, incoming_window=2, next_outgoing_id=0, outgoing_window=9, handle=0, link_credit=9)
        peer.expect("transfer")
        peer.expect("transfer")
        # This flow was sent before the first transfer arrived.
        peer.send("flow", next_incoming_id=start, incoming_window=3, next_outgoing_id=0, outgoing_window=9)
        assert peer.expect("transfer").payload.endswith(b"c")


@check
def window_of_zero_at_the_begin():
    address = queue("classic", b"a")
    with Session(incoming_window=0) as peer:
        start = peer.begun.next_outgoing_id
        peer.attach(RECEIVER, address, "me")
        peer.expect("attach")
        peer.send("flow", next_incoming_id=start, incoming_window=0, next_outgoing_id=0, outgoing_window=9, handle=0, link_credit=1)
        peer.is_alive()
        peer.send("flow", next_incoming_id=start, incoming_window=1, next_outgoing_id=0, outgoing_window=9)
        peer.expect("transfer")


@check
def window_counts_transfers_and_not_messages():
    address = queue("classic", b"x" * 1500)
    with Peer() as peer:
        peer.open(max_frame_size=512)
        start = peer.begin(incoming_window=2).next_outgoing_id
        peer.attach(RECEIVER, address, "me")
        peer.expect("attach")
        peer.send("flow", next_incoming_id=start, incoming_window=2, next_outgoing_id=0, outgoing_window=9, handle=0, link_credit=1)
        assert peer.expect("transfer").more and peer.expect("transfer").more
        peer.send("flow", next_incoming_id=(start + 2) & UINT_MAX, incoming_window=9, next_outgoing_id=0, outgoing_window=9)
        while peer.expect("transfer").more:
            pass


@each(
    credit_without_a_handle=dict(link_credit=5), drain_without_a_handle=dict(drain=True), available=dict(available=3), properties=dict(properties={Symbol("a"): 1}),
)
def flow_of_a_session_with(fields):
    with Session() as peer:
        peer.send("flow", incoming_window=9, next_outgoing_id=0, outgoing_window=9, **fields)
        peer.is_alive()


@each(echo_is_text=dict(echo="yes"), drain_is_a_number=dict(handle=0, drain=1), handle_is_text=dict(handle="0"), properties_are_text=dict(properties="p"))
def flow_with_a_field_of_another_type(fields):
    with Session() as peer:
        peer.receiver(queue())
        peer.send("flow", incoming_window=9, next_outgoing_id=0, outgoing_window=9, **fields)
        failed(peer)


@check
def flow_before_the_begin():
    with Peer() as peer:
        peer.open()
        peer.send("flow", incoming_window=9, next_outgoing_id=0, outgoing_window=9)
        failed(peer)


@check
def begin_with_too_many_fields():
    with Peer() as peer:
        peer.open()
        peer.raw(codec.frame(encode(Described(0x11, [None, 0, 9, 9, None, None, None, None, 1]))))
        failed(peer)


