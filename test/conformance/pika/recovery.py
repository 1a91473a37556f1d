"""What an application that uses pika sees when its node dies: pika has no recovery of its own, so the loop is here."""

import pika
from pika.exceptions import AMQPConnectionError, ChannelClosedByBroker

from checks import PATIENCE, cluster, node, until

MESSAGES = 300  # of which a third is confirmed when the node dies


class Publisher:
    """Publishes numbers with confirms, over any number of connections; one that was not confirmed is published again."""

    def __init__(self, parameters, queue, kind):
        self.parameters, self.queue, self.kind = parameters, queue, kind
        self.confirmed = []
        self.channel = None

    def open(self):
        """One attempt per address; the channel, or None when no node takes us."""
        try:
            self.channel = pika.BlockingConnection(self.parameters).channel()
            self.channel.confirm_delivery()
            self.channel.queue_declare(self.queue, durable=True, arguments={"x-queue-type": self.kind})
        except (AMQPConnectionError, ChannelClosedByBroker):
            self.channel = None
        return self.channel

    def publish_up_to(self, number):
        """Until this many are confirmed."""
        while len(self.confirmed) < number:
            channel = self.channel or until(self.open, "a node that takes us")
            n = len(self.confirmed)
            try:
                channel.basic_publish("", self.queue, b"%d" % n, pika.BasicProperties(delivery_mode=2))
                self.confirmed.append(n)
            except (AMQPConnectionError, ChannelClosedByBroker):
                self.channel = None

    def consume_all(self):
        """All that is in the queue, each acknowledged, in order; what is delivered twice is told once."""
        channel, got = self.channel, []
        channel.basic_qos(prefetch_count=50)
        for method, _, body in channel.consume(self.queue, inactivity_timeout=PATIENCE):
            assert method, f"no delivery; {len(set(got))} of {len(self.confirmed)} so far"
            got.append(int(body))
            channel.basic_ack(method.delivery_tag)
            if int(body) == self.confirmed[-1]:
                break
        channel.cancel()
        channel.connection.close()
        return list(dict.fromkeys(got))


def register(checks, kinds):
    @checks.check
    def a_node_killed_and_started_again_has_all_that_was_confirmed():
        for kind in kinds:
            publisher = Publisher(pika.URLParameters("amqp://127.0.0.1:5672/%2F"), f"killed-{kind}", kind)
            publisher.publish_up_to(MESSAGES // 3)
            node("kill", "one")
            node("start", "one")
            publisher.publish_up_to(MESSAGES)
            assert publisher.consume_all() == publisher.confirmed

    @checks.check
    def two_nodes_of_three_go_on_without_the_one_we_were_on():
        node("stop", "one")
        cluster("start")
        nodes = [pika.URLParameters(f"amqp://127.0.0.1:{port}/%2F?heartbeat=5") for port in (5681, 5682, 5683)]
        publisher = Publisher(nodes, "survivor", "quorum")
        publisher.publish_up_to(MESSAGES // 3)
        node("kill", "n1")
        publisher.publish_up_to(2 * MESSAGES // 3)
        cluster("node", "n1")
        publisher.publish_up_to(MESSAGES)
        assert publisher.consume_all() == publisher.confirmed
