import static java.nio.charset.StandardCharsets.UTF_8;

import com.rabbitmq.client.Address;
import com.rabbitmq.client.AlreadyClosedException;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.MessageProperties;
import com.rabbitmq.client.Recoverable;
import com.rabbitmq.client.RecoveryListener;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/**
 * What an application sees of its node's death: the client reconnects (to the next address if it has several), and declares its
 * queues and consumers again; what was not confirmed is the application's to publish again.
 */
final class Recovery {
    /** A third of them is confirmed when the node dies. */
    private static final int MESSAGES = 300;

    private Recovery() { }

    static void register(Checks checks) {
        for (String kind : Scenario.KINDS) {
            checks.check("a node killed and started again has all that was confirmed: " + kind, () -> restart(kind));
        }
        checks.check("two nodes of three go on without the one we were on", Recovery::failover);
    }

    private static Connection connect(int... ports) throws Exception {
        ConnectionFactory factory = Scenario.factory();
        factory.setNetworkRecoveryInterval(100);
        factory.setConnectionTimeout(5000);
        List<Address> addresses = new ArrayList<>();
        for (int port : ports) {
            addresses.add(new Address("127.0.0.1", port));
        }
        return factory.newConnection(addresses);
    }

    /**
     * Counts down when the client has recovered its connection. It selects confirms in the middle of that: what is published
     * before is stored and never confirmed, and the client waits for the confirm.
     */
    private static CountDownLatch recovery(Connection connection) {
        CountDownLatch recovered = new CountDownLatch(1);
        ((Recoverable) connection).addRecoveryListener(new RecoveryListener() {
            @Override
            public void handleRecovery(Recoverable recoverable) {
                recovered.countDown();
            }

            @Override
            public void handleRecoveryStarted(Recoverable recoverable) { }
        });
        return recovered;
    }

    private static void await(CountDownLatch recovered) throws InterruptedException {
        Checks.holds(recovered.await(Checks.PATIENCE.toSeconds(), TimeUnit.SECONDS), "the connection recovers");
    }

    /** With a consumer that has been there from the start: it comes back with the connection. */
    private static Set<Integer> consume(Connection connection, String queue) throws IOException {
        Set<Integer> received = ConcurrentHashMap.newKeySet();
        Channel channel = connection.createChannel();
        channel.basicQos(50);
        channel.basicConsume(queue, false, (tag, delivery) -> {
            received.add(Integer.valueOf(new String(delivery.getBody(), UTF_8)));
            channel.basicAck(delivery.getEnvelope().getDeliveryTag(), false);
        }, tag -> { });
        return received;
    }

    /** Published once and confirmed, or again until it is. */
    private static void publish(Channel channel, String queue, int number) throws Exception {
        Checks.until("a confirm of " + number, () -> {
            try {
                channel.basicPublish("", queue, MessageProperties.PERSISTENT_BASIC, Integer.toString(number).getBytes(UTF_8));
                return channel.waitForConfirms(Checks.PATIENCE.toMillis()) ? true : null;
            } catch (AlreadyClosedException | IOException | TimeoutException error) {
                return null;
            } catch (com.rabbitmq.client.ShutdownSignalException error) {
                return null;
            }
        });
    }

    private static void all(Set<Integer> received) throws Exception {
        Checks.until("all " + MESSAGES + " messages", () -> received.size() == MESSAGES ? true : null);
    }

    private static void restart(String kind) throws Exception {
        String queue = "killed-" + kind;
        try (Connection connection = connect(5672)) {
            Channel channel = connection.createChannel();
            channel.confirmSelect();
            channel.queueDeclare(queue, true, false, false, Map.of("x-queue-type", kind));
            // A name of the server's, with a binding: both are there again, under another name, after the recovery.
            String temporary = channel.queueDeclare().getQueue();
            channel.queueBind(temporary, "amq.fanout", "");
            Set<Integer> fanned = ConcurrentHashMap.newKeySet();
            channel.basicConsume(temporary, true, (tag, delivery) -> fanned.add(delivery.getBody().length), tag -> { });
            for (int n = 0; n < MESSAGES; n++) {
                if (n == MESSAGES / 3) {
                    CountDownLatch recovered = recovery(connection);
                    Checks.node("kill", "one");
                    Checks.node("start", "one");
                    await(recovered);
                }
                publish(channel, queue, n);
            }
            all(consume(connection, queue));
            Checks.until("the server-named queue again", () -> {
                channel.basicPublish("amq.fanout", "", null, new byte[3]);
                return fanned.contains(3) ? true : null;
            });
        }
    }

    private static void failover() throws Exception {
        Checks.node("stop", "one");
        Checks.cluster("start");
        String queue = "survivor";
        try (Connection connection = connect(5681, 5682, 5683)) {
            Channel channel = connection.createChannel();
            channel.confirmSelect();
            channel.queueDeclare(queue, true, false, false, Map.of("x-queue-type", "quorum"));
            Set<Integer> received = consume(connection, queue);
            for (int n = 0; n < MESSAGES; n++) {
                if (n == MESSAGES / 3) {
                    // The client takes its addresses in an order of its own.
                    int mine = connection.getPort();
                    CountDownLatch recovered = recovery(connection);
                    Checks.node("kill", "n" + (mine - 5680));
                    await(recovered);
                }
                publish(channel, queue, n);
            }
            all(received);
        }
    }
}
