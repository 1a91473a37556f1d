"""The management node: requests and answers of RabbitMQ's HTTP over AMQP."""

import codec
from codec import Array, Described, Raw, Symbol, Ubyte, Ulong, section
from peer import RECEIVER, SENDER, Manager, Session, fresh, publish, queue, sections
from suite import check, each

QUEUE = "/queues/{}"
EXCHANGE = "/exchanges/{}"


@each(
    classic=("201", {"durable": True, "arguments": {"x-queue-type": "classic"}}),
    quorum=("201", {"durable": True, "arguments": {"x-queue-type": "quorum"}}),
    stream=("201", {"durable": True, "arguments": {"x-queue-type": "stream"}}),
    defaults=("201", {}),
    arguments_alone=("201", {"arguments": {"x-expires": 60_000}}),
    auto_delete=("201", {"auto_delete": True, "durable": False, "exclusive": True}),
    exclusive_durable=("201", {"exclusive": True, "durable": True}),
    unknown_argument=("201", {"arguments": {"x-unknown": True}}),
    unknown_type=("409", {"durable": True, "arguments": {"x-queue-type": "unknown"}}),
    type_of_type=("409", {"durable": True, "arguments": {"x-queue-type": 5}}),
    negative_limit=("409", {"durable": True, "arguments": {"x-max-length": Raw(b"\x54\xff")}}),
    limit_is_text=("409", {"durable": True, "arguments": {"x-max-length": "many"}}),
    quorum_not_durable=("400", {"durable": False, "arguments": {"x-queue-type": "quorum"}}),
    quorum_exclusive=("400", {"exclusive": True, "durable": True, "arguments": {"x-queue-type": "quorum"}}),
    durable_is_text=("400", {"durable": "yes"}),
    unknown_key=("400", {"unknown": True}),
    arguments_are_a_list=("400", {"arguments": []}),
    body_is_a_list=("400", []),
    body_is_null=("400", None),
    body_is_text=("400", "body"),
)
def declaring_a_queue(case):
    status, body = case
    with Manager() as manager:
        manager.must(status, "PUT", QUEUE.format(fresh("frames10")), body)


@each(
    no_name="/queues/", reserved="/queues/amq.frames10", not_encoded="/queues/%zz", two_parts="/queues/a/b", half_encoded="/queues/a%2",
    line_feed="/queues/a%0Ab", carriage_return="/queues/a%0Db", too_long="/queues/" + "q" * 256, not_utf8="/queues/%ff",
)
def declaring_a_queue_with_a_wrong_name(path):
    statuses = {"/queues/amq.frames10": "403", "/queues/a/b": "404"}
    with Manager() as manager:
        manager.must(statuses.get(path, "400"), "PUT", path, {})


@each(slash="a%2Fb", space="a%20b", unicode="%C3%A4", plus="a+b", question="a%3Fb", raw_space="a b", percent="a%25b")
def name_of_a_queue_is_percent_encoded(name):
    name = f"{fresh('frames10')}{name}"
    with Manager() as manager:
        body = manager.must(201, "PUT", QUEUE.format(name), {})
        assert body["name"] and body["message_count"] == 0, body
        manager.must(200, "GET", QUEUE.format(name))
        manager.must(200, "DELETE", QUEUE.format(name))


@check
def declaring_a_queue_again():
    path = QUEUE.format(fresh("frames10"))
    with Manager() as manager:
        body = manager.must(201, "PUT", path, {"durable": True})
        assert body["durable"] is True and body["exclusive"] is False and body["auto_delete"] is False, body
        assert body["vhost"] == "/" and body["type"] == "classic" and body["consumer_count"] == 0, body
        manager.must(200, "PUT", path, {"durable": True})
        manager.must(409, "PUT", path, {"durable": True, "auto_delete": True})
        manager.must(409, "PUT", path, {"durable": True, "arguments": {"x-max-length": 5}})


@check
def answer_about_a_queue():
    path = queue("quorum", b"a", b"b")
    with Manager() as manager:
        body = manager.must(200, "GET", path)
        assert body["message_count"] == 2 and body["type"] == "quorum" and body["leader"] and len(body["replicas"]) == 1, body
        assert body["arguments"]["x-queue-type"] == "quorum", body


