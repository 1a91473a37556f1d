"""Sections of messages and their types (parts 1 and 3)."""

import codec
from codec import ACCEPTED, Described, Raw, Symbol, Ubyte, Ulong, message, section
from peer import Session, queue, sections
from suite import check, each, failed

DATA = section(0x75, b"body")
VALUE = section(0x77, "body")
SEQUENCE = section(0x76, [1, "two"])
HEADER = section(0x70, [True, Ubyte(5)])
DELIVERY = section(0x71, {Symbol("x-delivery"): 1})
MESSAGE = section(0x72, {Symbol("x-message"): 1})
PROPERTIES = section(0x73, ["id"])
APPLICATION = section(0x74, {"key": "value"})
FOOTER = section(0x78, {Symbol("x-footer"): 1})
LIST8 = b"\xc0\x01\x00"


def round_trip(payload):
    """Publishes a message and returns it as it is delivered: descriptor -> value."""
    address = queue()
    with Session() as peer:
        peer.sender(address)
        peer.transfer(payload, 0)
        peer.expect("disposition", state=ACCEPTED)
        peer.receiver(address, handle=1, credit=1)
        return sections(peer.expect("transfer").payload)


@each(
    data=DATA, value=VALUE, sequence=SEQUENCE, data_twice=DATA * 2, sequence_twice=SEQUENCE * 2, empty_data=section(0x75, b""),
    empty_sequence=section(0x76, []), null_value=section(0x77, None), all=HEADER + DELIVERY + MESSAGE + PROPERTIES + APPLICATION + DATA + FOOTER,
    header=HEADER + DATA, delivery_annotations=DELIVERY + DATA, message_annotations=MESSAGE + DATA, properties=PROPERTIES + DATA,
    application_properties=APPLICATION + DATA, footer=DATA + FOOTER, empty_header=section(0x70, []) + DATA, empty_properties=section(0x73, []) + DATA,
    list0_header=b"\x00\x53\x70\x45" + DATA, list8_properties=b"\x00\x53\x73" + LIST8 + DATA, empty_maps=section(0x72, {}) + section(0x74, {}) + DATA,
    symbolic_descriptor=codec.encode(Described("amqp:data:binary", b"body")), long_descriptor=b"\x00\x80\0\0\0\0\0\0\0\x75\xa0\x04body",
    data32=b"\x00\x53\x75\xb0\0\0\0\x04body",
)
def message_is_accepted_with(payload):
    received = round_trip(payload)
    sent = sections(payload)
    for code in (0x75, 0x76, 0x77):
        assert received.get(code) == sent.get(code), received


@each(
    order=DATA + PROPERTIES, header_last=DATA + HEADER, properties_before_header=PROPERTIES + HEADER + DATA,
    application_before_properties=APPLICATION + PROPERTIES + DATA, footer_first=FOOTER + DATA, header_twice=HEADER * 2 + DATA,
    properties_twice=PROPERTIES * 2 + DATA, data_and_value=DATA + VALUE, value_twice=VALUE * 2, data_and_sequence=DATA + SEQUENCE,
    unknown_section=section(0x79, b"x") + DATA, header_is_a_map=section(0x70, {}) + DATA, properties_are_text=section(0x73, "p") + DATA,
    data_is_text=section(0x75, "text"), data_is_null=section(0x75, None), sequence_is_a_map=section(0x76, {}),
    application_is_a_list=section(0x74, []) + DATA, annotations_are_a_list=section(0x72, []) + DATA, not_described=b"\xa0\x04body",
    truncated=DATA[:-1], trailing_byte=DATA + b"\x00", odd_map=b"\x00\x53\x74\xc1\x04\x01\xa1\x01a" + DATA, wrong_size=b"\x00\x53\x75\xa0\x09body",
    header_has_too_many_fields=section(0x70, [None] * 6) + DATA, durable_is_text=section(0x70, ["yes"]) + DATA, ttl_is_text=section(0x70, [None, None, "1"]) + DATA,
    priority_is_a_uint=section(0x70, [None, 5]) + DATA, to_is_a_number=section(0x73, [None, None, 5]) + DATA,
    content_type_is_text=section(0x73, [None] * 6 + ["text/plain"]) + DATA,
    creation_time_is_a_uint=section(0x73, [None] * 8 + [5]) + DATA, properties_have_too_many_fields=section(0x73, [None] * 14) + DATA,
    annotation_key_is_text=section(0x72, {"x-key": 1}) + DATA,
    annotation_key_is_a_number=section(0x72, {5: 1}) + DATA, annotation_key_is_reserved=section(0x72, {Ulong(5): 1}) + DATA,
    delivery_annotation_key_is_text=section(0x71, {"x-key": 1}) + DATA,
)
def message_is_undecodable_with(payload):
    address = queue()
    with Session() as peer:
        peer.sender(address)
        peer.transfer(payload, 0)
        assert failed(peer, "amqp:decode-error").kind == "detach"
        peer.is_alive()


