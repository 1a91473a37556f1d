"""Filters of a source, and streams (part 3, 3.5.8, and RabbitMQ's filters)."""

import codec
from codec import Array, Described, Raw, Symbol, Ulong, composite, section
from peer import Session, fresh, publish, queue
from suite import check, each

SPEC, FILTER, UNFILTERED = "rabbitmq:stream-offset-spec", "rabbitmq:stream-filter", "rabbitmq:stream-match-unfiltered"
PROPERTIES, APPLICATION, SQL = "amqp:properties-filter", "amqp:application-properties-filter", "amqp:sql-filter"


def source(address, **filters):
    """A source with named filters. The underscores in the names stand for hyphens; RabbitMQ requires the name sql-filter."""
    return composite("source", address=address, filter={Symbol(name.replace("_", "-")): value for name, value in filters.items()})


def bodies(peer, count):
    return [peer.expect("transfer").payload.split(b"\x00\x53\x75\xa0")[-1][1:] for _ in range(count)]


@each(first="first", all_offset=Ulong(0), symbol_first=Symbol("first"))
def stream_begins_at(spec):
    address = queue("stream", b"a", b"b", b"c")
    with Session() as peer:
        attach = peer.receiver(source(address, a=Described(SPEC, spec)), credit=10)
        assert list(attach.source.filter) == ["a"], attach
        assert bodies(peer, 3) == [b"a", b"b", b"c"]
        peer.is_alive()


@check
def stream_begins_at_an_offset():
    address = queue("stream", b"a", b"b", b"c")
    with Session() as peer:
        peer.receiver(source(address, a=Described(SPEC, Ulong(2))), credit=10)
        assert bodies(peer, 1) == [b"c"]
        peer.is_alive()


@each(next="next", absent=None)
def stream_begins_with_new_messages(spec):
    address = queue("stream", b"a")
    with Session() as peer:
        peer.receiver(source(address, a=Described(SPEC, spec)) if spec else address, credit=10)
        publish(address, b"b")
        assert bodies(peer, 1) == [b"b"]


@check
def stream_begins_at_a_time():
    address = queue("stream", b"a")
    with Session() as peer:
        peer.receiver(source(address, a=Described(SPEC, Raw(b"\x83" + bytes(8)))), credit=10)
        assert bodies(peer, 1) == [b"a"]


@each(interval="1h", day="1D")
def stream_begins_at_an_interval(spec):
    address = queue("stream", b"a")
    with Session() as peer:
        peer.receiver(source(address, a=Described(SPEC, spec)), credit=10)
        assert bodies(peer, 1) == [b"a"]


@check
def delivery_of_a_stream_has_its_offset():
    address = queue("stream", b"a", b"b")
    with Session() as peer:
        peer.receiver(source(address, a=Described(SPEC, "first")), credit=10)
        for offset in range(2):
            payload = peer.expect("transfer").payload
            assert codec.encode(Symbol("x-stream-offset")) in payload, payload


@each(
    not_described="first", boolean=Described(SPEC, True), negative=Described(SPEC, Raw(b"\x55\xff")),
    list=Described(SPEC, []),
)
def offset_spec_without_effect(value):
    address = queue("stream", b"a")
    with Session() as peer:
        attach = peer.receiver(source(address, a=value))
        assert not attach.source.filter, attach
        peer.is_alive()


@each(unknown_word="middle", empty="", bad_interval="1x")
def offset_spec_is_refused(value):
    address = queue("stream", b"a")
    with Session() as peer:
        peer.refused(True, None, source(address, a=Described(SPEC, value)), "me")


