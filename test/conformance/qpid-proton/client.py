"""A blocking client for the scenario: management, links, and what a peer says about a link."""

import itertools

import checks
from proton import Data, Delivery, Described, Endpoint, Link, LinkException, Message, symbol, ulong
from proton.reactor import LinkOption
from proton.utils import BlockingConnection, LinkDetached

ADDRESS = "127.0.0.1:5672"
KINDS = ["classic", "quorum"]
_numbers = itertools.count()


class Null:
    """The body of a request that has none. Proton itself omits the section of a body that is None."""


Data.put_mappings[Null] = lambda data, _: data.put_null()


class SessionEnded(Exception):
    """The peer ended a session, which Proton's own blocking connection ignores."""


class Connection(BlockingConnection):
    def on_session_remote_close(self, event):
        if event.session.state & Endpoint.LOCAL_ACTIVE and not self.closing:
            event.session.close()
            raise SessionEnded(str(event.session.remote_condition))


def fresh(prefix):
    """A name that this run has not used."""
    return f"{prefix}-{next(_numbers)}"


class Options(LinkOption):
    """Sets fields of a link before its attach."""

    def __init__(self, configure):
        self.configure = configure

    def apply(self, link):
        self.configure(link)


class Client:
    def __init__(self, user="guest", password=None, **options):
        self.connection = Connection(
            ADDRESS, timeout=checks.PATIENCE / 2, user=user, password=password or user,
            allowed_mechs="PLAIN", allow_insecure_mechs=True, **options)
        self._management = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # A refused connection is closed already.
        if self.connection.conn is not None:
            self.connection.close()

    # Management.

    def request(self, method, path, body=None):
        """Sends a request to the management node; returns status and body."""
        if self._management is None:
            def pair(link):
                link.properties = {symbol("paired"): True}
                link.snd_settle_mode = Link.SND_SETTLED
                terminus = link.source if link.is_sender else link.target
                terminus.address = "me"
            name = fresh("management")
            sender = self.connection.create_sender("/management", name=name, options=Options(pair))
            receiver = self.connection.create_receiver("/management", name=name, credit=10, options=Options(pair))
            self._management = sender, receiver
        sender, receiver = self._management
        number = ulong(next(_numbers))
        delivery = sender.link.send(Message(
            id=number, address=path, subject=method, reply_to="$me",
            body=Null() if body is None else body, inferred=False))
        delivery.settle()
        response = receiver.receive()
        receiver.link.flow(1)
        assert response.correlation_id == number, response
        return int(response.subject), response.body

    def call(self, status, method, path, body=None):
        got, answer = self.request(method, path, body)
        assert got == status, f"{method} {path}: {got} {answer}"
        return answer

    def queue(self, kind="classic", **arguments):
        """Declares a queue; returns its address."""
        name = fresh(kind)
        arguments = {key.replace("_", "-"): value for key, value in arguments.items()}
        arguments["x-queue-type"] = kind
        self.call(201, "PUT", f"/queues/{name}", {"arguments": arguments})
        return f"/queues/{name}"

    def exchange(self, kind):
        name = fresh(kind)
        self.call(204, "PUT", f"/exchanges/{name}", {"type": kind})
        return name

    def bind(self, exchange, queue, key="", arguments=None):
        self.call(204, "POST", "/bindings", {
            "source": exchange, "destination_queue": queue.rsplit("/", 1)[1], "binding_key": key,
            "arguments": arguments or {}})

    def count(self, queue):
        return self.call(200, "GET", queue)["message_count"]

    # Links.

    def sender(self, address, configure=lambda link: None, name=None, **options):
        # Proton's own names are not unique for an address.
        return self.connection.create_sender(address, name=name or fresh("sender"), options=Options(configure), **options)

    def receiver(self, address, credit=10, configure=lambda link: None, name=None, **options):
        # With credit of the blocking connection, a flow controller would renew it.
        receiver = self.connection.create_receiver(
            address, credit=False, name=name or fresh("receiver"), options=Options(configure), **options)
        receiver.link.flow(int(credit))
        return receiver

    def wait(self, condition, message="a condition"):
        self.connection.wait(condition, msg=message)

    def send(self, address, *bodies, **properties):
        """Sends messages on a link of their own; each must be accepted."""
        sender = self.sender(address)
        for body in bodies:
            assert outcome(sender, Message(body=body, **properties)).remote_state == Delivery.ACCEPTED
        sender.close()

    def take(self, address, count=1):
        """Receives and accepts so many messages."""
        receiver = self.receiver(address, credit=count)
        messages = []
        for _ in range(count):
            message = receiver.receive()
            if isinstance(message.body, memoryview):
                # The memory belongs to the message.
                message.body = bytes(message.body)
            messages.append(message)
            receiver.accept()
        self.settled(receiver)
        receiver.close()
        return messages

    def settled(self, receiver):
        """Waits until the node has settled the deliveries of a link, which a request on the same connection proves."""
        self.call(200, "GET", receiver.link.remote_source.address)


def outcome(sender, message):
    """The delivery of a message after its outcome, whichever it is."""
    return sender.send(message, error_states=[])


def expect_detached(condition, action):
    """Runs an action, during which the peer must detach a link with this condition."""
    try:
        action()
    except LinkDetached as error:
        assert error.condition == condition, f"{error.condition}: {error}"
    else:
        raise AssertionError(f"not detached; expected {condition}")


def expect_link_error(create, condition):
    """A link that the peer refuses: it attaches without terminus and detaches with the condition."""
    try:
        create()
    except LinkDetached as error:
        assert error.condition == condition, f"{error.condition}: {error}"
    else:
        raise AssertionError(f"attached; expected {condition}")


__all__ = ["ADDRESS", "KINDS", "Client", "Delivery", "Described", "Endpoint", "Link", "Message", "Options",
           "Null", "expect_detached", "expect_link_error", "fresh", "outcome", "symbol", "ulong"]
