"""kombu, and Celery on it, against Posthorn."""

import atexit
import datetime
import os
import signal
import subprocess
import sys
import tempfile
import uuid

import amqp.exceptions
import kombu
from celery import chain, group
from kombu.pools import producers

from checks import PATIENCE, Checks, cluster, node, until

checks = Checks("celery")
URL = "amqp://guest:guest@127.0.0.1:5672//"
KINDS = ("classic", "quorum")


def name(prefix):
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


def durable(kind, exchange=None, key=None):
    queue = name(kind)
    return kombu.Queue(queue, exchange or kombu.Exchange(""), key or queue, queue_arguments={"x-queue-type": kind})


def connect(url=URL):
    return kombu.Connection(url, transport_options={"confirm_publish": True})


# kombu


@checks.check
def kombu_publishes_and_consumes():
    for kind in KINDS:
        with connect() as connection:
            queue, got = durable(kind, kombu.Exchange(name("e"), "direct"), "key"), []

            def receive(body, message):
                got.append((body, message.headers["n"]))
                message.ack()

            with producers[connection].acquire(block=True) as producer:
                for n in range(50):
                    producer.publish(
                        {"number": n}, exchange=queue.exchange, routing_key="key", declare=[queue], headers={"n": n},
                        serializer="json", compression="zlib" if n % 2 else None, retry=True,
                    )
            with connection.Consumer(queue, callbacks=[receive], prefetch_count=10):
                while len(got) < 50:
                    connection.drain_events(timeout=PATIENCE)
            assert got == [({"number": n}, n) for n in range(50)]


@checks.check
def kombu_requeues_and_rejects():
    for kind in KINDS:
        with connect() as connection:
            queue = durable(kind)(connection.default_channel)
            queue.declare()
            connection.Producer().publish("once", routing_key=queue.name)
            message = until(queue.get, "the message")
            assert not message.delivery_info["redelivered"]
            message.requeue()
            message = until(queue.get, "the message again")
            assert message.delivery_info["redelivered"]
            message.reject()
            assert queue.get() is None


@checks.check
def kombu_hears_of_what_has_no_route():
    with connect() as connection:
        returned = []
        producer = connection.Producer(on_return=lambda error, exchange, key, message: returned.append((error.reply_code, key)))
        producer.publish("lost", exchange="amq.direct", routing_key="nowhere", mandatory=True)
        assert returned == [(312, "nowhere")]


@checks.check
def kombu_raises_the_errors_it_knows():
    with connect() as connection:
        for error, code, words, action in [
            (amqp.exceptions.NotFound, 404, "no queue 'missing'", lambda c: c.queue_declare("missing", passive=True)),
            (amqp.exceptions.AccessRefused, 403, "reserved prefix 'amq.*'", lambda c: c.queue_declare("amq.mine")),
            (amqp.exceptions.PreconditionFailed, 406, "inequivalent arg 'type'", lambda c: c.exchange_declare("amq.topic", "direct", durable=True, auto_delete=False)),
            (amqp.exceptions.NotFound, 404, "no exchange 'missing'", lambda c: c.basic_publish_confirm(amqp.Message(b""), "missing", "key")),
        ]:
            channel = connection.channel()
            try:
                action(channel)
                raise AssertionError(f"no error {code}")
            except error as raised:
                assert raised.reply_code == code and words in raised.reply_text, raised
        with connect() as owner:
            queue = owner.default_channel.queue_declare("", exclusive=True, durable=False).queue
            try:
                connection.channel().queue_declare(queue, passive=True)
                raise AssertionError("not locked")
            except amqp.exceptions.ResourceLocked as raised:
                assert raised.reply_code == 405, raised
        assert connection.connected


