import jakarta.jms.BytesMessage;
import jakarta.jms.CompletionListener;
import jakarta.jms.Connection;
import jakarta.jms.DeliveryMode;
import jakarta.jms.Destination;
import jakarta.jms.InvalidDestinationException;
import jakarta.jms.JMSException;
import jakarta.jms.JMSSecurityException;
import jakarta.jms.MapMessage;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.ObjectMessage;
import jakarta.jms.Queue;
import jakarta.jms.QueueBrowser;
import jakarta.jms.Session;
import jakarta.jms.StreamMessage;
import jakarta.jms.TemporaryQueue;
import jakarta.jms.TextMessage;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.qpid.jms.JmsConnectionFactory;

/** Qpid JMS against Posthorn: what an application does with it, and what it is told when it does it wrong. */
final class Scenario {
    private static final List<String> KINDS = List.of("classic", "quorum");
    /** Milliseconds that one receive may take. */
    private static final long PATIENCE = Checks.PATIENCE.toMillis();
    private static final String OPTIONS = "?jms.connectTimeout=30000&jms.requestTimeout=30000&jms.closeTimeout=30000";

    interface Step {
        void run(Connection connection, Session session) throws Exception;
    }

    interface KindStep {
        void run(Connection connection, Session session, String kind) throws Exception;
    }

    private static Checks checks;

    public static void main(String[] words) throws Exception {
        checks = new Checks(words);
        each("persistent and other messages are sent and received", Scenario::sendAndReceive);
        each("text, bytes, maps, streams and objects arrive", Scenario::messageTypes);
        each("properties and headers are preserved", Scenario::properties);
        each("a large message arrives", Scenario::largeMessage);
        each("client acknowledgement covers the session", Scenario::clientAcknowledge);
        each("recover delivers again", Scenario::recover);
        each("a closed session returns its messages", Scenario::closedSession);
        each("a listener receives in order", Scenario::listener);
        each("completion listeners hear of every message", Scenario::completions);
        each("time to live expires messages", Scenario::timeToLive);
        each("consumers share a queue", Scenario::competingConsumers);
        each("receiveNoWait finds what is there", Scenario::receiveNoWait);
        each("a full queue refuses messages", Scenario::fullQueue);
        one("a delivery delay holds messages back", Scenario::deliveryDelay);
        one("priorities order messages", Scenario::priorities);
        one("a wrong password is refused", (c, s) -> wrongPassword());
        one("a missing queue is an invalid destination", Scenario::missingQueue);
        one("an anonymous producer sends to any destination", Scenario::anonymousProducer);
        one("temporary queues answer requests", Scenario::temporaryQueue);
        one("a temporary queue belongs to its connection", Scenario::temporaryQueueOfOther);
        one("an exchange routes by its key", Scenario::exchange);
        one("a message without a route is not lost silently", Scenario::unroutable);
        one("the death of a queue ends its consumers", Scenario::deletedQueue);
        one("a JMSContext sends and receives", (c, s) -> context());
        one("sessions of a connection are independent", Scenario::sessions);
        each("a browser shows all messages and takes none", Scenario::browser);
        each("a browser with a small prefetch shows all messages", Scenario::browserPrefetch);
        each("a browser with a selector shows the messages that match", Scenario::browserWithSelector);
        each("a browser shows messages by priority", Scenario::browserOfPriorities);
        each("a browser shows large messages", Scenario::browserOfLargeMessages);
        each("a browser shows the messages that no consumer has", Scenario::browserBesideConsumer);
        each("a browser of a transacted session takes no part in the transaction", Scenario::browserOfTransactedSession);
        one("a browser of a missing queue is refused", Scenario::browserOfMissingQueue);
        one("a transacted session commits", Scenario::committed);
        one("a transacted session rolls back", Scenario::rolledBack);
        each("a selector filters messages", Scenario::selector);
        each("a selector is compared with returned messages", Scenario::selectorOfReturned);
        each("consumers with selectors share a long queue", Scenario::selectors);
        checks.end("qpid-jms");
    }

    private static void one(String name, Step step) {
        checks.check(name, () -> opened(step));
    }

    private static void each(String name, KindStep step) {
        for (String kind : KINDS) {
            checks.check(name + ": " + kind, () -> opened((connection, session) -> step.run(connection, session, kind)));
        }
    }

