import com.hivemq.client.mqtt.MqttGlobalPublishFilter;
import com.hivemq.client.mqtt.datatypes.MqttQos;
import com.hivemq.client.mqtt.lifecycle.MqttClientDisconnectedContext;
import com.hivemq.client.mqtt.mqtt3.Mqtt3BlockingClient;
import com.hivemq.client.mqtt.mqtt3.Mqtt3Client;
import com.hivemq.client.mqtt.mqtt5.Mqtt5BlockingClient;
import com.hivemq.client.mqtt.mqtt5.Mqtt5Client;
import com.hivemq.client.mqtt.mqtt5.exceptions.Mqtt5DisconnectException;
import com.hivemq.client.mqtt.mqtt5.message.disconnect.Mqtt5DisconnectReasonCode;
import com.hivemq.client.mqtt.mqtt5.message.publish.Mqtt5Publish;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** HiveMQ's client on three nodes: clients of different nodes hear each other, and a session goes on when its node is killed. */
public final class Scenario {
    /** The nodes' ports. */
    private static final int ONE = 1891;
    private static final int TWO = 1892;
    private static final int THREE = 1893;

    record Message(String topic, String text, MqttQos qos, boolean retained) {}

    /** What both versions of the client can do. */
    interface Client {
        boolean present();

        void subscribe(String filter, MqttQos qos);

        void publish(String topic, String text, MqttQos qos, boolean retained);

        LinkedBlockingQueue<Message> messages();

        void close();

        default Message next() throws InterruptedException {
            Message message = messages().poll(Checks.PATIENCE.toSeconds(), TimeUnit.SECONDS);
            Checks.holds(message != null, "a message");
            return message;
        }
    }

    static final class Five implements Client {
        final Mqtt5BlockingClient client;
        final boolean present;
        final LinkedBlockingQueue<Message> messages = new LinkedBlockingQueue<>();
        final CompletableFuture<MqttClientDisconnectedContext> end = new CompletableFuture<>();

        Five(int port, String id, boolean kept, String will) {
            var builder = Mqtt5Client.builder().identifier(id).serverHost("127.0.0.1").serverPort(port).addDisconnectedListener(end::complete);
            client = builder.buildBlocking();
            client.toAsync().publishes(MqttGlobalPublishFilter.ALL, p -> messages.add(read(p)));
            var connect = client.connectWith().cleanStart(!kept).sessionExpiryInterval(kept ? 300 : 0);
            if (kept) {
                connect = connect.simpleAuth().username("kept:guest").password("guest".getBytes(StandardCharsets.UTF_8)).applySimpleAuth();
            }
            if (will != null) {
                connect = connect.willPublish().topic(will).qos(MqttQos.AT_LEAST_ONCE).payload("gone".getBytes(StandardCharsets.UTF_8)).applyWillPublish();
            }
            present = connect.send().isSessionPresent();
        }

        private static Message read(Mqtt5Publish p) {
            return new Message(p.getTopic().toString(), new String(p.getPayloadAsBytes(), StandardCharsets.UTF_8), p.getQos(), p.isRetain());
        }

        public boolean present() {
            return present;
        }

        public void subscribe(String filter, MqttQos qos) {
            Checks.same(client.subscribeWith().topicFilter(filter).qos(qos).send().getReasonCodes().get(0).getCode(), qos.getCode());
        }

        public void publish(String topic, String text, MqttQos qos, boolean retained) {
            client.publishWith().topic(topic).payload(text.getBytes(StandardCharsets.UTF_8)).qos(qos).retain(retained).send();
        }

        public LinkedBlockingQueue<Message> messages() {
            return messages;
        }

        public void close() {
            client.disconnect();
        }
    }

    static final class Three implements Client {
        final Mqtt3BlockingClient client;
        final boolean present;
        final LinkedBlockingQueue<Message> messages = new LinkedBlockingQueue<>();