@checks.check
def kombu_binds_all_exchange_types():
    with connect() as connection:
        channel, got = connection.channel(), []
        inner = kombu.Exchange(name("inner"), "headers", channel=channel)
        outer = kombu.Exchange(name("outer"), "topic", channel=channel)
        inner.declare(), outer.declare()
        inner.bind_to(outer, routing_key="a.#")
        queue = kombu.Queue(name("q"), bindings=[
            kombu.binding(inner, arguments={"x-match": "all", "color": "blue"}),
            kombu.binding(kombu.Exchange("amq.fanout", "fanout", passive=True)),
        ])
        producer = connection.Producer()
        with connection.Consumer(queue, callbacks=[lambda body, message: (got.append(body), message.ack())]):
            producer.publish("wrong color", exchange=outer, routing_key="a.b", headers={"color": "red"})
            producer.publish("through both", exchange=outer, routing_key="a.b", headers={"color": "blue"})
            producer.publish("to all", exchange="amq.fanout", routing_key="any")
            while len(got) < 2:
                connection.drain_events(timeout=PATIENCE)
        assert got == ["through both", "to all"]


@checks.check
def kombu_has_simple_queues_and_large_bodies():
    with connect() as connection:
        simple = connection.SimpleQueue(name("simple"))
        body = os.urandom(2_000_000)
        simple.put(body, serializer="raw", content_type="application/octet-stream", content_encoding="binary")
        message = simple.get(timeout=PATIENCE)
        assert message.payload == body
        message.ack()
        assert simple.qsize() == 0
        simple.close()


@checks.check
def kombu_goes_to_the_next_address():
    with kombu.Connection(f"amqp://127.0.0.1:1//;{URL}", failover_strategy="round-robin") as connection:
        connection.ensure_connection(max_retries=3, interval_start=0.1)
        assert connection.connected
        connection.heartbeat_check()


# Celery


def application(kind, broker=URL):
    """The application of application.py with its queues of this type, as its own process would have it."""
    os.environ["QUEUE_TYPE"], os.environ["BROKER"] = kind, broker
    sys.modules.pop("application", None)
    import application as module

    return module


class Worker:
    """A worker with its pool of two processes."""

    def __init__(self, kind, broker=URL, *options):
        self.log = os.path.join(os.environ["WORK"], f"worker-{name(kind)}.log")
        environment = {**os.environ, "QUEUE_TYPE": kind, "BROKER": broker, "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-m", "celery", "-A", "application", "worker", "-l", "INFO", "-c", "2", "-n", f"{kind}@here", *options]
        with open(self.log, "wb") as output:
            self.process = subprocess.Popen(
                command, cwd=os.path.dirname(__file__), env=environment, stdout=output, stderr=subprocess.STDOUT
            )

    def ready(self):
        said = until(lambda: self.process.poll() is not None or " ready." in open(self.log, encoding="utf-8").read(), self.log)
        assert self.process.poll() is None, f"the worker ended: {said}, see {self.log}"

    def end(self):
        """As asked: it finishes what it runs."""
        self.process.send_signal(signal.SIGTERM)
        try:
            assert self.process.wait(PATIENCE) == 0, f"the worker ends with {self.process.returncode}, see {self.log}"
        finally:
            self.process.kill()
            self.process.wait()


workers = {}
atexit.register(lambda: [one.process.kill() for one in workers.values()])


def worker(kind):
    """The worker for this type of queues, started when it is wanted first."""
    if kind not in workers:
        workers[kind] = Worker(kind)
    workers[kind].ready()


def result(of):
    return of.get(timeout=PATIENCE)


@checks.check
def celery_runs_tasks_and_returns_results():
    for kind in KINDS:
        tasks = application(kind)
        worker(kind)
        assert result(tasks.add.delay(2, 3)) == 5
        assert result(chain(tasks.add.s(1, 1), tasks.add.s(2), tasks.add.s(3))()) == 7
        assert result(group(tasks.add.s(n, n) for n in range(100))()) == [2 * n for n in range(100)]
        try:
            result(tasks.fails.delay("as it must"))
            raise AssertionError("it did not fail")
        except ValueError as error:
            assert str(error) == "as it must"