    private static JmsConnectionFactory factory(String user, String password) {
        return new JmsConnectionFactory(user, password, "amqp://127.0.0.1:5672" + OPTIONS);
    }

    private static Connection connect() throws JMSException {
        Connection connection = factory("guest", "guest").createConnection();
        connection.start();
        return connection;
    }

    private static void opened(Step step) throws Exception {
        try (Connection connection = connect()) {
            step.run(connection, connection.createSession(Session.AUTO_ACKNOWLEDGE));
        }
    }

    private static Queue queue(Session session, String name) throws JMSException {
        return session.createQueue("/queues/" + name);
    }

    private static void send(Session session, Destination destination, String... bodies) throws JMSException {
        try (MessageProducer producer = session.createProducer(destination)) {
            for (String body : bodies) {
                producer.send(session.createTextMessage(body));
            }
        }
    }

    private static String text(Message message) throws JMSException {
        Checks.holds(message != null, "a message");
        return message.getBody(String.class);
    }

    private static List<String> take(Session session, Destination destination, int count) throws JMSException {
        List<String> bodies = new ArrayList<>();
        try (MessageConsumer consumer = session.createConsumer(destination)) {
            for (int i = 0; i < count; i++) {
                bodies.add(text(consumer.receive(PATIENCE)));
            }
        }
        return bodies;
    }

    private static void sendAndReceive(Connection connection, Session session, String kind) throws Exception {
        Queue queue = queue(session, Broker.queue(kind));
        try (MessageProducer producer = session.createProducer(queue); MessageConsumer consumer = session.createConsumer(queue)) {
            for (int mode : List.of(DeliveryMode.PERSISTENT, DeliveryMode.NON_PERSISTENT)) {
                producer.setDeliveryMode(mode);
                producer.send(session.createTextMessage("mode " + mode));
                Message message = consumer.receive(PATIENCE);
                Checks.same(text(message), "mode " + mode);
                Checks.same(message.getJMSDeliveryMode(), mode);
                Checks.same(message.getJMSRedelivered(), false);
            }
        }
    }

    private static void messageTypes(Connection connection, Session session, String kind) throws Exception {
        Queue queue = queue(session, Broker.queue(kind));
        try (MessageProducer producer = session.createProducer(queue); MessageConsumer consumer = session.createConsumer(queue)) {
            BytesMessage bytes = session.createBytesMessage();
            bytes.writeBytes(new byte[] {0, -1, 7});
            MapMessage map = session.createMapMessage();
            map.setInt("int", 7);
            map.setString("text", "é");
            map.setBytes("bytes", new byte[] {1});
            StreamMessage stream = session.createStreamMessage();
            stream.writeLong(5_000_000_000L);
            stream.writeString("x");
            ObjectMessage object = session.createObjectMessage(new ArrayList<>(List.of("a", 1)));
            for (Message message : List.of(session.createTextMessage("é"), bytes, map, stream, object, session.createMessage())) {
                producer.send(message);
            }
            Checks.same(((TextMessage) consumer.receive(PATIENCE)).getText(), "é");
            byte[] body = consumer.receive(PATIENCE).getBody(byte[].class);
            Checks.holds(java.util.Arrays.equals(body, new byte[] {0, -1, 7}), "the bytes");
            MapMessage gotMap = (MapMessage) consumer.receive(PATIENCE);
            Checks.same(gotMap.getInt("int"), 7);
            Checks.same(gotMap.getString("text"), "é");
            StreamMessage gotStream = (StreamMessage) consumer.receive(PATIENCE);
            Checks.same(gotStream.readLong(), 5_000_000_000L);
            Checks.same(gotStream.readString(), "x");
            Checks.same(((ObjectMessage) consumer.receive(PATIENCE)).getObject(), List.of("a", 1));
            Checks.holds(consumer.receive(PATIENCE) != null, "a message without a body");
        }
    }