@each(
    get=("GET", "/queues/missing"), delete=("DELETE", "/queues/missing"), purge=("DELETE", "/queues/missing/messages"),
    exchange_delete=("DELETE", "/exchanges/missing"), get_exchange=("GET", "/exchanges/amq.direct"),
    unknown_path=("GET", "/unknown"), root=("GET", "/"), empty=("GET", ""), no_slash=("GET", "queues/q"), post_queue=("POST", "/queues/q"),
    unknown_method=("PATCH", "/queues/q"), lower_case=("get", "/queues/missing"), queues=("GET", "/queues"), consumers=("GET", "/queues/q/consumers"),
    version=("GET", "/v2/queues/q"), query=("GET", "/queues/missing?a=b"), bindings_without_query=("GET", "/bindings"),
)
def request_for_something_missing(case):
    method, path = case
    statuses = {
        ("DELETE", "/queues/missing"): "200", ("DELETE", "/exchanges/missing"): "204", ("GET", "/bindings"): "400",
        ("GET", "/queues/missing?a=b"): "404",
    }
    with Manager() as manager:
        manager.must(statuses.get(case, "404"), method, path)


@each(no_method=(None, "/queues/q"), no_path=("GET", None))
def request_without_a(case):
    with Manager() as manager:
        method, path = case
        manager.must(400, method, path)


@check
def request_without_properties():
    with Manager() as manager:
        manager.transfer(section(0x77, None), 0, settled=True)
        assert sections(manager.expect("transfer").payload)[0x73][3] == "400"


@check
def request_without_a_body():
    with Manager() as manager:
        manager.must(404, "GET", "/queues/missing", encoded=b"")


@check
def request_whose_body_is_data():
    with Manager() as manager:
        manager.must(400, "GET", "/queues/missing", encoded=section(0x75, b"{}"))


@check
def answer_to_a_request_without_an_id():
    with Manager() as manager:
        manager.must(404, "GET", "/queues/missing", message_id=None)


@each(no_reply_to=None, other_reply_to="/queues/q")
def reply_to_of_a_request_must_be_me(reply_to):
    with Manager() as manager:
        manager.must(400, "GET", "/queues/missing", reply_to=reply_to)


@each(
    ulong=Ulong(2**40), uuid=Raw(b"\x98" + bytes(range(16))), binary=b"\x00\xff", text="an id", long_text="i" * 300, zero=Ulong(0),
)
def answer_has_the_id_of_the_request(value):
    with Manager() as manager:
        properties = section(0x73, [value, None, "/queues/missing", "GET", "$me"])
        manager.transfer(properties + section(0x77, None), 0, settled=True)
        answer = sections(manager.expect("transfer").payload)
        wanted = codec.Reader(codec.encode(value)).value()
        assert answer[0x73][5] == wanted and answer[0x73][3] == "404", answer
        assert answer[0x74]["http:response"] == "1.1", answer


@check
def requests_are_answered_in_order():
    with Manager() as manager:
        for number in range(5):
            properties = section(0x73, [Ulong(number), None, "/queues/missing", "GET", "$me"])
            manager.transfer(properties + section(0x77, None), number, settled=True)
        for number in range(5):
            assert sections(manager.expect("transfer").payload)[0x73][5] == number


@check
def unsettled_request_is_answered():
    with Manager() as manager:
        manager.transfer(section(0x73, ["id", None, "/queues/missing", "GET", "$me"]) + section(0x77, None), 0)
        assert sections(manager.expect("transfer").payload)[0x73][3] == "404"


@check
def request_in_several_transfers():
    request = section(0x73, ["id", None, "/queues/missing", "GET", "$me"]) + section(0x77, None)
    with Manager() as manager:
        manager.transfer(request[:9], 0, settled=True, more=True)
        manager.transfer(request[9:20], 0, settled=True, more=True)
        manager.transfer(request[20:], 0, settled=True)
        assert sections(manager.expect("transfer").payload)[0x73][3] == "404"


@check
def answers_wait_for_credit():
    pair = {"name": "pair", "properties": {Symbol("paired"): True}, "snd_settle_mode": Ubyte(1)}
    with Session() as peer:
        peer.sender("/management", **pair)
        peer.receiver("/management", handle=1, **pair)
        peer.transfer(section(0x73, ["id", None, "/queues/missing", "GET", "$me"]) + section(0x77, None), 0, settled=True)
        peer.is_alive()
        peer.credit(1, handle=1)
        assert sections(peer.expect("transfer").payload)[0x73][3] == "404"


# Exchanges.


@each(
    defaults=("204", {}),
    fanout=("204", {"type": "fanout", "durable": True}),
    headers=("204", {"type": "headers"}),
    internal=("204", {"type": "direct", "internal": True}),
    not_durable=("204", {"durable": False, "auto_delete": True}),
    arguments=("204", {"arguments": {"alternate-exchange": "amq.fanout"}}),
    unknown_type=("400", {"type": "unknown"}),
    type_is_a_number=("400", {"type": 5}),
    unknown_key=("400", {"unknown": 5}),
    alternate_is_a_number=("400", {"arguments": {"alternate-exchange": 5}}),
    body_is_a_list=("400", []),
)
def declaring_an_exchange(case):
    status, body = case
    with Manager() as manager:
        manager.must(status, "PUT", EXCHANGE.format(fresh("frames10")), body)