@each(
    unknown=Described("example:filter", "x"), unknown_code=Described(0x9999, "x"), null=None, properties_are_text=Described(PROPERTIES, "x"),
    application_is_a_list=Described(APPLICATION, []), sql_is_a_number=Described(SQL, 5), sql_with_an_error=Described(SQL, "a = "),
    sql_is_empty=Described(SQL, ""), sql_is_unknown=Described(SQL, "FOO(a) = 1"), stream_filter_is_a_number=Described(FILTER, 5),
    unfiltered_is_text=Described(UNFILTERED, "true"), property_is_unknown=Described(PROPERTIES, {Symbol("unknown"): "x"}),
    property_key_is_text=Described(PROPERTIES, {"subject": "x"}), property_has_another_type=Described(PROPERTIES, {Symbol("group-sequence"): "x"}),
    application_key_is_a_symbol=Described(APPLICATION, {Symbol("key"): "x"}), application_value_is_a_list=Described(APPLICATION, {"key": []}),
    property_is_null=Described(PROPERTIES, {Symbol("to"): None}), properties_are_empty=Described(PROPERTIES, {}), application_is_empty=Described(APPLICATION, {}),
    too_many_fields=Described(APPLICATION, {f"key{number}": "x" for number in range(17)}),
)
def filter_without_effect(value):
    address = queue("stream", b"a")
    with Session() as peer:
        name = "sql_filter" if value and value.descriptor == SQL else "b"
        attach = peer.receiver(source(address, a=Described(SPEC, "first"), **{name: value}), credit=10)
        assert list(attach.source.filter) == ["a"], attach
        assert bodies(peer, 1) == [b"a"]


def message(body, subject=None, **application):
    return Raw(section(0x73, [None, None, None, subject]) + section(0x74, application) + section(0x75, body))


MESSAGES = (
    message(b"a", "red", color="red", size=1), message(b"b", "blue", color="blue", size=2), message(b"c", "green", color="green", size=3),
)


@each(
    subject=(PROPERTIES, {Symbol("subject"): "blue"}, [b"b"]), subject_prefix=(PROPERTIES, {Symbol("subject"): "&p:re"}, [b"a"]),
    subject_suffix=(PROPERTIES, {Symbol("subject"): "&s:e"}, [b"b"]),
    application=(APPLICATION, {"color": "green"}, [b"c"]), application_number=(APPLICATION, {"size": 2}, [b"b"]),
    application_two=(APPLICATION, {"color": "red", "size": 2}, []), application_prefix=(APPLICATION, {"color": "&p:b"}, [b"b"]),
    escaped=(APPLICATION, {"color": "&&p:b"}, []), application_missing=(APPLICATION, {"other": "x"}, []),
    sql_equal=(SQL, "color = 'red'", [b"a"]), sql_greater=(SQL, "size > 1", [b"b", b"c"]), sql_in=(SQL, "color IN ('red', 'green')", [b"a", b"c"]),
    sql_like=(SQL, "color LIKE '%e%' AND NOT size = 1", [b"b", b"c"]), sql_null=(SQL, "other IS NULL", [b"a", b"b", b"c"]),
    sql_property=(SQL, "properties.subject = 'blue'", [b"b"]), sql_arithmetic=(SQL, "size * 2 + 1 = 7", [b"c"]),
    sql_utc=(SQL, "UTC() > 5", [b"a", b"b", b"c"]),
)
def filter_selects(case):
    descriptor, value, wanted = case
    address = queue("stream", *MESSAGES)
    with Session() as peer:
        name = "sql_filter" if descriptor == SQL else "b"
        attach = peer.receiver(source(address, a=Described(SPEC, "first"), **{name: Described(descriptor, value)}), credit=10)
        assert set(attach.source.filter) == {"a", name.replace("_", "-")}, attach
        assert bodies(peer, len(wanted)) == wanted
        peer.is_alive()


@check
def filter_with_the_code_of_its_descriptor():
    address = queue("stream", *MESSAGES)
    with Session() as peer:
        attach = peer.receiver(source(address, a=Described(SPEC, "first"), sql_filter=Described(0x120, "color = 'red'")), credit=10)
        assert set(attach.source.filter) == {"a", "sql-filter"}, attach
        assert bodies(peer, 1) == [b"a"]