    private static void properties(Connection connection, Session session, String kind) throws Exception {
        Queue queue = queue(session, Broker.queue(kind));
        TextMessage sent = session.createTextMessage("a");
        sent.setStringProperty("text", "é");
        sent.setBooleanProperty("yes", true);
        sent.setByteProperty("byte", (byte) -1);
        sent.setShortProperty("short", (short) -300);
        sent.setIntProperty("int", 70_000);
        sent.setLongProperty("long", -5_000_000_000L);
        sent.setFloatProperty("float", 0.25f);
        sent.setDoubleProperty("double", 0.5);
        sent.setJMSCorrelationID("correlation");
        sent.setJMSType("type");
        sent.setJMSReplyTo(queue);
        sent.setStringProperty("JMSXGroupID", "group");
        sent.setIntProperty("JMSXGroupSeq", 3);
        try (MessageProducer producer = session.createProducer(queue); MessageConsumer consumer = session.createConsumer(queue)) {
            producer.setPriority(2);
            producer.send(sent);
            Message got = consumer.receive(PATIENCE);
            for (Object name : Collections.list(sent.getPropertyNames())) {
                Checks.same(got.getObjectProperty((String) name), sent.getObjectProperty((String) name));
            }
            Checks.same(got.getJMSMessageID(), sent.getJMSMessageID());
            Checks.same(got.getJMSCorrelationID(), "correlation");
            Checks.same(got.getJMSType(), "type");
            Checks.same(got.getJMSReplyTo(), queue);
            Checks.same(got.getJMSDestination(), queue);
            Checks.same(got.getJMSPriority(), 2);
            Checks.same(got.getJMSTimestamp(), sent.getJMSTimestamp());
            Checks.same(got.getIntProperty("JMSXDeliveryCount"), 1);
        }
    }

    private static void largeMessage(Connection connection, Session session, String kind) throws Exception {
        Queue queue = queue(session, Broker.queue(kind));
        String body = "x".repeat(3 << 20);
        send(session, queue, body);
        Checks.holds(take(session, queue, 1).get(0).equals(body), "the body");
    }

    private static void clientAcknowledge(Connection connection, Session session, String kind) throws Exception {
        String name = Broker.queue(kind);
        send(session, queue(session, name), "a", "b", "c");
        try (Session client = connection.createSession(Session.CLIENT_ACKNOWLEDGE)) {
            MessageConsumer consumer = client.createConsumer(queue(client, name));
            Checks.same(text(consumer.receive(PATIENCE)), "a");
            Message second = consumer.receive(PATIENCE);
            second.acknowledge();
            Checks.same(text(consumer.receive(PATIENCE)), "c");
        }
        Checks.same(take(session, queue(session, name), 1), List.of("c"));
        Checks.until("an empty queue", () -> Broker.ready(name) == 0 ? true : null);
    }

    private static void recover(Connection connection, Session session, String kind) throws Exception {
        String name = Broker.queue(kind);
        send(session, queue(session, name), "a", "b");
        try (Session client = connection.createSession(Session.CLIENT_ACKNOWLEDGE)) {
            MessageConsumer consumer = client.createConsumer(queue(client, name));
            Checks.same(text(consumer.receive(PATIENCE)), "a");
            client.recover();
            Message again = consumer.receive(PATIENCE);
            Checks.same(text(again), "a");
            Checks.same(again.getJMSRedelivered(), true);
            Checks.same(again.getIntProperty("JMSXDeliveryCount"), 2);
            Message second = consumer.receive(PATIENCE);
            Checks.same(text(second), "b");
            second.acknowledge();
        }
        Checks.until("an empty queue", () -> Broker.ready(name) == 0 ? true : null);
    }

    private static void closedSession(Connection connection, Session session, String kind) throws Exception {
        String name = Broker.queue(kind);
        send(session, queue(session, name), "a", "b");
        try (Session client = connection.createSession(Session.CLIENT_ACKNOWLEDGE)) {
            Checks.same(text(client.createConsumer(queue(client, name)).receive(PATIENCE)), "a");
        }
        // The client acknowledges nothing and releases the message that it had prefetched first.
        Checks.same(take(session, queue(session, name), 2).stream().sorted().toList(), List.of("a", "b"));
    }

    private static void listener(Connection connection, Session session, String kind) throws Exception {
        Queue queue = queue(session, Broker.queue(kind));
        BlockingQueue<String> seen = new LinkedBlockingQueue<>();
        try (Session listening = connection.createSession(Session.AUTO_ACKNOWLEDGE)) {
            listening.createConsumer(queue).setMessageListener(message -> {
                try {
                    seen.add(text(message));
                } catch (JMSException error) {
                    seen.add(error.toString());
                }
            });
            try (MessageProducer producer = session.createProducer(queue)) {
                for (int i = 0; i < 500; i++) {
                    producer.send(session.createTextMessage("" + i));
                }
            }
            for (int i = 0; i < 500; i++) {
                Checks.same(seen.poll(PATIENCE, TimeUnit.MILLISECONDS), "" + i);
            }
        }
    }

