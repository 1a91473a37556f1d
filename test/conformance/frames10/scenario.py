"""Frames of AMQP 1.0 and the answers of the server: what is allowed, and what ends a link, a session or the connection.

Section numbers are those of the OASIS standard, part 2 (transport) unless another part is named. Where the standard leaves the
answer open, the expectation is that of RabbitMQ 4.3.
"""

import checks
import codec
from codec import ACCEPTED, RELEASED, UINT_MAX, Array, Described, Raw, Symbol, Ubyte, Ulong, Ushort, composite, encode, message
from peer import AMQP, RECEIVER, SASL, SENDER, Closed, Peer, Session, fresh, queue

suite = checks.Checks("frames10")
check = suite.check


def each(**cases):
    """Registers a function once for each case, with the case as its argument."""

    def register(function):
        for name, case in cases.items():
            def run(case=case):
                function(case)

            run.__name__ = f"{function.__name__}_{name}"
            check(run)
        return function

    return register


# Protocol headers (2.2) and SASL (part 5, 5.3).


@check
def header_in_single_bytes():
    with Peer() as peer:
        for byte in SASL:
            peer.raw(bytes([byte]))
        assert peer.take(8) == SASL
        offered = peer.expect("mechanisms").mechanisms
        assert "PLAIN" in offered, offered


@check
def amqp_header_without_sasl_is_answered_with_the_sasl_header():
    with Peer() as peer:
        peer.raw(AMQP)
        assert peer.take(8) == SASL
        peer.expect_end_of_socket()


@each(major=b"AMQP\x03\x02\x00\x00", minor=b"AMQP\x03\x01\x01\x00", revision=b"AMQP\x03\x01\x00\x01", http=b"GET / HTTP/1.1\r\n\r\n")
def other_header_is_answered_with_a_supported_one(header):
    with Peer() as peer:
        peer.raw(header)
        assert peer.take(4) == b"AMQP"
        peer.take(4)
        peer.expect_end_of_socket()


@check
def plain_login():
    with Peer() as peer:
        assert peer.log_in() == 0


@check
def anonymous_login():
    with Peer() as peer:
        assert peer.log_in("ANONYMOUS", b"") == 0


@each(
    wrong_password=("PLAIN", b"\0guest\0wrong"),
    unknown_user=("PLAIN", b"\0nobody\0guest"),
    plain_without_separators=("PLAIN", b"guest"),
    plain_without_password=("PLAIN", b"\0guest"),
)
def login_fails(case):
    with Peer() as peer:
        try:
            assert peer.log_in(*case) == 1
            peer.expect_end_of_socket()
        except Closed:
            pass


@check
def mechanism_that_is_not_offered_fails():
    with Peer() as peer:
        try:
            assert peer.log_in("SCRAM-SHA-256", b"") == 1
        except Closed:
            return
        peer.expect_end_of_socket()


@each(
    amqp_frame=codec.frame(encode(composite("open", container_id="c"))),
    no_performative=codec.frame(b"\x40", kind=1),
    performative_of_amqp=codec.frame(encode(composite("open", container_id="c")), kind=1),
    outcome_of_a_client=codec.frame(encode(composite("outcome", code=Ubyte(0))), kind=1),
)
def wrong_frame_in_the_sasl_layer_ends_the_connection(data):
    with Peer() as peer:
        peer.raw(SASL)
        assert peer.take(8) == SASL
        peer.expect("mechanisms")
        peer.raw(data)
        peer.expect_end_of_socket()


@check
def handshake_can_be_pipelined():
    with Peer() as peer:
        init = composite("init", mechanism=Symbol("PLAIN"), initial_response=b"\0guest\0guest")
        opening = composite("open", container_id="c")
        peer.raw(SASL + codec.frame(encode(init), kind=1) + AMQP + codec.frame(encode(opening)))
        assert peer.take(8) == SASL
        peer.expect("mechanisms")
        assert peer.expect("outcome").code == 0
        assert peer.take(8) == AMQP
        peer.expect("open")


# Open and close (2.4, 2.7.1, 2.7.9).


@check
def open_with_a_container_id_alone():
    with Peer() as peer:
        peer.authenticated()
        peer.send("open", container_id="c")
        answer = peer.expect("open")
        assert answer.container_id and answer.max_frame_size >= 512 and answer.idle_time_out
        assert "ANONYMOUS-RELAY" in answer.offered_capabilities and "LINK_PAIR_V1_0" in answer.offered_capabilities
        assert answer.properties["product"] == "RabbitMQ" and answer.properties["node"]