        Three(int port, String id, boolean kept, String will) {
            client = Mqtt3Client.builder().identifier(id).serverHost("127.0.0.1").serverPort(port).buildBlocking();
            client.toAsync().publishes(MqttGlobalPublishFilter.ALL, p -> messages.add(
                    new Message(p.getTopic().toString(), new String(p.getPayloadAsBytes(), StandardCharsets.UTF_8), p.getQos(), p.isRetain())));
            var connect = client.connectWith().cleanSession(!kept);
            if (kept) {
                connect = connect.simpleAuth().username("kept:guest").password("guest".getBytes(StandardCharsets.UTF_8)).applySimpleAuth();
            }
            if (will != null) {
                connect = connect.willPublish().topic(will).qos(MqttQos.AT_LEAST_ONCE).payload("gone".getBytes(StandardCharsets.UTF_8)).applyWillPublish();
            }
            present = connect.send().isSessionPresent();
        }

        public boolean present() {
            return present;
        }

        public void subscribe(String filter, MqttQos qos) {
            Checks.same(client.subscribeWith().topicFilter(filter).qos(qos).send().getReturnCodes().get(0).getCode(), qos.getCode());
        }

        public void publish(String topic, String text, MqttQos qos, boolean retained) {
            client.publishWith().topic(topic).payload(text.getBytes(StandardCharsets.UTF_8)).qos(qos).retain(retained).send();
        }

        public LinkedBlockingQueue<Message> messages() {
            return messages;
        }

        public void close() {
            client.disconnect();
        }
    }

    private final boolean five;
    private final String version;

    private Scenario(boolean five) {
        this.five = five;
        this.version = five ? ", 5.0" : ", 3.1.1";
    }

    private Client open(int port, String id) {
        return open(port, id, false, null);
    }

    private Client open(int port, String id, boolean kept, String will) {
        return five ? new Five(port, id, kept, will) : new Three(port, id, kept, will);
    }

    private void messages() throws Exception {
        Client subscriber = open(ONE, "subscriber");
        Client publisher = open(TWO, "publisher");
        subscriber.subscribe("quality/+", MqttQos.EXACTLY_ONCE);
        for (MqttQos qos : MqttQos.values()) {
            publisher.publish("quality/" + qos.getCode(), "hello", qos, false);
            Checks.same(subscriber.next(), new Message("quality/" + qos.getCode(), "hello", qos, false));
        }
        publisher.close();
        subscriber.close();
    }

    private void retained() throws Exception {
        Client publisher = open(ONE, "publisher");
        publisher.publish("retained", "kept", MqttQos.AT_LEAST_ONCE, true);
        for (int port : new int[] {ONE, TWO, THREE}) {
            Client subscriber = open(port, "subscriber");
            subscriber.subscribe("retained", MqttQos.AT_LEAST_ONCE);
            Checks.same(subscriber.next(), new Message("retained", "kept", MqttQos.AT_LEAST_ONCE, true));
            subscriber.close();
        }
        publisher.publish("retained", "", MqttQos.AT_LEAST_ONCE, true);
        Client subscriber = open(THREE, "subscriber");
        subscriber.subscribe("retained", MqttQos.AT_LEAST_ONCE);
        publisher.publish("retained", "next", MqttQos.AT_LEAST_ONCE, false);
        Checks.same(subscriber.next(), new Message("retained", "next", MqttQos.AT_LEAST_ONCE, false));
        subscriber.close();
        publisher.close();
    }

    /** A way to a port that can be cut: the client says no goodbye. */
    private static final class Way implements AutoCloseable {
        final ServerSocket listener = new ServerSocket(0, 1, InetAddress.getLoopbackAddress());
        final List<Socket> ends = new ArrayList<>();

        Way(int port) throws Exception {
            Thread thread = new Thread(() -> {
                try {
                    Socket in = listener.accept();
                    Socket out = new Socket(InetAddress.getLoopbackAddress(), port);
                    ends.addAll(List.of(in, out));
                    pass(in.getInputStream(), out.getOutputStream());
                    pass(out.getInputStream(), in.getOutputStream());
                } catch (Exception closed) {
                    // The check that waits for the other end says so.
                }
            });
            thread.setDaemon(true);
            thread.start();
        }

        private static void pass(InputStream from, OutputStream to) {
            Thread thread = new Thread(() -> {
                try {
                    from.transferTo(to);
                } catch (Exception cut) {
                    // As it is meant to be.
                }
            });
            thread.setDaemon(true);
            thread.start();
        }

        @Override
        public void close() throws Exception {
            listener.close();
            for (Socket end : ends) {
                end.close();
            }
        }
    }