@checks.check
def celery_retries_and_delays_on_classic_queues():
    tasks = application("classic")
    worker("classic")
    assert result(tasks.succeeds_at.delay(3)) == 3
    assert result(tasks.retries_after.delay(1)) == 1
    assert result(tasks.add.apply_async((1, 2), countdown=1)) == 3
    eta = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=1)
    waiting = [tasks.add.apply_async((n, 0), eta=eta) for n in range(4)]
    assert [result(one) for one in waiting] == [0, 1, 2, 3]


@checks.check
def celery_runs_tasks_at_once_behind_many_delayed_ones():
    """A worker holds delayed tasks and raises its prefetch for each. kombu from 5.7 on does so only before RabbitMQ 4."""
    if "classic" in workers:
        workers.pop("classic").end()
    node("stop", "one")
    node("start", "one", "--set", "server_properties.version=3.13.7")
    tasks = application("classic")
    worker("classic")
    for n in range(100):
        tasks.add.apply_async((n, 0), countdown=3600)
    immediate = [tasks.add.delay(n, 1) for n in range(20)]
    assert [result(one) for one in immediate] == list(range(1, 21))
    # The end of the worker gives the delayed tasks back.
    workers.pop("classic").end()
    assert tasks.app.control.purge() == 100
    node("stop", "one")
    node("start", "one")


@checks.check
def celery_runs_a_task_again_whose_process_died():
    for kind in KINDS:
        tasks = application(kind)
        worker(kind)
        with tempfile.TemporaryDirectory() as directory:
            assert result(tasks.dies_once.delay(directory)) == "survived"


@checks.check
def celery_inspects_and_controls_its_workers():
    tasks = application("classic")
    worker("classic")
    control, hostname = tasks.app.control, "classic@here"
    assert control.ping([hostname], timeout=PATIENCE, limit=1) == [{hostname: {"ok": "pong"}}]
    inspect = control.inspect([hostname], timeout=PATIENCE, limit=1)
    assert "application.add" in inspect.registered()[hostname]
    assert inspect.active_queues()[hostname][0]["name"] == "tasks-classic"
    delayed = tasks.add.apply_async((1, 1), countdown=3600)
    until(lambda: inspect.scheduled()[hostname], "the scheduled task")
    control.revoke(delayed.id)
    until(lambda: delayed.id in inspect.revoked()[hostname], "the revocation")


@checks.check
def celery_goes_on_after_the_node_was_killed():
    for kind in KINDS:
        tasks = application(kind)
        worker(kind)
        with tempfile.TemporaryDirectory() as directory:
            send(tasks, directory, range(100))
            node("kill", "one")
            node("start", "one")
            send(tasks, directory, range(100, 200))
            until(lambda: len(os.listdir(directory)) == 200, "all tasks run")
            assert result(tasks.add.delay(1, 1)) == 2


def send(tasks, directory, numbers):
    """Each is confirmed when this returns; Celery's own retry policy covers a lost connection."""
    policy = {"max_retries": None, "interval_start": 0.1, "interval_step": 0.1, "interval_max": 1}
    for n in numbers:
        tasks.record.apply_async((directory, n), ignore_result=True, retry=True, retry_policy=policy)


@checks.check
def celery_workers_end_when_asked():
    for kind in KINDS:
        worker(kind)
        workers.pop(kind).end()


@checks.check
def celery_goes_on_with_two_nodes_of_three():
    node("stop", "one")
    cluster("start")
    nodes = ";".join(f"amqp://guest:guest@127.0.0.1:{port}//" for port in (5681, 5682, 5683))
    tasks = application("quorum", nodes)
    workers["cluster"] = Worker("quorum", nodes, "--without-mingle", "--without-gossip", "--without-heartbeat")
    worker("cluster")
    with tempfile.TemporaryDirectory() as directory:
        send(tasks, directory, range(100))
        node("kill", "n1")
        send(tasks, directory, range(100, 200))
        until(lambda: len(os.listdir(directory)) == 200, "all tasks run")
        cluster("node", "n1")
        send(tasks, directory, range(200, 210))
        until(lambda: len(os.listdir(directory)) == 210, "these too")
    workers.pop("cluster").end()


if __name__ == "__main__":
    checks.run()
