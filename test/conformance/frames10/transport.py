"""Protocol headers, SASL, open, close and frames."""

import codec
from codec import ACCEPTED, RELEASED, UINT_MAX, Array, Described, Raw, Symbol, Ubyte, Ulong, Ushort, composite, encode, message
from peer import AMQP, RECEIVER, SASL, SENDER, Closed, Peer, Session, Transcript, fresh, note, publish, queue
from suite import check, closed, each, failed, settle


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
        try:
            peer.frame()
        except Closed:
            return
        raise AssertionError("a frame follows the close")


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
        begin = composite("begin", next_outgoing_id=0, incoming_window=9, outgoing_window=9)
        peer.raw(codec.frame(encode(begin), 1, doff=doff))
        peer.expect("begin", 1)


@check
def frame_in_single_bytes():
    with Session() as peer:
        begin = composite("begin", next_outgoing_id=0, incoming_window=9, outgoing_window=9)
        for byte in codec.frame(encode(begin), 1):
            peer.raw(bytes([byte]))
        peer.expect("begin", 1)


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


# More of SASL.


@check
def offered_mechanisms():
    with Peer() as peer:
        peer.raw(SASL)
        assert peer.take(8) == SASL
        offered = peer.expect("mechanisms").mechanisms
        assert {"PLAIN", "ANONYMOUS"} <= set(offered) and "EXTERNAL" not in offered, offered


@each(
    authorization_id=b"guest\0guest\0guest", other_authorization_id=b"other\0guest\0guest", empty_password=b"\0guest\0", too_many_parts=b"\0guest\0guest\0more",
    not_utf8=b"\0\xff\0\xff", empty=b"", null=None, long=b"\0" + b"u" * 300 + b"\0" + b"p" * 300,
)
def plain_response_fails(response):
    """RabbitMQ does not accept an authorization id either."""
    with Peer() as peer:
        try:
            assert peer.log_in("PLAIN", response) == 1
        except Closed:
            pass


@each(lower_case="plain", empty="", long="X" * 300, external="EXTERNAL", cram="CRAM-MD5")
def mechanism_fails(mechanism):
    with Peer() as peer:
        try:
            assert peer.log_in(mechanism, b"\0guest\0guest") == 1
        except Closed:
            pass


@each(
    no_mechanism=composite("init", initial_response=b"\0guest\0guest"), mechanism_is_text=composite("init", mechanism="PLAIN", initial_response=b"\0guest\0guest"),
    response_is_text=composite("init", mechanism=Symbol("PLAIN"), initial_response="\0guest\0guest"), response_first=Described(0x43, [b"\0guest\0guest"]),
    mechanisms_of_a_client=composite("mechanisms", mechanisms=Array(["PLAIN"])), too_many_fields=Described(0x41, [Symbol("PLAIN"), b"\0guest\0guest", "h", 1]),
)
def wrong_init_ends_the_connection(init):
    with Peer() as peer:
        peer.raw(SASL)
        assert peer.take(8) == SASL
        peer.expect("mechanisms")
        peer.raw(codec.frame(encode(init), kind=1))
        peer.end_output()
        try:
            code = peer.expect("outcome").code
            assert code != 0, "the login succeeds"
        except Closed:
            pass


@each(channel=dict(channel=5), doff=dict(doff=3), hostname=dict(hostname="vhost:/"))
def init_is_accepted_with(options):
    with Peer() as peer:
        peer.raw(SASL)
        assert peer.take(8) == SASL
        peer.expect("mechanisms")
        hostname = options.pop("hostname", None) if "hostname" in (options := dict(options)) else None
        init = composite("init", mechanism=Symbol("PLAIN"), initial_response=b"\0guest\0guest", hostname=hostname)
        peer.raw(codec.frame(encode(init), kind=1, **options))
        assert peer.expect("outcome").code == 0


@each(second_sasl_header=SASL, other_version=b"AMQP\x00\x02\x00\x00", tls_header=b"AMQP\x02\x01\x00\x00", amqp_0_9_1=b"AMQP\x00\x00\x09\x01", http=b"GET / HT")
def header_after_the_login(header):
    with Peer() as peer:
        assert peer.log_in() == 0
        peer.raw(header)
        assert peer.take(8)[:4] == b"AMQP"
        peer.expect_end_of_socket()