@check
def close_is_answered_and_ends_the_socket():
    with Peer() as peer:
        peer.open()
        peer.send("close")
        assert not peer.expect("close").error
        peer.expect_end_of_socket()


@check
def close_with_an_error_is_answered():
    with Peer() as peer:
        peer.open()
        peer.send("close", error=composite("error", condition=Symbol("amqp:internal-error")))
        peer.expect("close")
        peer.expect_end_of_socket()


@check
def close_ends_a_connection_with_sessions_and_links():
    address = queue()
    with Session() as peer:
        peer.sender(address)
        peer.receiver(address, handle=1, credit=1)
        peer.send("close")
        peer.expect("close")
        peer.expect_end_of_socket()


@check
def frames_after_the_close_are_ignored():
    with Peer() as peer:
        peer.open()
        peer.raw(codec.frame(encode(composite("close"))) + codec.frame(encode(composite("end")), 3))
        peer.expect("close")
        peer.expect_end_of_socket()


@check
def second_open_ends_the_connection():
    with Peer() as peer:
        peer.open()
        peer.send("open", container_id="again")
        peer.expect_error("close")
        peer.expect_end_of_socket()


@check
def begin_before_open_ends_the_connection():
    with Peer() as peer:
        peer.authenticated()
        peer.send("begin", next_outgoing_id=0, incoming_window=1, outgoing_window=1)
        closed(peer)


def closed(peer, *conditions):
    """The connection ends. Before its open, a server may leave out the close."""
    try:
        _, body = peer.frame()
        if body.kind == "open":
            _, body = peer.frame()
    except Closed:
        return
    assert body.kind == "close" and body.error, body
    if conditions:
        assert body.error.condition in conditions, body.error
    peer.expect_end_of_socket()


@each(
    no_container_id=composite("open", hostname="h"),
    container_id_is_a_number=composite("open", container_id=5),
    max_frame_size_is_a_string=composite("open", container_id="c", max_frame_size="large"),
    max_frame_size_is_too_small=composite("open", container_id="c", max_frame_size=511),
    channel_max_is_a_uint=composite("open", container_id="c", channel_max=Raw(encode(70_000))),
)
def wrong_open_ends_the_connection(body):
    with Peer() as peer:
        peer.authenticated()
        peer.raw(codec.frame(encode(body)))
        closed(peer)


@each(missing="vhost:missing", empty="vhost:")
def vhost_that_does_not_exist_is_refused(hostname):
    with Peer() as peer:
        peer.authenticated()
        peer.send("open", container_id="c", hostname=hostname)
        closed(peer, "amqp:not-found")


@each(plain="localhost", vhost="vhost:/")
def hostname_selects_the_vhost(hostname):
    with Peer() as peer:
        peer.open(hostname=hostname)
        peer.begin()


@check
def capabilities_and_locales_of_the_client_are_accepted():
    with Peer() as peer:
        peer.open(
            outgoing_locales=Symbol("en-US"), incoming_locales=Array(["en-US", "de-DE"]),
            offered_capabilities=Array(["a"]), desired_capabilities=Symbol("b"), properties={Symbol("product"): "frames10"},
        )
        peer.begin()


@check
def idle_client_gets_empty_frames():
    with Peer() as peer:
        peer.open(idle_time_out=1000)
        for _ in range(2):
            _, body = peer.frame()
            assert body.kind == "heartbeat", body


@check
def channel_max_of_the_client_is_respected():
    with Peer() as peer:
        assert peer.open(channel_max=Ushort(3)).channel_max <= 3
        peer.begin(3)
        peer.begin(0)


# Frames (2.3).


@each(
    size_below_the_header=b"\0\0\0\x07\2\0\0\0",
    size_of_zero=b"\0\0\0\0\2\0\0\0",
    doff_below_two=codec.frame(b"", doff=1, size=8),
    doff_beyond_the_frame=codec.frame(b"", doff=9, size=8),
    unknown_type=codec.frame(b"", kind=7),
)
def malformed_frame_ends_the_connection(data):
    with Session() as peer:
        peer.raw(data)
        closed(peer, "amqp:connection:framing-error", "amqp:not-implemented", "amqp:internal-error")


