"""Addresses of version 2, and permissions."""

import codec
from codec import ACCEPTED, RELEASED, Raw, Symbol, Ubyte, composite, encode, message
from peer import RECEIVER, SENDER, Manager, Peer, Session, fresh, publish, queue, user
from suite import check, each, failed


@each(
    slash=("a/b", "a%2Fb"), space=("a b", "a%20b"), percent=("a%b", "a%25b"), unicode=("\u00e4", "%C3%A4"), unicode_lower=("\u00e4", "%c3%a4"), plain_unicode=("\u00e4", "\u00e4"),
    dot=("a.b", "a%2Eb"), letter=("ab", "%61b"), question=("a?b", "a%3Fb"), plus=("a+b", "a+b"), tilde=("a~b", "a~b"), colon=("a:b", "a:b"), semicolon=("a;b=c", "a%3Bb%3Dc"),
    plain_question=("a?b", "a?b"), hash=("a#b", "a%23b"), emoji=("\U0001f600", "%F0%9F%98%80"),
)
def address_of_a_queue_is_decoded(case):
    name, encoded = case
    prefix = fresh("frames10")
    quoted = prefix + "".join(f"%{byte:02X}" for byte in name.encode())
    queue(name=quoted)
    with Session() as peer:
        peer.sender(f"/queues/{prefix}{encoded}")
        peer.transfer(message(), 0)
        peer.expect("disposition", state=ACCEPTED)
        peer.receiver(f"/queues/{quoted}", handle=1, credit=1)
        assert peer.expect("transfer").payload.endswith(b"body")


@each(
    slash=("a/b", "a%2Fb"), empty=("", ""), space=("a b", "a%20b"), dots=("a.b", "a.b"), wildcard=("*", "%2A"), hash=("#", "%23"), long=("k" * 255, "k" * 255),
)
def routing_key_is_decoded(case):
    key, encoded = case
    name = queue().removeprefix("/queues/")
    exchange = fresh("exchange")
    with Manager() as manager:
        manager.must(204, "PUT", f"/exchanges/{exchange}", {"type": "direct"})
        manager.must(204, "POST", "/bindings", {"source": exchange, "destination_queue": name, "binding_key": key, "arguments": {}})
        manager.sender(f"/exchanges/{exchange}/{encoded}" if encoded else f"/exchanges/{exchange}", handle=5)
        manager.transfer(message(), manager.requests, handle=5)
        manager.expect("disposition", state=ACCEPTED)


@each(
    trailing_slash="/queues/{}/", more_parts="/queues/{}/more", no_leading_slash="queues/{}", capital="/Queues/{}", version_1_exchange="/exchange/amq.direct/k",
    version_1_amq_queue="/amq/queue/{}", topic="/topic/a", half_encoded="/queues/{}%2", not_hexadecimal="/queues/{}%xy", scheme="amqp://localhost/queues/{}",
    not_utf8="/queues/%ff%fe", query="/exchanges/amq.direct/k/?x", only_slashes="///", reply_to="/queues/amq.rabbitmq.reply-to",
)
def target_is_not_an_address(address):
    name = queue().removeprefix("/queues/")
    with Session() as peer:
        peer.refused(SENDER, "amqp:not-found" if "reply-to" in address else "amqp:invalid-field", "me", address.format(name))


@each(symbol=Symbol("/queues/{}"), binary=b"/queues/q", ulong=codec.Ulong(5), list=["/queues/q"], map={"queue": "q"}, described=codec.Described(5, "x"))
def target_of_another_type(address):
    address = Symbol(address.format(queue().removeprefix("/queues/"))) if isinstance(address, Symbol) else address
    with Session() as peer:
        peer.refused(SENDER, "amqp:invalid-field", "me", composite("target", address=address))


@each(
    trailing_slash="/queues/{}/", no_leading_slash="queues/{}", exchange_and_key="/exchanges/amq.direct/k", half_encoded="/queues/{}%2", not_utf8="/queues/%ff",
    version_1_queue="/queue/{}", version_1_amq_queue="/amq/queue/{}", empty_name="/queues/",
)
def source_is_not_an_address(address):
    name = queue().removeprefix("/queues/")
    with Session() as peer:
        peer.refused(RECEIVER, "amqp:invalid-field", address.format(name), "me")


@each(
    queue=("/queues/{}", ACCEPTED), exchange=("/exchanges/amq.fanout", RELEASED), missing_queue=("/queues/missing", RELEASED), missing_key=("/exchanges/amq.direct/missing", RELEASED),
)
def anonymous_target_publishes_to(case):
    to, state = case
    name = queue().removeprefix("/queues/")
    with Session() as peer:
        peer.sender(composite("target"))
        peer.transfer(message(to=to.format(name)), 0)
        peer.expect("disposition", first=0, settled=True, state=state)