    private void will() throws Exception {
        Client watcher = open(TWO, "watcher");
        watcher.subscribe("will/+", MqttQos.AT_LEAST_ONCE);
        open(ONE, "polite", false, "will/polite").close();
        try (Way way = new Way(ONE)) {
            open(way.listener.getLocalPort(), "rude", false, "will/rude");
        }
        Checks.same(watcher.next(), new Message("will/rude", "gone", MqttQos.AT_LEAST_ONCE, false));
        watcher.close();
    }

    private void shared() throws Exception {
        int count = 30;
        List<Client> members = new ArrayList<>();
        for (int port : new int[] {ONE, TWO, THREE}) {
            Client member = open(port, "member-" + port);
            member.subscribe("$share/group/shared", MqttQos.AT_LEAST_ONCE);
            members.add(member);
        }
        Client publisher = open(TWO, "publisher");
        for (int n = 0; n < count; n++) {
            publisher.publish("shared", Integer.toString(n), MqttQos.AT_LEAST_ONCE, false);
        }
        Checks.until("all messages", () -> members.stream().mapToInt(m -> m.messages().size()).sum() >= count ? true : null);
        Set<String> seen = new HashSet<>();
        for (Client member : members) {
            Checks.holds(!member.messages().isEmpty(), "each member gets some");
            member.messages().forEach(m -> Checks.holds(seen.add(m.text()), m.text() + " comes once"));
            member.close();
        }
        Checks.same(seen.size(), count);
        publisher.close();
    }

    private void takeover() throws Exception {
        Client first = open(ONE, "wanted");
        Client second = open(THREE, "wanted");
        if (first instanceof Five told) {
            Throwable cause = told.end.get(Checks.PATIENCE.toSeconds(), TimeUnit.SECONDS).getCause();
            Checks.holds(cause instanceof Mqtt5DisconnectException, "a DISCONNECT, got: " + cause);
            Checks.same(((Mqtt5DisconnectException) cause).getMqttMessage().getReasonCode(), Mqtt5DisconnectReasonCode.SESSION_TAKEN_OVER);
        } else if (first instanceof Three old) {
            Checks.until("the end of the first", () -> old.client.getState().isConnected() ? null : true);
        }
        second.subscribe("taken", MqttQos.AT_LEAST_ONCE);
        second.publish("taken", "here", MqttQos.AT_LEAST_ONCE, false);
        Checks.same(second.next().text(), "here");
        second.close();
    }

    private static void killed() throws Exception {
        int count = 50;
        List<Scenario> versions = List.of(new Scenario(false), new Scenario(true));
        for (Scenario version : versions) {
            Client before = version.open(ONE, "kept" + version.five, true, null);
            Checks.holds(!before.present(), "a new session");
            before.subscribe("session/1", MqttQos.AT_LEAST_ONCE);
            before.subscribe("session/2", MqttQos.EXACTLY_ONCE);
            Checks.holds(!version.open(ONE, "silent" + version.five, true, null).present(), "a new session");
        }
        Checks.node("kill", "n1");
        Client publisher = new Five(TWO, "publisher", true, null);
        for (int n = 0; n < count; n++) {
            MqttQos qos = n % 2 == 1 ? MqttQos.AT_LEAST_ONCE : MqttQos.EXACTLY_ONCE;
            publisher.publish("session/" + qos.getCode(), Integer.toString(n), qos, false);
        }
        for (Scenario version : versions) {
            Client after = version.open(THREE, "kept" + version.five, true, null);
            Checks.holds(after.present(), "the session" + version.version);
            for (int n = 0; n < count; n++) {
                Checks.same(after.next().text(), Integer.toString(n));
            }
            after.close();
            Client silent = version.open(TWO, "silent" + version.five, true, null);
            Checks.holds(silent.present(), "the session without a subscription" + version.version);
            silent.close();
        }
        publisher.close();
    }

    public static void main(String[] words) {
        Checks checks = new Checks(words);
        for (boolean five : new boolean[] {false, true}) {
            Scenario with = new Scenario(five);
            checks.check("messages of every quality" + with.version, with::messages);
            checks.check("what is retained is retained everywhere" + with.version, with::retained);
            checks.check("a will is heard at another node" + with.version, with::will);
            checks.check("members of all nodes share a subscription" + with.version, with::shared);
            checks.check("a client id is taken over at another node" + with.version, with::takeover);
        }
        checks.check("sessions go on when their node is killed", Scenario::killed);
        checks.end("hivemq");
    }
}