@each(text="f", list=["f", "g"], symbol=Symbol("f"))
def stream_filter_is_in_the_answer(value):
    address = queue("stream")
    with Session() as peer:
        attach = peer.receiver(source(address, a=Described(FILTER, value), b=Described(UNFILTERED, True)))
        assert "b" in attach.source.filter, attach


@check
def name_of_a_filter_is_free():
    address = queue("stream", *MESSAGES)
    with Session() as peer:
        attach = peer.receiver(source(address, a=Described(SPEC, "first"), other=Described(SQL, "color = 'red'")), credit=10)
        assert set(attach.source.filter) == {"a", "other"}, attach
        assert bodies(peer, 1) == [b"a"]


@each(
    classic_subject=("classic", PROPERTIES, {Symbol("subject"): "blue"}, [b"b"]), quorum_subject=("quorum", PROPERTIES, {Symbol("subject"): "blue"}, [b"b"]),
    classic_application=("classic", APPLICATION, {"color": "green"}, [b"c"]), quorum_application=("quorum", APPLICATION, {"color": "green"}, [b"c"]),
    classic_sql=("classic", SQL, "size > 1", [b"b", b"c"]), quorum_sql=("quorum", SQL, "size > 1", [b"b", b"c"]),
    classic_none=("classic", SQL, "size > 9", []), quorum_none=("quorum", SQL, "size > 9", []),
)
def filter_of_a_queue_selects(case):
    """RabbitMQ's filters have no effect on queues; ours leave the other messages to other receivers."""
    kind, descriptor, value, wanted = case
    address = queue(kind, *MESSAGES)
    with Session() as peer, Session() as other:
        # The position in a stream has no effect.
        filters = {"a": Described(SPEC, "next"), "sql_filter": Described(descriptor, value)}
        attach = peer.receiver(source(address, **filters), credit=10)
        assert list(attach.source.filter) == ["sql-filter"], attach
        assert bodies(peer, len(wanted)) == wanted
        peer.is_alive()
        other.receiver(source(address), credit=10)
        rest = [body for body in (b"a", b"b", b"c") if body not in wanted]
        assert bodies(other, len(rest)) == rest


@each(classic="classic", quorum="quorum")
def invalid_filter_of_a_queue_has_no_effect(kind):
    address = queue(kind, *MESSAGES)
    with Session() as peer:
        attach = peer.receiver(source(address, sql_filter=Described(SQL, "size ="), b=Described("example:filter", "x")), credit=10)
        assert not attach.source.filter, attach
        assert bodies(peer, 3) == [b"a", b"b", b"c"]


@each(filter_is_a_list=[], filter_is_text="x")
def filter_of_another_type(value):
    with Session() as peer:
        peer.attach(True, composite("source", address=queue("stream"), filter=value), "me")
        _, body = peer.frame()
        assert body.kind in {"end", "detach", "close"} and body.error, body


@each(outcome_accepted=Described(0x24, []), outcome_rejected=Described(0x25, []), outcome_released=Described(0x26, []))
def outcome_keeps_a_message_of_a_stream(state):
    address = queue("stream", b"a")
    with Session() as peer:
        peer.receiver(source(address, a=Described(SPEC, "first")), credit=1)
        number = peer.expect("transfer").delivery_id
        peer.send("disposition", role=True, first=number, settled=True, state=state)
        peer.receiver(source(address, a=Described(SPEC, "first")), credit=1, handle=1)
        peer.expect("transfer")


@check
def distribution_mode_of_a_stream_is_copy():
    with Session() as peer:
        assert peer.receiver(queue("stream")).source.distribution_mode == "copy"
        attach = peer.receiver(composite("source", address=queue("stream"), distribution_mode=Symbol("copy")), handle=1)
        assert attach.source.distribution_mode == "copy"