@each(default="/exchanges/amq.default", reserved="/exchanges/amq.frames10", no_name="/exchanges/", not_encoded="/exchanges/%z", line_feed="/exchanges/a%0A")
def declaring_an_exchange_with_a_wrong_name(path):
    statuses = {"/exchanges/amq.frames10": "403", "/exchanges/amq.default": "403", "/exchanges/": "403"}
    with Manager() as manager:
        manager.must(statuses.get(path, "400"), "PUT", path, {})


@check
def declaring_an_exchange_again():
    path = EXCHANGE.format(fresh("frames10"))
    with Manager() as manager:
        manager.must(204, "PUT", path, {"type": "direct"})
        manager.must(204, "PUT", path, {"type": "direct"})
        manager.must(409, "PUT", path, {"type": "fanout"})
        manager.must(204, "DELETE", path)
        manager.must(204, "DELETE", path)


@each(predeclared="/exchanges/amq.direct", default="/exchanges/amq.default")
def deleting_an_exchange_of_the_server(path):
    with Manager() as manager:
        manager.must(403, "DELETE", path)


# Purge and delete.


@each(classic="classic", quorum="quorum")
def purging_a_queue(kind):
    path = queue(kind, b"a", b"b")
    with Manager() as manager:
        assert manager.must(200, "DELETE", f"{path}/messages") == {"message_count": 2}
        assert manager.must(200, "DELETE", f"{path}/messages") == {"message_count": 0}


@check
def purging_a_stream():
    path = queue("stream", b"a")
    with Manager() as manager:
        manager.must(400, "DELETE", f"{path}/messages")


@each(classic="classic", quorum="quorum", stream="stream")
def deleting_a_queue(kind):
    path = queue(kind, b"a")
    with Manager() as manager:
        body = manager.must(200, "DELETE", path)
        assert body == {"message_count": 0 if kind == "stream" else 1}, body
        manager.must(404, "GET", path)
        assert manager.must(200, "DELETE", path) == {"message_count": 0}


@check
def deleting_an_exclusive_queue_of_another_connection():
    path = QUEUE.format(fresh("frames10"))
    with Manager() as owner, Manager() as other:
        owner.must(201, "PUT", path, {"exclusive": True, "durable": False})
        for method, target in (("DELETE", path), ("DELETE", f"{path}/messages"), ("PUT", path)):
            status, _ = other.request(method, target, {"exclusive": True, "durable": False} if method == "PUT" else None)
            assert status == "400", status
        other.refused(RECEIVER, None, path, "me", handle=5)


# Bindings.


def bind(source, destination, key="k", arguments=None, **more):
    return {"source": source, "destination_queue": destination, "binding_key": key, "arguments": arguments or {}, **more}


@check
def bindings_are_added_listed_and_deleted():
    path = queue()
    name = path.removeprefix("/queues/")
    with Manager() as manager:
        manager.must(204, "POST", "/bindings", bind("amq.direct", name))
        manager.must(204, "POST", "/bindings", bind("amq.direct", name))
        listed = manager.must(200, "GET", f"/bindings?src=amq.direct&dstq={name}&key=k")
        assert len(listed) == 1 and listed[0]["destination_queue"] == name and listed[0]["binding_key"] == "k", listed
        assert listed[0]["source"] == "amq.direct" and listed[0]["arguments"] == {} and listed[0]["location"], listed
        publish("/exchanges/amq.direct/k", b"a")
        manager.must(204, "DELETE", f"/bindings/src=amq.direct;dstq={name};key=k;args=")
        manager.must(204, "DELETE", f"/bindings/src=amq.direct;dstq={name};key=k;args=")
        assert manager.must(200, "GET", f"/bindings?src=amq.direct&dstq={name}&key=k") == []
        assert manager.must(200, "GET", path)["message_count"] == 1


@check
def binding_with_arguments_has_a_location():
    name = queue().removeprefix("/queues/")
    with Manager() as manager:
        arguments = {"x-match": "all", "key": "value"}
        manager.must(204, "POST", "/bindings", bind("amq.headers", name, "", arguments))
        listed = manager.must(200, "GET", f"/bindings?src=amq.headers&dstq={name}&key=")
        assert len(listed) == 1 and listed[0]["arguments"] == arguments, listed
        manager.must(204, "DELETE", listed[0]["location"])
        assert manager.must(200, "GET", f"/bindings?src=amq.headers&dstq={name}&key=") == []