@each(
    empty="", slash="/", version_1="/queue/q", no_queue="/queues/", default_exchange="/exchanges/amq.default/q", too_many_parts="/exchanges/a/b/c", half_encoded="/queues/q%2",
    management="/management", number=5,
)
def anonymous_target_rejects(to):
    with Session() as peer:
        peer.sender(composite("target"))
        payload = codec.section(0x73, [None, None, to]) + codec.section(0x75, b"body")
        peer.transfer(payload, 0)
        if isinstance(to, int):
            failed(peer, "amqp:decode-error")
        else:
            state = peer.expect("disposition", first=0, settled=True).state
            assert state.descriptor == 0x25, state
        peer.is_alive()


@check
def anonymous_target_changes_per_message():
    first, second = queue(), queue("quorum")
    with Session() as peer:
        peer.sender(composite("target"))
        for number, to in enumerate((first, second, "/queues/missing", first)):
            peer.transfer(message(to=to), number)
            peer.expect("disposition", first=number, state=RELEASED if "missing" in to else ACCEPTED)


@check
def internal_exchange_is_refused():
    name = fresh("exchange")
    with Manager() as manager:
        manager.must(204, "PUT", f"/exchanges/{name}", {"internal": True})
        manager.refused(SENDER, None, "me", f"/exchanges/{name}", handle=5)


@check
def address_of_the_default_exchange_is_null():
    with Session() as peer:
        peer.refused(SENDER, None, "me", "/exchanges/%20/k")


# Permissions: an error of a permission ends the session, as in RabbitMQ.


@check
def user_without_permissions_cannot_attach_a_sender():
    address = queue()
    with Session(user()) as peer:
        peer.attach(SENDER, "me", address)
        failed(peer, "amqp:unauthorized-access")


@check
def user_without_permissions_cannot_attach_a_receiver():
    address = queue()
    with Session(user()) as peer:
        peer.attach(RECEIVER, address, "me")
        failed(peer, "amqp:unauthorized-access")


@check
def user_may_write_to_the_default_exchange_only():
    address = queue()
    with Session(user(write="^amq\\.default$")) as peer:
        peer.sender(address)
        peer.transfer(message(), 0)
        peer.expect("disposition", state=ACCEPTED)
        peer.attach(SENDER, "me", "/exchanges/amq.direct/k", handle=1)
        failed(peer, "amqp:unauthorized-access")


@check
def user_may_read_one_queue_only():
    readable, other = queue("classic", b"a"), queue()
    with Session(user(read=f"^{readable.removeprefix('/queues/')}$")) as peer:
        peer.receiver(readable, credit=1)
        peer.expect("transfer")
        peer.attach(RECEIVER, other, "me", handle=1)
        failed(peer, "amqp:unauthorized-access")


@check
def anonymous_message_without_permission():
    address = queue()
    with Session(user(write="^amq\\.direct$")) as peer:
        peer.sender(composite("target"))
        peer.transfer(message(to=address), 0)
        failed(peer, "amqp:unauthorized-access")


@each(
    declare=("PUT", "/queues/{}", {}), delete=("DELETE", "/queues/{}", None), purge=("DELETE", "/queues/{}/messages", None),
    declare_exchange=("PUT", "/exchanges/{}", {}), delete_exchange=("DELETE", "/exchanges/{}", None),
    bind=("POST", "/bindings", {"source": "amq.direct", "destination_queue": "{}", "binding_key": "k", "arguments": {}}),
    unbind=("DELETE", "/bindings/src=amq.direct;dstq={};key=k;args=", None),
)
def operation_without_permission_ends_the_session(case):
    method, path, body = case
    name = queue().removeprefix("/queues/")
    body = {key: value.format(name) if value == "{}" else value for key, value in body.items()} if body else body
    with Manager(user()) as manager:
        properties = codec.section(0x73, ["id", None, path.format(name), method, "$me"])
        manager.transfer(properties + codec.section(0x77, body), 0, settled=True)
        failed(manager, "amqp:unauthorized-access")


READABLE = "/bindings?src=amq.direct&dstq={}&key=k"