@check
def frame_above_the_maximum_ends_the_connection():
    with Peer() as peer:
        size = peer.open().max_frame_size
        peer.raw(codec.frame(b"", size=size + 1))
        closed(peer, "amqp:connection:framing-error")


@check
def empty_frames_are_accepted():
    with Session() as peer:
        peer.raw(codec.frame(b"") * 3 + codec.frame(b"", channel=0))
        peer.is_alive()


@each(doff3=3, doff255=255)
def extended_header_is_skipped(doff):
    with Session() as peer:
        flow = composite("flow", incoming_window=9, next_outgoing_id=0, outgoing_window=9, echo=True)
        peer.raw(codec.frame(encode(flow), doff=doff))
        peer.expect("flow")


@check
def frame_in_single_bytes():
    with Session() as peer:
        flow = composite("flow", incoming_window=9, next_outgoing_id=0, outgoing_window=9, echo=True)
        for byte in codec.frame(encode(flow)):
            peer.raw(bytes([byte]))
        peer.expect("flow")


@each(
    no_descriptor=b"\x40",
    unknown_code=encode(Described(0x99, [])),
    unknown_symbol=encode(Described("example:frame:list", [])),
    list_ends_early=b"\x00\x53\x11\xc0\x0a\x04\x40",
    unknown_constructor=b"\x00\x53\x11\xc0\x03\x02\x3f\x40",
    string_is_not_utf8=encode(Described(0x12, [Raw(b"\xa1\x01\xff"), 0, True])),
)
def undecodable_performative_ends_the_connection(body):
    with Session() as peer:
        peer.raw(codec.frame(body))
        closed(peer)


def begun(encoded):
    """A session begins with this encoding of the performative."""
    with Peer() as peer:
        peer.open()
        peer.raw(codec.frame(encoded, 1))
        peer.expect("begin", 1, remote_channel=1)


FIELDS = b"\x40\x43\x52\x09\x52\x09"  # null, uint0, smalluint, smalluint


@each(
    list8=b"\x00\x53\x11\xc0" + bytes([len(FIELDS) + 1, 4]) + FIELDS,
    list32=b"\x00\x53\x11\xd0" + bytes([0, 0, 0, len(FIELDS) + 4, 0, 0, 0, 4]) + FIELDS,
    long_code=b"\x00\x80\0\0\0\0\0\0\0\x11\xc0" + bytes([len(FIELDS) + 1, 4]) + FIELDS,
    symbol=encode(Described("amqp:begin:list", [None, 0, 9, 9])),
    symbol32=b"\x00\xb3\0\0\0\x0famqp:begin:list\xc0" + bytes([len(FIELDS) + 1, 4]) + FIELDS,
)
def encodings_of_a_performative_are_equal(encoded):
    begun(encoded)


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
        flow = peer.is_alive()
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
        # The session answers, and has not sent the second message.
        peer.send("flow", incoming_window=0, next_outgoing_id=0, outgoing_window=9, echo=True)
        start = peer.expect("flow").next_outgoing_id
        peer.send("flow", next_incoming_id=start, incoming_window=9, next_outgoing_id=0, outgoing_window=9)
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

        def is_refused():
            peer.attach(SENDER, "me", address)
            is_gone = peer.expect("attach").target is None
            peer.send("detach", handle=0, closed=True)
            peer.expect("detach")
            return is_gone

        checks.until(is_refused, "the end of the queue")


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
        peer.send("flow", incoming_window=9, next_outgoing_id=0, outgoing_window=9, echo=True)
        _, body = peer.frame()
        assert body.kind == "flow" or body.error.condition == "amqp:session:unattached-handle", body


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


def failed(peer, *conditions):
    """The link, the session or the connection ends with an error; returns the frame."""
    while True:
        _, body = peer.frame()
        if body.kind not in {"flow", "heartbeat", "disposition"}:
            break
    assert body.kind in {"detach", "end", "close"} and body.error, body
    if conditions:
        assert body.error.condition in conditions, body.error
    return body


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
        assert failed(peer, "amqp:decode-error", "amqp:invalid-field", "amqp:not-implemented").kind == "detach"
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


def settle(peer, state, first, settled=True, **fields):
    peer.send("disposition", role=RECEIVER, first=first, settled=settled, state=state, **fields)


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


suite.run()