    private static void completions(Connection connection, Session session, String kind) throws Exception {
        String name = Broker.queue(kind);
        CountDownLatch completed = new CountDownLatch(200);
        List<Exception> errors = Collections.synchronizedList(new ArrayList<>());
        CompletionListener listener = new CompletionListener() {
            @Override
            public void onCompletion(Message message) {
                completed.countDown();
            }

            @Override
            public void onException(Message message, Exception error) {
                errors.add(error);
                completed.countDown();
            }
        };
        try (MessageProducer producer = session.createProducer(queue(session, name))) {
            for (int i = 0; i < 200; i++) {
                producer.send(session.createTextMessage("" + i), listener);
            }
            Checks.holds(completed.await(PATIENCE, TimeUnit.MILLISECONDS), "200 completions");
        }
        Checks.same(errors, List.of());
        Checks.same(Broker.ready(name), 200);
    }

    private static void timeToLive(Connection connection, Session session, String kind) throws Exception {
        String dead = Broker.queue("classic");
        String name = Broker.queue(kind, Map.of("x-dead-letter-exchange", "", "x-dead-letter-routing-key", dead));
        try (MessageProducer producer = session.createProducer(queue(session, name))) {
            producer.setTimeToLive(60_000);
            producer.send(session.createTextMessage("stays"));
            Checks.same(take(session, queue(session, name), 1), List.of("stays"));
            producer.setTimeToLive(10);
            producer.send(session.createTextMessage("expires"));
        }
        Checks.until("the dead letter", () -> Broker.ready(dead) == 1 ? true : null);
        Checks.same(Broker.ready(name), 0);
    }

    private static void deliveryDelay(Connection connection, Session session) throws Exception {
        Queue target = queue(session, Broker.queue("quorum"));
        long sent = System.currentTimeMillis();
        try (MessageProducer producer = session.createProducer(target)) {
            producer.setDeliveryDelay(1500);
            producer.send(session.createTextMessage("later"));
            producer.setDeliveryDelay(0);
            producer.send(session.createTextMessage("now"));
        }
        Checks.same(take(session, target, 2), List.of("now", "later"));
        // The clocks are those of one machine.
        long waited = System.currentTimeMillis() - sent;
        Checks.holds(waited >= 1500, "the delay of 1500 ms: " + waited);
        // A queue that cannot hold messages back refuses them.
        try (MessageProducer producer = session.createProducer(queue(session, Broker.queue("classic")))) {
            producer.setDeliveryDelay(1500);
            boolean refused = false;
            try {
                producer.send(session.createTextMessage("later"));
            } catch (JMSException error) {
                refused = error.getMessage().contains("cannot hold messages back");
            }
            Checks.holds(refused, "refused with the reason");
        }
    }