@each(
    get=("/queues/{}", {}), get_of_a_missing_queue=("/queues/missing", {}), list=(READABLE, {}), list_with_write=(READABLE, {"write": ".*"}), list_with_read=(READABLE, {"read": ".*"}),
    list_with_configure=(READABLE, {"configure": ".*"}), list_of_a_missing_exchange=("/bindings?src=missing&dstq={}&key=k", {}),
)
def reading_without_permission_ends_the_session(case):
    path, permissions = case
    name = queue().removeprefix("/queues/")
    with Manager(user(**permissions)) as manager:
        properties = codec.section(0x73, ["id", None, path.format(name), "GET", "$me"])
        manager.transfer(properties + codec.section(0x77, None), 0, settled=True)
        failed(manager, "amqp:unauthorized-access")


@each(
    get_with_read=("/queues/{}", {"read": ".*"}), get_with_write=("/queues/{}", {"write": ".*"}), get_with_configure=("/queues/{}", {"configure": ".*"}),
    list=(READABLE, {"write": ".*", "read": ".*"}),
)
def reading_with_permission(case):
    path, permissions = case
    name = queue().removeprefix("/queues/")
    with Manager(user(**permissions)) as manager:
        manager.must(200, "GET", path.format(name))


@check
def user_without_permissions_on_the_vhost_is_refused():
    with Peer() as peer:
        peer.authenticated(user())
        peer.send("open", container_id="c", hostname="vhost:other")
        _, body = peer.frame()
        if body.kind == "open":
            _, body = peer.frame()
        assert body.kind == "close" and body.error, body


@check
def dynamic_source_without_permission():
    source = composite("source", dynamic=True, capabilities=codec.Array(["temporary-queue"]))
    with Session(user()) as peer:
        peer.attach(RECEIVER, source, "me")
        failed(peer, "amqp:unauthorized-access")


# Additional routing keys and interception of headers.


@check
def additional_routing_keys():
    first, second = queue(), queue()
    keys = [second.removeprefix("/queues/")]
    with Session() as peer:
        peer.sender(first)
        peer.transfer(codec.section(0x72, {Symbol("x-cc"): keys}) + codec.section(0x75, b"body"), 0)
        peer.expect("disposition", state=ACCEPTED)
        for handle, address in enumerate((first, second), 1):
            peer.receiver(address, handle=handle, credit=1)
            assert peer.expect("transfer").payload.endswith(b"body")


@each(text="key", number=5, list_of_numbers=[5], map={"a": "b"})
def wrong_additional_routing_keys(value):
    with Session() as peer:
        peer.sender(queue())
        peer.transfer(codec.section(0x72, {Symbol("x-cc"): value}) + codec.section(0x75, b"body"), 0)
        peer.expect("disposition", first=0, state=RELEASED)


@each(paired_exchange="/exchanges/amq.direct", queue=None)
def management_properties_on_another_link(address):
    with Session() as peer:
        peer.sender(address or queue(), properties={Symbol("paired"): True}, snd_settle_mode=Ubyte(1))
        peer.is_alive()


@check
def response_names_the_address_of_the_client():
    address = queue("classic", b"a")
    with Session() as peer:
        attach = peer.receiver(address)
        assert attach.source.address == address, attach
        peer.is_alive()


@check
def address_with_many_bytes():
    with Session() as peer:
        peer.refused(SENDER, None, "me", "/queues/" + "q" * 5000)


@check
def attach_with_an_encoded_empty_source():
    address = queue()
    with Session() as peer:
        peer.raw(codec.frame(encode(composite(
            "attach", name="n", handle=0, role=SENDER, source=Raw(b"\x00\x53\x28\x45"), target=composite("target", address=address), initial_delivery_count=0))))
        assert peer.expect("attach").target.address == address


@check
def published_messages_to_a_deleted_exchange():
    name = fresh("exchange")
    with Manager() as manager:
        manager.must(204, "PUT", f"/exchanges/{name}", {})
        manager.sender(f"/exchanges/{name}/k", handle=5)
        manager.must(204, "DELETE", f"/exchanges/{name}")
        manager.transfer(message(), manager.requests, handle=5)
        failed(manager, "amqp:not-found")


@each(classic="classic", quorum="quorum", stream="stream")
def deletion_of_a_queue_detaches_its_publisher(kind):
    address = queue(kind)
    with Session() as peer, Manager() as manager:
        peer.sender(address)
        peer.transfer(message(), 0)
        peer.expect("disposition", state=ACCEPTED)
        manager.must(200, "DELETE", address)
        assert peer.expect("detach").error.condition == "amqp:resource-deleted"
        peer.is_alive()


@check
def redeclared_queue_gets_messages():
    address = queue()
    publish(address, b"a")
    with Manager() as manager:
        manager.must(200, "DELETE", address)
        manager.must(201, "PUT", address, {})
        attach = manager.receiver(address, handle=5)
        manager.credit(1, handle=5, drain=True)
        assert manager.expect("flow", handle=attach.handle).link_credit == 0