@each(
    message_id_is_a_list=section(0x73, [[]]) + DATA, application_key_is_a_symbol=section(0x74, {Symbol("key"): "value"}) + DATA,
    application_key_is_a_number=section(0x74, {5: "value"}) + DATA, application_value_is_a_list=section(0x74, {"key": []}) + DATA,
    application_value_is_a_map=section(0x74, {"key": {}}) + DATA, footer_key_is_text=DATA + section(0x78, {"key": 1}),
)
def message_is_accepted_beyond_the_standard_with(payload):
    """Sections 3.2.4, 3.2.5 and 3.2.10 restrict these types; RabbitMQ passes them on."""
    assert round_trip(payload)[0x75] == b"body"


@each(
    null=b"\x40", true=b"\x41", false=b"\x42", boolean_true=b"\x56\x01", boolean_false=b"\x56\x00", ubyte=b"\x50\xff", ushort=b"\x60\xff\xff",
    uint=b"\x70\xff\xff\xff\xff", smalluint=b"\x52\xff", uint0=b"\x43", ulong=b"\x80" + b"\xff" * 8, smallulong=b"\x53\xff", ulong0=b"\x44", byte=b"\x51\x80",
    short=b"\x61\x80\x00", int=b"\x71\x80\0\0\0", smallint=b"\x54\x80", long=b"\x81\x80" + bytes(7), smalllong=b"\x55\x80", float=b"\x72\x3f\x80\0\0",
    double=b"\x82\x3f\xf0" + bytes(6), char=b"\x73\0\1\xf6\0", timestamp=b"\x83\0\0\1\x8b\xcf\xe5\x68\0", uuid=b"\x98" + bytes(range(16)),
    binary=b"\xa0\x03\0\1\2", binary32=b"\xb0\0\0\0\3\0\1\2", string="\u00e4\U0001f600", string32=b"\xb1\0\0\0\1a", symbol=b"\xa3\3sym",
    symbol32=b"\xb3\0\0\0\3sym", list0=b"\x45", list8=b"\xc0\3\2\x40\x41", list32=b"\xd0\0\0\0\6\0\0\0\2\x40\x41", map8=b"\xc1\5\2\xa1\1a\x40",
    map32=b"\xd1\0\0\0\x08\0\0\0\2\xa1\1a\x40", decimal32=b"\x74\x22\x50\0\1", decimal64=b"\x84" + bytes(8), decimal128=b"\x94" + bytes(16),
    array8=b"\xe0\4\2\x50\1\2", array32=b"\xf0\0\0\0\7\0\0\0\2\x50\1\2", empty_array=b"\xe0\2\0\x50", array_of_strings=b"\xe0\6\2\xa1\1a\1b",
    array_of_arrays=b"\xe0\x0b\2\xe0\4\2\x50\1\2\3\1\x50\3", nested_list=b"\xc0\5\1\xc0\2\1\x45", described=b"\x00\xa3\1x\xa1\1a",
    described_by_a_number=b"\x00\x53\x99\x41", nan=b"\x82\x7f\xf8" + bytes(6), array_of_booleans=b"\xe0\4\2\x56\1\0", large_char=b"\x73\0\x10\xff\xff",
)
def value_is_delivered_as_sent(value):
    body = codec.encode(value) if isinstance(value, str) else value
    address = queue()
    with Session() as peer:
        peer.sender(address)
        peer.transfer(b"\x00\x53\x77" + body, 0)
        peer.expect("disposition", state=ACCEPTED)
        peer.receiver(address, handle=1, credit=1)
        payload = peer.expect("transfer").payload
        assert payload.endswith(b"\x00\x53\x77" + body), payload


@each(
    unknown_constructor=b"\x3f", boolean_is_two=b"\x56\x02", surrogate=b"\x73\0\0\xd8\0", char_beyond_unicode=b"\x73\0\x11\0\0", string_is_not_utf8=b"\xa1\1\xff",
    symbol_is_not_ascii=b"\xa3\1\xe4", list_count_too_large=b"\xc0\2\3\x40", list_of_2_32=b"\xd0\xff\xff\xff\xff\xff\xff\xff\xff",
    string_of_2_32=b"\xb1\xff\xff\xff\xff", array_of_2_32=b"\xf0\0\0\0\5\xff\xff\xff\xff\x40", array_of_nulls=b"\xf0\0\0\0\5\0\xff\xff\xff\x40",
    map_with_an_odd_count=b"\xc1\4\1\xa1\1a", deep=b"\x00\x53\x01" * 200 + b"\x40", array_without_a_constructor=b"\xe0\1\0", described_array_ends_early=b"\xe0\3\1\x00\x53",
)
def value_is_undecodable(value):
    address = queue()
    with Session() as peer:
        peer.sender(address)
        peer.transfer(b"\x00\x53\x77" + value, 0)
        assert failed(peer, "amqp:decode-error").kind == "detach"
        peer.is_alive()