@check
def init_after_the_outcome_ends_the_connection():
    with Peer() as peer:
        assert peer.log_in() == 0
        peer.raw(codec.frame(encode(composite("init", mechanism=Symbol("PLAIN"), initial_response=b"\0guest\0guest")), kind=1))
        peer.end_output()
        try:
            peer.take(8)
            peer.expect_end_of_socket()
        except Closed:
            pass


@check
def connection_that_ends_in_the_header():
    with Peer() as peer:
        peer.raw(b"AMQP\x03\x01")
        peer.end_output()
        peer.expect_end_of_socket()


@check
def connection_that_ends_in_a_frame():
    with Session() as peer:
        peer.raw(b"\0\0\0\x20\2\0\0\0\x00\x53")
        peer.end_output()
        peer.expect_end_of_socket()


# More of open and close.


@each(
    empty_container_id=dict(container_id=""), long_container_id=dict(container_id="c" * 400), smallest_frame=dict(max_frame_size=512), largest_frame=dict(max_frame_size=UINT_MAX),
    channel_max_zero=dict(channel_max=Ushort(0)), channel_max_most=dict(channel_max=Ushort(0xFFFF)), no_idle_time_out=dict(idle_time_out=0), long_idle_time_out=dict(idle_time_out=UINT_MAX),
    null_hostname=dict(hostname=None), empty_hostname=dict(hostname=""), other_hostname=dict(hostname="broker.example.com"), empty_properties=dict(properties={}),
    nested_properties=dict(properties={Symbol("a"): {Symbol("b"): [1, [2]]}}), empty_capabilities=dict(desired_capabilities=Array([])),
    text_property_key=dict(properties={"product": "p"}),
)
def open_is_accepted_with(fields):
    with Peer() as peer:
        peer.open(**fields)
        peer.begin()


@each(
    properties_are_a_list=dict(properties=[]), capabilities_are_text=dict(desired_capabilities="c"), capabilities_are_a_list=dict(offered_capabilities=[Symbol("a")]),
    idle_time_out_is_text=dict(idle_time_out="1"), hostname_is_a_symbol=dict(hostname=Symbol("h")), locales_are_text=dict(incoming_locales="en"), channel_max_is_text=dict(channel_max="1"),
    max_frame_size_is_zero=dict(max_frame_size=0),
)
def open_with_a_field_of_another_type(fields):
    with Peer() as peer:
        peer.authenticated()
        peer.send("open", **{"container_id": "c", **fields})
        closed(peer)


@each(
    list0=b"\x00\x53\x10\x45", map=b"\x00\x53\x10\xc1\x01\x00", text=b"\x00\x53\x10\xa1\x01c", too_many_fields=encode(Described(0x10, ["c"] + [None] * 10)),
)
def open_of_another_form(body):
    with Peer() as peer:
        peer.authenticated()
        peer.raw(codec.frame(body))
        closed(peer)


@check
def empty_frame_before_the_open():
    with Peer() as peer:
        peer.authenticated()
        peer.raw(codec.frame(b""))
        peer.send("open", container_id="c")
        peer.expect("open")


@check
def open_on_another_channel():
    with Peer() as peer:
        peer.authenticated()
        peer.send("open", 5, container_id="c")
        _, body = peer.frame()
        assert body.kind == "open", body


@check
def open_in_a_frame_above_512_bytes():
    with Peer() as peer:
        peer.open(properties={Symbol("x"): "y" * 2000})
        peer.begin()


@check
def open_is_answered_on_channel_zero_once():
    with Peer() as peer:
        answer = peer.open()
        assert answer.channel_max and answer.max_frame_size and answer.container_id, answer
        peer.begin()