@check
def exchange_is_bound_to_an_exchange():
    name = fresh("frames10")
    with Manager() as manager:
        manager.must(204, "PUT", EXCHANGE.format(name), {"type": "fanout"})
        body = {"source": "amq.fanout", "destination_exchange": name, "binding_key": "", "arguments": {}}
        manager.must(204, "POST", "/bindings", body)
        listed = manager.must(200, "GET", f"/bindings?src=amq.fanout&dste={name}&key=")
        assert len(listed) == 1 and listed[0]["destination_exchange"] == name, listed
        manager.must(204, "DELETE", f"/bindings/src=amq.fanout;dste={name};key=;args=")


@each(
    missing_source=("400", dict(source="missing")), missing_queue=("400", dict(destination_queue="missing")), default_exchange=("403", dict(source="")),
    no_source=("400", dict(source=None)), source_is_a_number=("400", dict(source=5)), key_is_a_number=("400", dict(binding_key=5)),
    arguments_are_a_list=("400", dict(arguments=[])),
)
def wrong_binding_is_refused(case):
    status, fields = case
    name = queue().removeprefix("/queues/")
    with Manager() as manager:
        body = {key: value for key, value in {**bind("amq.direct", name), **fields}.items() if value is not None}
        manager.must(status, "POST", "/bindings", body)


@each(
    no_key="/bindings?src=amq.direct&dstq={}", no_source="/bindings?dstq={}&key=k", no_destination="/bindings?src=amq.direct&key=k",
    bad_encoding="/bindings?src=%zz&dstq={}&key=k",
)
def list_of_bindings_with_a_wrong_query(path):
    name = queue().removeprefix("/queues/")
    with Manager() as manager:
        manager.must(400, "GET", path.format(name))


@each(
    unknown_hash="/bindings/src=amq.direct;dstq={};key=k;args=zzz", no_arguments="/bindings/src=amq.direct;dstq={};key=k",
    no_segments="/bindings/x", missing_queue="/bindings/src=amq.direct;dstq=missing;key=k;args=",
)
def deleting_a_binding_with_a_wrong_path(path):
    statuses = {"/bindings/src=amq.direct;dstq={};key=k;args=zzz": "204", "/bindings/src=amq.direct;dstq=missing;key=k;args=": "204"}
    name = queue().removeprefix("/queues/")
    with Manager() as manager:
        manager.must(statuses.get(path, "400"), "DELETE", path.format(name))


@each(binary=Raw(codec.encode(b"token")), text=Raw(codec.encode("token")), null=Raw(b"\x40"))
def token_of_a_connection_without_one(body):
    with Manager() as manager:
        manager.must(400, "PUT", "/auth/tokens", body)


# The pair of links.


@each(sender=SENDER, receiver=RECEIVER)
def half_of_a_pair_is_accepted(role):
    pair = {"name": "pair", "properties": {Symbol("paired"): True}, "snd_settle_mode": Ubyte(1)}
    with Session() as peer:
        if role == SENDER:
            peer.sender("/management", **pair)
        else:
            peer.receiver("/management", credit=1, **pair)
        peer.is_alive()


@each(paired_is_text={Symbol("paired"): "true"}, no_properties=None)
def wrong_receiver_of_a_pair_is_refused(properties):
    with Session() as peer:
        peer.refused(RECEIVER, "amqp:invalid-field", "/management", "me", name="pair", properties=properties, snd_settle_mode=Ubyte(1))


@each(unsettled=Ubyte(0), mixed=Ubyte(2))
def receiver_of_a_pair_is_settled(mode):
    with Session() as peer:
        attach = peer.receiver("/management", name="pair", properties={Symbol("paired"): True}, snd_settle_mode=mode)
        assert attach.snd_settle_mode == 1


@check
def session_has_two_pairs():
    pair = {"name": "other", "properties": {Symbol("paired"): True}, "snd_settle_mode": Ubyte(1)}
    with Manager() as manager:
        manager.attach(SENDER, "me", "/management", handle=5, **pair)
        assert manager.expect("attach").target.address == "/management"
        manager.is_alive()


@check
def dynamic_and_described_values_in_a_request():
    path = QUEUE.format(fresh("frames10"))
    with Manager() as manager:
        manager.must(400, "PUT", path, {"durable": Described("x:bool", True)})
        manager.must(409, "PUT", path, {"arguments": {"x-queue-type": Array(["classic"])}})