APPLICATION_VALUES = {
    "null": b"\x40", "boolean": b"\x41", "ubyte": b"\x50\xff", "ushort": b"\x60\xff\xff", "uint": b"\x70\xff\xff\xff\xff", "ulong": b"\x80\x7f" + b"\xff" * 7,
    "byte": b"\x51\x80", "short": b"\x61\x80\x00", "int": b"\x71\x80\0\0\0", "long": b"\x81\x80" + bytes(7), "float": b"\x72\x3f\x80\0\0",
    "double": b"\x82\x3f\xf0" + bytes(6), "char": b"\x73\0\0\0\x61", "timestamp": b"\x83\0\0\1\x8b\xcf\xe5\x68\0", "uuid": b"\x98" + bytes(range(16)),
    "binary": b"\xa0\x03\0\1\2", "string": b"\xa1\1a", "symbol": b"\xa3\1a",
}


@each(**APPLICATION_VALUES)
def application_property_is_delivered_as_sent(value):
    received = round_trip(section(0x74, {"key": Raw(value)}) + DATA)
    assert received[0x74] == {"key": codec.Reader(value).value()}, received


@each(
    ulong=(0, Ulong(2**63)), uuid=(0, Raw(b"\x98" + bytes(16))), binary=(0, b"\xff\x00"), string=(0, "i" * 1000), correlation_binary=(5, b"c"), correlation_ulong=(5, Ulong(5)),
    to=(2, "anywhere"), subject=(3, "s\u00e4"), reply_to=(4, "/queues/r"), content_type=(6, Symbol("text/plain")), content_encoding=(7, Symbol("gzip")),
    expiry=(8, Raw(b"\x83\0\0\1\x8b\xcf\xe5\x68\0")), creation=(9, Raw(b"\x83\0\0\1\x8b\xcf\xe5\x68\0")), group_id=(10, "g"), group_sequence=(11, 2**32 - 1), reply_to_group=(12, "r"),
)
def property_is_delivered_as_sent(case):
    index, value = case
    received = round_trip(section(0x73, [None] * index + [value]) + DATA)
    assert received[0x73][index] == codec.Reader(codec.encode(value)).value(), received


@each(x_own={Symbol("x-own"): "v"}, x_opt={Symbol("x-opt-own"): 5}, nested={Symbol("x-list"): [1, [2]]})
def annotation_is_delivered_as_sent(annotations):
    received = round_trip(section(0x72, annotations) + DATA)
    for key, value in annotations.items():
        assert received[0x72][key] == value, received


@check
def trace_context_is_delivered_as_sent():
    """The W3C trace context for AMQP has annotations whose keys do not begin with x-, which section 3.2.10 reserves."""
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    received = round_trip(section(0x72, {Symbol("traceparent"): parent}) + DATA)
    assert received[0x72]["traceparent"] == parent, received


@check
def delivery_annotations_are_not_passed_on():
    assert 0x71 not in round_trip(DELIVERY + DATA)


@each(zero=0, one=1, four=4, nine=9, most=255)
def priority_is_delivered(priority):
    header = round_trip(section(0x70, [None, Ubyte(priority)]) + DATA)[0x70]
    assert header[1] == priority or (priority == 4 and header[1] is None), header


@each(durable=[True], not_durable=[False], absent=[])
def durability_is_delivered(header):
    received = round_trip(section(0x70, header) + DATA)[0x70]
    assert bool(received[0]) == bool(header and header[0]), received


@check
def expired_message_is_not_delivered():
    address = queue()
    with Session() as peer:
        peer.sender(address)
        peer.transfer(section(0x70, [None, None, 0]) + DATA, 0)
        peer.expect("disposition", state=ACCEPTED)
        peer.transfer(message(b"second"), 1)
        peer.expect("disposition", state=ACCEPTED)
        peer.receiver(address, handle=1, credit=1)
        assert peer.expect("transfer").payload.endswith(b"second")


@each(largest=2**32 - 1, one_day=86_400_000)
def time_to_live_is_accepted(ttl):
    assert round_trip(section(0x70, [None, None, ttl]) + DATA)[0x75] == b"body"


@check
def first_acquirer_and_delivery_count_of_a_publisher_are_not_passed_on():
    received = round_trip(section(0x70, [None, None, None, False, 9]) + DATA)[0x70]
    assert received[3] is True and (len(received) < 5 or not received[4]), received