    private static void competingConsumers(Connection connection, Session session, String kind) throws Exception {
        Queue queue = queue(session, Broker.queue(kind));
        BlockingQueue<String> seen = new LinkedBlockingQueue<>();
        List<Session> sessions = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            Session other = connection.createSession(Session.AUTO_ACKNOWLEDGE);
            sessions.add(other);
            other.createConsumer(queue).setMessageListener(message -> {
                try {
                    seen.add(text(message));
                } catch (JMSException error) {
                    seen.add(error.toString());
                }
            });
        }
        List<String> sent = new ArrayList<>();
        for (int i = 0; i < 60; i++) {
            sent.add("%02d".formatted(i));
        }
        send(session, queue, sent.toArray(String[]::new));
        List<String> got = new ArrayList<>();
        for (int i = 0; i < 60; i++) {
            got.add(seen.poll(PATIENCE, TimeUnit.MILLISECONDS));
        }
        Collections.sort(got);
        Checks.same(got, sent);
        for (Session other : sessions) {
            other.close();
        }
    }

    private static void receiveNoWait(Connection connection, Session session, String kind) throws Exception {
        Queue queue = queue(session, Broker.queue(kind));
        // With a prefetch of 0, the client drains its credit for each call.
        JmsConnectionFactory factory = new JmsConnectionFactory("guest", "guest",
                "amqp://127.0.0.1:5672" + OPTIONS + "&jms.prefetchPolicy.all=0");
        try (Connection other = factory.createConnection()) {
            other.start();
            Session drained = other.createSession(Session.AUTO_ACKNOWLEDGE);
            MessageConsumer consumer = drained.createConsumer(queue);
            Checks.holds(consumer.receiveNoWait() == null, "no message");
            send(session, queue, "a");
            Checks.same(text(consumer.receiveNoWait()), "a");
            Checks.holds(consumer.receiveNoWait() == null, "no message");
            Checks.holds(consumer.receive(20) == null, "no message");
        }
    }

    private static void fullQueue(Connection connection, Session session, String kind) throws Exception {
        String name = Broker.queue(kind, Map.of("x-max-length", 1, "x-overflow", "reject-publish"));
        try (MessageProducer producer = session.createProducer(queue(session, name))) {
            Checks.until("a refusal", () -> {
                try {
                    producer.send(session.createTextMessage("a"));
                    return null;
                } catch (JMSException error) {
                    Checks.holds(error.getMessage().contains("maximum length"), "the reason, got: " + error.getMessage());
                    return true;
                }
            });
        }
    }

    private static void priorities(Connection connection, Session session) throws Exception {
        Queue queue = queue(session, Broker.queue("classic", Map.of("x-max-priority", 9)));
        try (MessageProducer producer = session.createProducer(queue)) {
            for (int priority : List.of(1, 9, 5)) {
                producer.setPriority(priority);
                producer.send(session.createTextMessage("" + priority));
            }
        }
        Checks.same(take(session, queue, 3), List.of("9", "5", "1"));
    }

    private static void wrongPassword() throws Exception {
        try (Connection connection = factory("guest", "wrong").createConnection()) {
            connection.start();
        } catch (JMSSecurityException expected) {
            return;
        }
        throw new AssertionError("connected");
    }

    private static void missingQueue(Connection connection, Session session) throws Exception {
        Queue missing = queue(session, "missing");
        String kept = Broker.queue("classic");
        try (MessageProducer producer = session.createProducer(queue(session, kept))) {
            for (boolean sends : List.of(true, false)) {
                try (AutoCloseable link = sends ? session.createProducer(missing) : session.createConsumer(missing)) {
                    throw new AssertionError("attached");
                } catch (InvalidDestinationException expected) {
                    // The reason for this check.
                }
            }
            // The session goes on.
            producer.send(session.createTextMessage("a"));
        }
        Checks.same(Broker.ready(kept), 1);
    }

    private static void anonymousProducer(Connection connection, Session session) throws Exception {
        List<String> names = List.of(Broker.queue("classic"), Broker.queue("quorum"));
        try (MessageProducer producer = session.createProducer(null)) {
            for (String name : names) {
                producer.send(queue(session, name), session.createTextMessage(name));
            }
        }
        for (String name : names) {
            Checks.same(take(session, queue(session, name), 1), List.of(name));
        }
    }

    private static void temporaryQueue(Connection connection, Session session) throws Exception {
        Queue requests = queue(session, Broker.queue("classic"));
        TemporaryQueue answers = session.createTemporaryQueue();
        try (MessageProducer producer = session.createProducer(requests); MessageConsumer consumer = session.createConsumer(answers)) {
            TextMessage request = session.createTextMessage("question");
            request.setJMSReplyTo(answers);
            producer.send(request);
            try (Connection server = connect()) {
                Session serving = server.createSession(Session.AUTO_ACKNOWLEDGE);
                Message question = serving.createConsumer(requests).receive(PATIENCE);
                TextMessage answer = serving.createTextMessage("answer to " + text(question));
                answer.setJMSCorrelationID(question.getJMSMessageID());
                try (MessageProducer anonymous = serving.createProducer(null)) {
                    anonymous.send(question.getJMSReplyTo(), answer);
                }
            }
            Message answer = consumer.receive(PATIENCE);
            Checks.same(text(answer), "answer to question");
            Checks.same(answer.getJMSCorrelationID(), request.getJMSMessageID());
        }
        answers.delete();
    }

    private static void temporaryQueueOfOther(Connection connection, Session session) throws Exception {
        TemporaryQueue temporary = session.createTemporaryQueue();
        send(session, temporary, "a");
        try (Connection other = connect()) {
            Session foreign = other.createSession(Session.AUTO_ACKNOWLEDGE);
            // The client itself refuses a temporary queue of another connection, but not its address.
            foreign.createConsumer(foreign.createQueue(temporary.getQueueName())).close();
        } catch (JMSException expected) {
            Checks.same(take(session, temporary, 1), List.of("a"));
            return;
        }
        throw new AssertionError("attached");
    }

    private static void exchange(Connection connection, Session session) throws Exception {
        String name = Broker.queue("quorum");
        Broker.bind("amq.topic", name, "jms.*");
        send(session, session.createQueue("/exchanges/amq.topic/jms.orders"), "a");
        send(session, session.createTopic("/exchanges/amq.topic/jms.orders"), "b");
        Checks.same(take(session, queue(session, name), 2), List.of("a", "b"));
    }

    private static void unroutable(Connection connection, Session session) throws Exception {
        try {
            send(session, session.createQueue("/exchanges/amq.direct/nowhere"), "a");
        } catch (JMSException expected) {
            return;
        }
        throw new AssertionError("sent");
    }

    private static void deletedQueue(Connection connection, Session session) throws Exception {
        String name = Broker.queue("classic");
        CountDownLatch closed = new CountDownLatch(1);
        connection.setExceptionListener(error -> closed.countDown());
        MessageConsumer consumer = session.createConsumer(queue(session, name));
        consumer.setMessageListener(message -> { });
        Broker.delete(name);
        Checks.holds(closed.await(PATIENCE, TimeUnit.MILLISECONDS), "the end of the consumer");
    }

    private static void context() throws Exception {
        String name = Broker.queue("quorum");
        try (var context = factory("guest", "guest").createContext()) {
            Queue queue = context.createQueue("/queues/" + name);
            context.createProducer().setProperty("number", 7).send(queue, "a");
            Message message = context.createConsumer(queue).receive(PATIENCE);
            Checks.same(text(message), "a");
            Checks.same(message.getIntProperty("number"), 7);
        }
    }

    private static void sessions(Connection connection, Session session) throws Exception {
        Queue queue = queue(session, Broker.queue("classic"));
        Session other = connection.createSession(Session.DUPS_OK_ACKNOWLEDGE);
        send(other, queue, "a");
        Checks.same(take(other, queue, 1), List.of("a"));
        other.close();
        send(session, queue, "b");
        Checks.same(take(session, queue, 1), List.of("b"));
    }

    /** The bodies of the messages that a browser enumerates. */
    private static List<String> browse(Session session, Queue queue, String selector) throws JMSException {
        List<String> bodies = new ArrayList<>();
        try (QueueBrowser browser = session.createBrowser(queue, selector)) {
            var messages = browser.getEnumeration();
            while (messages.hasMoreElements()) {
                bodies.add(text((Message) messages.nextElement()));
            }
        }
        return bodies;
    }

    private static void browser(Connection connection, Session session, String kind) throws Exception {
        Queue queue = queue(session, Broker.queue(kind));
        Checks.same(browse(session, queue, null), List.of());
        List<String> sent = new ArrayList<>();
        for (int n = 0; n < 1500; n++) {
            sent.add("message " + n);
        }
        send(session, queue, sent.toArray(new String[0]));
        for (int round = 0; round < 2; round++) {
            Checks.same(browse(session, queue, null), sent);
        }
        try (MessageConsumer consumer = session.createConsumer(queue)) {
            for (String body : sent) {
                Message message = consumer.receive(PATIENCE);
                Checks.same(text(message), body);
                Checks.same(message.getJMSRedelivered(), false);
            }
        }
        Checks.same(browse(session, queue, null), List.of());
    }

    private static void browserPrefetch(Connection connection, Session session, String kind) throws Exception {
        String name = Broker.queue(kind);
        List<String> sent = List.of("a", "b", "c", "d", "e");
        send(session, queue(session, name), sent.toArray(new String[0]));
        for (int prefetch : List.of(0, 1, 3)) {
            String options = OPTIONS + "&jms.prefetchPolicy.queueBrowserPrefetch=" + prefetch;
            var factory = new JmsConnectionFactory("guest", "guest", "amqp://127.0.0.1:5672" + options);
            try (Connection other = factory.createConnection()) {
                other.start();
                Session browsing = other.createSession(Session.AUTO_ACKNOWLEDGE);
                Checks.same(browse(browsing, queue(browsing, name), null), sent);
            }
        }
        Checks.same(Broker.ready(name), sent.size());
    }

    private static void browserWithSelector(Connection connection, Session session, String kind) throws Exception {
        Queue queue = queue(session, Broker.queue(kind));
        sendColours(session, queue, 600, "blue", "red");
        List<String> expected = new ArrayList<>();
        for (int n = 501; n < 600; n += 2) {
            expected.add("red" + n);
        }
        Checks.same(browse(session, queue, "colour = 'red' AND size > 500"), expected);
        Checks.same(browse(session, queue, "colour = 'green'"), List.of());
    }

    private static void browserOfPriorities(Connection connection, Session session, String kind) throws Exception {
        Map<String, Object> arguments = kind.equals("classic") ? Map.of("x-max-priority", 9) : Map.of();
        Queue queue = queue(session, Broker.queue(kind, arguments));
        try (MessageProducer producer = session.createProducer(queue)) {
            for (int priority : List.of(1, 9, 5)) {
                producer.setPriority(priority);
                producer.send(session.createTextMessage("" + priority));
            }
        }
        Checks.same(browse(session, queue, null), List.of("9", "5", "1"));
    }

    private static void browserOfLargeMessages(Connection connection, Session session, String kind) throws Exception {
        Queue queue = queue(session, Broker.queue(kind));
        String large = "0123456789abcdef".repeat(400_000);
        send(session, queue, "a", large, "b");
        Checks.same(browse(session, queue, null), List.of("a", large, "b"));
    }

    private static void browserBesideConsumer(Connection connection, Session session, String kind) throws Exception {
        String name = Broker.queue(kind);
        send(session, queue(session, name), "a", "b", "c", "d", "e");
        var factory = new JmsConnectionFactory(
            "guest", "guest", "amqp://127.0.0.1:5672" + OPTIONS + "&jms.prefetchPolicy.queuePrefetch=0");
        try (Connection other = factory.createConnection()) {
            other.start();
            Session working = other.createSession(Session.CLIENT_ACKNOWLEDGE);
            MessageConsumer consumer = working.createConsumer(queue(working, name));
            Message first = consumer.receive(PATIENCE);
            Checks.same(text(first), "a");
            Checks.same(browse(session, queue(session, name), null), List.of("b", "c", "d", "e"));
            first.acknowledge();
            Checks.same(text(consumer.receive(PATIENCE)), "b");
            Checks.same(browse(session, queue(session, name), null), List.of("c", "d", "e"));
        }
        // The second message returns when the connection ends.
        List<String> expected = List.of("b", "c", "d", "e");
        Checks.until("the second message", () ->
                browse(session, queue(session, name), null).equals(expected) ? expected : null);
    }

    private static void browserOfTransactedSession(Connection connection, Session session, String kind) throws Exception {
        String name = Broker.queue(kind);
        try (Session transacted = connection.createSession(Session.SESSION_TRANSACTED)) {
            Queue queue = queue(transacted, name);
            send(transacted, queue, "a", "b");
            Checks.same(browse(transacted, queue, null), List.of());
            transacted.commit();
            Checks.same(browse(transacted, queue, null), List.of("a", "b"));
            transacted.rollback();
            Checks.same(browse(transacted, queue, null), List.of("a", "b"));
            Checks.same(take(transacted, queue, 2), List.of("a", "b"));
            Checks.same(browse(transacted, queue, null), List.of());
            transacted.commit();
        }
        Checks.same(Broker.ready(name), 0);
    }

    private static void browserOfMissingQueue(Connection connection, Session session) throws Exception {
        try (QueueBrowser browser = session.createBrowser(session.createQueue("/queues/missing"))) {
            browser.getEnumeration();
        } catch (InvalidDestinationException expected) {
            return;
        }
        throw new AssertionError("attached");
    }

    private static void committed(Connection connection, Session session) throws Exception {
        String name = Broker.queue("quorum");
        try (Session transacted = connection.createSession(Session.SESSION_TRANSACTED)) {
            send(transacted, queue(transacted, name), "a", "b");
            Checks.same(Broker.ready(name), 0);
            transacted.commit();
        }
        Checks.same(take(session, queue(session, name), 2), List.of("a", "b"));
    }

    private static void rolledBack(Connection connection, Session session) throws Exception {
        String name = Broker.queue("quorum");
        send(session, queue(session, name), "kept");
        try (Session transacted = connection.createSession(Session.SESSION_TRANSACTED)) {
            Checks.same(take(transacted, queue(transacted, name), 1), List.of("kept"));
            send(transacted, queue(transacted, name), "dropped");
            transacted.rollback();
        }
        Checks.same(take(session, queue(session, name), 1), List.of("kept"));
        Checks.same(Broker.ready(name), 0);
    }

    private static void sendColours(Session session, Queue queue, int count, String... colours) throws Exception {
        try (MessageProducer producer = session.createProducer(queue)) {
            for (int n = 0; n < count; n++) {
                String colour = colours[n % colours.length];
                TextMessage message = session.createTextMessage(colour + n);
                message.setStringProperty("colour", colour);
                message.setIntProperty("size", n);
                producer.send(message);
            }
        }
    }

    private static void selector(Connection connection, Session session, String kind) throws Exception {
        String name = Broker.queue(kind);
        Queue queue = queue(session, name);
        try (MessageConsumer consumer = session.createConsumer(queue, "colour = 'red' AND size > 1")) {
            Checks.same(consumer.receiveNoWait(), null);
            sendColours(session, queue, 6, "blue", "red");
            Checks.same(text(consumer.receive(PATIENCE)), "red3");
            Checks.same(text(consumer.receive(PATIENCE)), "red5");
            // This drains the link: the broker has compared all messages.
            Checks.same(consumer.receiveNoWait(), null);
        }
        // The others are in order for a consumer without a selector.
        Checks.same(take(session, queue, 4), List.of("blue0", "red1", "blue2", "blue4"));
        Checks.same(Broker.ready(name), 0);
    }

    private static void selectorOfReturned(Connection connection, Session session, String kind) throws Exception {
        Queue queue = queue(session, Broker.queue(kind));
        sendColours(session, queue, 4, "blue", "red");
        try (Session other = connection.createSession(Session.CLIENT_ACKNOWLEDGE);
                MessageConsumer reds = session.createConsumer(queue, "colour = 'red'")) {
            Checks.same(text(reds.receive(PATIENCE)), "red1");
            Checks.same(text(reds.receive(PATIENCE)), "red3");
            Checks.same(reds.receiveNoWait(), null);
            // Another consumer takes a message that the selector has passed over, and one that it has not seen.
            sendColours(session, queue, 1, "red");
            Checks.same(text(reds.receive(PATIENCE)), "red0");
            MessageConsumer all = other.createConsumer(queue);
            Checks.same(text(all.receive(PATIENCE)), "blue0");
            Checks.same(text(all.receive(PATIENCE)), "blue2");
            all.close();
        }
        // Both are back, in order, and only for those whose selector they satisfy.
        try (MessageConsumer reds = session.createConsumer(queue, "colour = 'red'");
                MessageConsumer blues = session.createConsumer(queue, "colour LIKE 'bl%'")) {
            Checks.same(reds.receiveNoWait(), null);
            Checks.same(text(blues.receive(PATIENCE)), "blue0");
            Checks.same(text(blues.receive(PATIENCE)), "blue2");
        }
    }

    private static void selectors(Connection connection, Session session, String kind) throws Exception {
        String name = Broker.queue(kind);
        Queue queue = queue(session, name);
        int count = 600;
        sendColours(session, queue, count, "red", "green", "blue");
        for (String colour : List.of("blue", "red", "green")) {
            try (MessageConsumer consumer = session.createConsumer(queue, "colour = '" + colour + "'")) {
                for (int n = 0; n < count / 3; n++) {
                    Checks.holds(text(consumer.receive(PATIENCE)).startsWith(colour), "a message with the colour " + colour);
                }
                Checks.same(consumer.receiveNoWait(), null);
            }
        }
        Checks.same(Broker.ready(name), 0);
    }
}