@each(
    unknown_condition=composite("error", condition=Symbol("example:condition"), description="d"), info=composite("error", condition=Symbol("amqp:internal-error"), info={Symbol("a"): 1}),
    no_condition=Described(0x1D, []), condition_is_text=Described(0x1D, ["text"]), error_is_text="error",
)
def close_with(error):
    with Peer() as peer:
        peer.open()
        peer.send("close", error=error)
        peer.expect("close")


@check
def close_on_another_channel():
    with Session() as peer:
        peer.send("close", 3)
        _, body = peer.frame()
        assert body.kind == "close", body


@check
def close_before_the_open():
    with Peer() as peer:
        peer.authenticated()
        peer.send("close")
        closed_or_ended(peer)


def closed_or_ended(peer):
    """The connection ends, with or without an open and a close."""
    try:
        while True:
            _, body = peer.frame()
            assert body.kind in {"open", "close"}, body
            if body.kind == "close":
                peer.end_output()
    except Closed:
        pass


@check
def nothing_follows_an_error_close():
    with Peer() as peer:
        peer.open()
        peer.raw(codec.frame(encode(Described(0x99, []))))
        peer.expect_error("close")
        peer.send("close")
        peer.end_output()
        try:
            peer.frame()
        except Closed:
            return
        raise AssertionError("a frame follows the close")


@check
def begin_and_attach_in_one_segment():
    address = queue()
    with Peer() as peer:
        peer.open()
        begin = composite("begin", next_outgoing_id=0, incoming_window=9, outgoing_window=9)
        attach = composite("attach", name="n", handle=0, role=False, source=composite("source"), target=composite("target", address=address), initial_delivery_count=0)
        peer.raw(codec.frame(encode(begin)) + codec.frame(encode(attach)))
        peer.expect("begin")
        assert peer.expect("attach").target


@each(
    sasl=codec.frame(encode(composite("init", mechanism=Symbol("PLAIN"))), kind=1), amqp_header=AMQP, type_255=codec.frame(b"", kind=255), huge=b"\xff\xff\xff\xff\2\0\0\0",
    doff_zero=codec.frame(b"", doff=0, size=8),
)
def frame_ends_the_connection(data):
    with Session() as peer:
        peer.raw(data)
        closed(peer, "amqp:connection:framing-error", "amqp:not-implemented", "amqp:internal-error")


@check
def empty_frame_on_a_channel_without_a_session():
    with Session() as peer:
        peer.raw(codec.frame(b"", channel=7))
        peer.is_alive()


@check
def largest_frame_is_accepted():
    with Peer() as peer:
        size = peer.open().max_frame_size
        peer.begin()
        peer.sender(queue())
        head = len(codec.frame(encode(composite("transfer", handle=0, delivery_id=0, delivery_tag=b"tag"))))
        body = codec.section(0x75, bytes(size - head - 8))
        data = codec.frame(encode(composite("transfer", handle=0, delivery_id=0, delivery_tag=b"tag")) + body)
        assert len(data) == size, len(data)
        peer.raw(data)
        peer.expect("disposition", first=0, state=ACCEPTED)


@each(
    symbol_descriptor="amqp:flow:list", wrong_symbol="amqp:flow:map", array=Raw(b"\x00\x53\x13\xe0\2\0\x40"), described_twice=Raw(b"\x00\x00\x53\x13\x53\x13\x45"), string_descriptor=Raw(b"\x00\xa1\1f\x45"),
    uint_descriptor=Raw(b"\x00\x52\x13\x45"), count_too_large=Raw(b"\x00\x53\x13\xc0\3\xff\x43\x43"), list_of_2_32=Raw(b"\x00\x53\x13\xd0\xff\xff\xff\xff\xff\xff\xff\xff"), only_a_descriptor=Raw(b"\x00\x53\x13"),
    nothing_after_zero=Raw(b"\x00"), nested_deep=Raw(b"\x00\x53\x13" + b"\xc0\x7f\x01" * 60),
)
def performative_of_another_form(body):
    with Session() as peer:
        if isinstance(body, str):
            body = Described(body, [None, 9, 0, 9])
        peer.raw(codec.frame(encode(body)))
        if isinstance(body, Described) and body.descriptor == "amqp:flow:list":
            peer.is_alive()
        else:
            failed(peer)
