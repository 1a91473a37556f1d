import static java.nio.charset.StandardCharsets.UTF_8;

import com.rabbitmq.client.amqp.AmqpException;
import com.rabbitmq.client.amqp.BackOffDelayPolicy;
import com.rabbitmq.client.amqp.Connection;
import com.rabbitmq.client.amqp.ConnectionBuilder;
import com.rabbitmq.client.amqp.Consumer;
import com.rabbitmq.client.amqp.Environment;
import com.rabbitmq.client.amqp.Management;
import com.rabbitmq.client.amqp.Management.ExchangeType;
import com.rabbitmq.client.amqp.Management.OverflowStrategy;
import com.rabbitmq.client.amqp.Management.QueueType;
import com.rabbitmq.client.amqp.Message;
import com.rabbitmq.client.amqp.Publisher;
import com.rabbitmq.client.amqp.Publisher.Status;
import com.rabbitmq.client.amqp.Requester;
import com.rabbitmq.client.amqp.Resource;
import com.rabbitmq.client.amqp.Responder;
import com.rabbitmq.client.amqp.impl.AmqpEnvironmentBuilder;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

/** RabbitMQ's Java client for AMQP 1.0 against Posthorn: what an application does with it. */
final class Scenario {
    private static final List<QueueType> KINDS = List.of(QueueType.CLASSIC, QueueType.QUORUM);
    private static final long PATIENCE = Checks.PATIENCE.toSeconds();
    private static final AtomicInteger NUMBERS = new AtomicInteger();

    interface Step {
        void run(Connection connection) throws Exception;
    }

    interface KindStep {
        void run(Connection connection, QueueType kind) throws Exception;
    }

    /** A message that a consumer received, and what settles it. */
    record Received(Message message, Consumer.Context context) {}

    private static Checks checks;
    private static Environment environment;

    public static void main(String[] words) throws Exception {
        checks = new Checks(words);
        environment = new AmqpEnvironmentBuilder().connectionSettings().uri("amqp://guest:guest@127.0.0.1:5672/%2F")
                .environmentBuilder().build();
        one("the connection names broker and node", Scenario::connectionInfo);
        one("a wrong password is refused", connection -> wrongPassword());
        one("a missing virtual host is refused", connection -> missingVhost());
        each("queues are declared, described and deleted", Scenario::queues);
        each("a queue is declared with every argument", Scenario::queueArguments);
        one("another declaration of a queue is refused", Scenario::conflict);
        one("exchanges and bindings route", Scenario::bindings);
        one("headers bindings with arguments are removed by them", Scenario::bindingArguments);
        one("exchanges are bound to exchanges", Scenario::exchangeToExchange);
        one("names are encoded", Scenario::names);
        each("messages are accepted and consumed", Scenario::publishAndConsume);
        each("properties of every type arrive", Scenario::properties);
        each("a message without a queue is released", Scenario::released);
        each("a full queue rejects", Scenario::rejected);
        one("messages name their address", Scenario::anonymous);
        each("discarded messages are dead-lettered", Scenario::discard);
        each("requeued messages return", Scenario::requeue);
        one("annotations of requeued messages stay", Scenario::requeueAnnotations);
        each("batches are settled together", Scenario::batch);
        each("credit limits unsettled messages", Scenario::credit);
        each("a consumer pauses", Scenario::pause);
        one("a settled consumer needs no settlement", Scenario::preSettled);
        one("priorities choose the consumer", Scenario::priority);
        one("a single active consumer hands over", Scenario::singleActive);
        one("a missing queue does not exist", Scenario::missingQueue);
        one("publisher and consumer end with their queue", Scenario::deletedQueue);
        one("an exclusive queue belongs to its connection", Scenario::exclusive);
        one("requests are answered over a queue", Scenario::requests);
        one("a closed connection closes its resources", connection -> closedConnection());
        checks.check("connection, topology and consumers recover from a killed node", Scenario::recovery);
        checks.end("rabbitmq-amqp-java");
    }

    private static void one(String name, Step step) {
        checks.check(name, () -> {
            try (Connection connection = environment.connectionBuilder().build()) {
                step.run(connection);
            }
        });
    }

    private static void each(String name, KindStep step) {
        for (QueueType kind : KINDS) {
            one(name + ": " + kind.name().toLowerCase(), connection -> step.run(connection, kind));
        }
    }

    private static String fresh(String prefix) {
        return prefix + "-" + NUMBERS.getAndIncrement();
    }

    private static String queue(Connection connection, QueueType kind, Map<String, Object> arguments) {
        return connection.management().queue(fresh("queue")).arguments(arguments).type(kind).declare().name();
    }

    private static String queue(Connection connection, QueueType kind) {
        return queue(connection, kind, Map.of());
    }

    private static Publisher publisher(Connection connection, String queue) {
        return connection.publisherBuilder().queue(queue).build();
    }

    private static Status publish(Publisher publisher, Message message) throws Exception {
        CompletableFuture<Status> status = new CompletableFuture<>();
        publisher.publish(message, context -> status.complete(context.status()));
        return status.get(PATIENCE, TimeUnit.SECONDS);
    }

    private static Status publish(Publisher publisher, String body) throws Exception {
        return publish(publisher, publisher.message(body.getBytes(UTF_8)));
    }

    private static void publish(Connection connection, String queue, String... bodies) throws Exception {
        try (Publisher publisher = publisher(connection, queue)) {
            for (String body : bodies) {
                Checks.same(publish(publisher, body), Status.ACCEPTED);
            }
        }
    }

    private static BlockingQueue<Received> consume(Connection connection, String queue, int credit, List<Consumer> consumers) {
        BlockingQueue<Received> inbox = new LinkedBlockingQueue<>();
        consumers.add(connection.consumerBuilder().queue(queue).initialCredits(credit)
                .messageHandler((context, message) -> inbox.add(new Received(message, context))).build());
        return inbox;
    }

    private static BlockingQueue<Received> consume(Connection connection, String queue) {
        return consume(connection, queue, 10, new ArrayList<>());
    }

    private static Received next(BlockingQueue<Received> inbox) throws Exception {
        Received received = inbox.poll(PATIENCE, TimeUnit.SECONDS);
        Checks.holds(received != null, "a message");
        return received;
    }

    private static String body(Message message) {
        return new String(message.body(), UTF_8);
    }

    private static void awaitCount(Connection connection, String queue, long count) throws Exception {
        Checks.until(count + " messages in " + queue,
                () -> connection.management().queueInfo(queue).messageCount() == count ? true : null);
    }

    private static <E extends Exception> void fails(Class<E> type, Checks.Body body) throws Exception {
        try {
            body.run();
        } catch (Exception error) {
            Checks.holds(type.isInstance(error), type + ", got: " + error);
            return;
        }
        throw new AssertionError("no error");
    }

    private static void connectionInfo(Connection connection) {
        Checks.same(connection.connectionInfo().brokerProductName(), "RabbitMQ");
        Checks.holds(connection.connectionInfo().brokerVersion().startsWith("4."), "a version of RabbitMQ 4");
        Checks.holds(!connection.connectionInfo().brokerNode().isEmpty(), "the name of the node");
    }

    private static void wrongPassword() throws Exception {
        fails(AmqpException.AmqpSecurityException.class,
                () -> environment.connectionBuilder().uri("amqp://guest:wrong@127.0.0.1:5672/%2F").build().close());
    }

    private static void missingVhost() throws Exception {
        fails(AmqpException.class, () -> environment.connectionBuilder().uri("amqp://guest:guest@127.0.0.1:5672/missing").build().close());
    }

    private static void queues(Connection connection, QueueType kind) throws Exception {
        String name = queue(connection, kind);
        publish(connection, name, "a", "b");
        Management management = connection.management();
        Management.QueueInfo info = management.queueInfo(name);
        Checks.same(info.name(), name);
        Checks.same(info.type(), kind);
        Checks.same(info.messageCount(), 2L);
        Checks.same(info.consumerCount(), 0);
        Checks.same(info.durable(), true);
        Checks.same(info.members(), List.of(info.leader()));
        Checks.same(management.queuePurge(name).messageCount(), 2L);
        management.queueDelete(name);
        fails(AmqpException.AmqpEntityDoesNotExistException.class, () -> management.queueInfo(name));
        String generated = management.queue().type(kind).declare().name();
        Checks.holds(!generated.isEmpty(), "a name");
        management.queueDelete(generated);
    }

    private static void queueArguments(Connection connection, QueueType kind) throws Exception {
        Management.QueueSpecification specification = connection.management().queue(fresh("queue")).type(kind)
                .deadLetterExchange("amq.fanout").deadLetterRoutingKey("key").overflowStrategy(OverflowStrategy.REJECT_PUBLISH)
                .expires(Duration.ofMinutes(1)).maxLength(10).messageTtl(Duration.ofSeconds(10)).singleActiveConsumer(true);
        specification = kind == QueueType.QUORUM
                ? specification.quorum().deliveryLimit(5).deadLetterStrategy("at-most-once").initialMemberCount(1).queue()
                : specification.classic().maxPriority(5).version(Management.ClassicQueueVersion.V2).queue();
        Management.QueueInfo info = specification.declare();
        Checks.same(((Number) info.arguments().get("x-max-length")).longValue(), 10L);
        Checks.same(info.arguments().get("x-overflow"), "reject-publish");
    }

    private static void conflict(Connection connection) throws Exception {
        String name = queue(connection, QueueType.CLASSIC);
        fails(AmqpException.class, () -> connection.management().queue(name).type(QueueType.QUORUM).declare());
        // Management goes on.
        Checks.same(connection.management().queueInfo(name).type(), QueueType.CLASSIC);
    }

    private static void bindings(Connection connection) throws Exception {
        Management management = connection.management();
        for (ExchangeType type : List.of(ExchangeType.DIRECT, ExchangeType.TOPIC, ExchangeType.FANOUT)) {
            String exchange = fresh("exchange");
            String queue = queue(connection, QueueType.QUORUM);
            management.exchange(exchange).type(type).declare();
            management.binding().sourceExchange(exchange).destinationQueue(queue).key("orders.new").bind();
            try (Publisher publisher = connection.publisherBuilder().exchange(exchange).key("orders.new").build()) {
                Checks.same(publish(publisher, "a"), Status.ACCEPTED);
                management.unbind().sourceExchange(exchange).destinationQueue(queue).key("orders.new").unbind();
                Checks.same(publish(publisher, "b"), Status.RELEASED);
            }
            Checks.same(management.queueInfo(queue).messageCount(), 1L);
            management.exchangeDelete(exchange);
        }
    }

    private static void bindingArguments(Connection connection) throws Exception {
        Management management = connection.management();
        String exchange = fresh("exchange");
        String queue = queue(connection, QueueType.CLASSIC);
        management.exchange(exchange).type(ExchangeType.HEADERS).declare();
        Map<String, Object> red = Map.of("x-match", "all", "colour", "red");
        for (Map<String, Object> arguments : List.of(red, Map.<String, Object>of("x-match", "all", "colour", "blue"))) {
            management.binding().sourceExchange(exchange).destinationQueue(queue).arguments(arguments).bind();
        }
        try (Publisher publisher = connection.publisherBuilder().exchange(exchange).build()) {
            Checks.same(publish(publisher, publisher.message().property("colour", "red")), Status.ACCEPTED);
            management.unbind().sourceExchange(exchange).destinationQueue(queue).arguments(red).unbind();
            Checks.same(publish(publisher, publisher.message().property("colour", "red")), Status.RELEASED);
            Checks.same(publish(publisher, publisher.message().property("colour", "blue")), Status.ACCEPTED);
        }
    }

    private static void exchangeToExchange(Connection connection) throws Exception {
        Management management = connection.management();
        String first = fresh("exchange");
        String second = fresh("exchange");
        String queue = queue(connection, QueueType.CLASSIC);
        management.exchange(first).type(ExchangeType.FANOUT).declare();
        management.exchange(second).type(ExchangeType.FANOUT).declare();
        management.binding().sourceExchange(first).destinationExchange(second).bind();
        management.binding().sourceExchange(second).destinationQueue(queue).bind();
        try (Publisher publisher = connection.publisherBuilder().exchange(first).build()) {
            Checks.same(publish(publisher, "a"), Status.ACCEPTED);
            management.unbind().sourceExchange(first).destinationExchange(second).unbind();
            Checks.same(publish(publisher, "b"), Status.RELEASED);
        }
    }

    private static void names(Connection connection) throws Exception {
        String name = fresh("a/b é%;=&");
        connection.management().queue(name).type(QueueType.QUORUM).declare();
        publish(connection, name, "a");
        Checks.same(body(next(consume(connection, name)).message()), "a");
        String exchange = fresh("x/é %");
        connection.management().exchange(exchange).type(ExchangeType.DIRECT).declare();
        connection.management().binding().sourceExchange(exchange).destinationQueue(name).key("k /é").bind();
        try (Publisher publisher = connection.publisherBuilder().exchange(exchange).key("k /é").build()) {
            Checks.same(publish(publisher, "b"), Status.ACCEPTED);
        }
        connection.management().unbind().sourceExchange(exchange).destinationQueue(name).key("k /é").unbind();
    }

    private static void publishAndConsume(Connection connection, QueueType kind) throws Exception {
        String queue = queue(connection, kind);
        CountDownLatch accepted = new CountDownLatch(500);
        try (Publisher publisher = publisher(connection, queue)) {
            for (int i = 0; i < 500; i++) {
                publisher.publish(publisher.message(("" + i).getBytes(UTF_8)), context -> {
                    if (context.status() == Status.ACCEPTED) {
                        accepted.countDown();
                    }
                });
            }
            Checks.holds(accepted.await(PATIENCE, TimeUnit.SECONDS), "500 accepted messages");
        }
        BlockingQueue<Received> inbox = consume(connection, queue);
        for (int i = 0; i < 500; i++) {
            Received received = next(inbox);
            Checks.same(body(received.message()), "" + i);
            received.context().accept();
        }
        awaitCount(connection, queue, 0);
    }

    private static void properties(Connection connection, QueueType kind) throws Exception {
        String queue = queue(connection, kind);
        UUID id = UUID.randomUUID();
        try (Publisher publisher = publisher(connection, queue)) {
            Message message = publisher.message("a".getBytes(UTF_8)).messageId(id).correlationId(7L).subject("subject")
                    .userId("guest".getBytes(UTF_8)).contentType("text/plain").contentEncoding("identity").groupId("group")
                    .groupSequence(3).replyToGroupId("others").creationTime(1_600_000_000_000L).priority((byte) 3).durable(true)
                    .property("text", "é").property("int", 7).property("long", 5_000_000_000L).property("yes", true)
                    .property("double", 0.5).property("byte", (byte) 1).property("uuid", id)
                    .propertyUnsigned("unsigned", 7).propertyTimestamp("time", 1_600_000_000_000L)
                    .annotation("x-opt-a", "annotation");
            Checks.same(publish(publisher, message), Status.ACCEPTED);
        }
        Message got = next(consume(connection, queue)).message();
        Checks.same(got.messageIdAsUuid(), id);
        Checks.same(got.correlationIdAsLong(), 7L);
        Checks.same(got.subject(), "subject");
        Checks.same(new String(got.userId(), UTF_8), "guest");
        Checks.same(got.contentType(), "text/plain");
        Checks.same(got.groupId(), "group");
        Checks.same(got.groupSequence(), 3);
        Checks.same(got.creationTime(), 1_600_000_000_000L);
        Checks.same(got.priority(), (byte) 3);
        Checks.same(got.durable(), true);
        Checks.same(got.property("text"), "é");
        Checks.same(got.property("int"), 7);
        Checks.same(got.property("long"), 5_000_000_000L);
        Checks.same(got.property("yes"), true);
        Checks.same(got.property("double"), 0.5);
        Checks.same(got.property("byte"), (byte) 1);
        Checks.same(got.property("uuid"), id);
        Checks.same(got.annotation("x-opt-a"), "annotation");
        Checks.same(got.deliveryCount(), 0L);
    }

    private static void released(Connection connection, QueueType kind) throws Exception {
        try (Publisher publisher = connection.publisherBuilder().exchange("amq.direct").key("nowhere").build()) {
            Checks.same(publish(publisher, "a"), Status.RELEASED);
        }
    }

    private static void rejected(Connection connection, QueueType kind) throws Exception {
        String queue = queue(connection, kind, Map.of("x-max-length", 1, "x-overflow", "reject-publish"));
        try (Publisher publisher = publisher(connection, queue)) {
            Checks.until("a rejection", () -> publish(publisher, "a") == Status.REJECTED ? true : null);
        }
    }

    private static void anonymous(Connection connection) throws Exception {
        String queue = queue(connection, QueueType.QUORUM);
        try (Publisher publisher = connection.publisherBuilder().build()) {
            Checks.same(publish(publisher, publisher.message().toAddress().queue(queue).message()), Status.ACCEPTED);
            Checks.same(publish(publisher, publisher.message().toAddress().exchange("amq.fanout").message()), Status.RELEASED);
            Checks.same(publish(publisher, publisher.message().toAddress().exchange("missing").message()), Status.REJECTED);
        }
        awaitCount(connection, queue, 1);
    }

    private static void discard(Connection connection, QueueType kind) throws Exception {
        String dead = queue(connection, QueueType.QUORUM);
        String queue = queue(connection, kind, Map.of("x-dead-letter-exchange", "", "x-dead-letter-routing-key", dead));
        publish(connection, queue, "a", "b");
        BlockingQueue<Received> inbox = consume(connection, queue);
        next(inbox).context().discard();
        next(inbox).context().discard(Map.of("x-opt-why", "bad"));
        BlockingQueue<Received> letters = consume(connection, dead);
        List<Message> got = new ArrayList<>(List.of(next(letters).message(), next(letters).message()));
        got.sort((a, b) -> body(a).compareTo(body(b)));
        Checks.same(body(got.get(0)), "a");
        if (kind == QueueType.QUORUM) {
            Checks.same(got.get(1).annotation("x-opt-why"), "bad");
        }
        Checks.same(got.get(0).annotation("x-first-death-queue") != null || got.get(0).annotation("x-opt-first-death-queue") != null, true);
    }

    private static void requeue(Connection connection, QueueType kind) throws Exception {
        String queue = queue(connection, kind);
        publish(connection, queue, "a");
        BlockingQueue<Received> inbox = consume(connection, queue);
        next(inbox).context().requeue();
        Received again = next(inbox);
        Checks.same(again.message().firstAcquirer(), false);
        again.context().accept();
        awaitCount(connection, queue, 0);
    }

    private static void requeueAnnotations(Connection connection) throws Exception {
        String queue = queue(connection, QueueType.QUORUM);
        publish(connection, queue, "a");
        BlockingQueue<Received> inbox = consume(connection, queue);
        next(inbox).context().requeue(Map.of("x-opt-why", "busy"));
        Received again = next(inbox);
        Checks.same(again.message().annotation("x-opt-why"), "busy");
        Checks.same(again.message().deliveryCount(), 0L);
        again.context().requeue(Map.of(), true);
        Received third = next(inbox);
        Checks.same(third.message().deliveryCount(), 1L);
        third.context().accept();
    }

    private static void batch(Connection connection, QueueType kind) throws Exception {
        String queue = queue(connection, kind);
        publish(connection, queue, "a", "b", "c", "d");
        BlockingQueue<Received> inbox = consume(connection, queue);
        Received first = next(inbox);
        Consumer.BatchContext batch = first.context().batch(4);
        batch.add(first.context());
        for (int i = 0; i < 3; i++) {
            batch.add(next(inbox).context());
        }
        batch.accept();
        awaitCount(connection, queue, 0);
    }

    private static void credit(Connection connection, QueueType kind) throws Exception {
        String queue = queue(connection, kind);
        publish(connection, queue, "a", "b", "c", "d", "e");
        List<Consumer> consumers = new ArrayList<>();
        BlockingQueue<Received> inbox = consume(connection, queue, 2, consumers);
        Received first = next(inbox);
        next(inbox);
        connection.management().queueInfo(queue);
        Checks.same(inbox.size(), 0);
        Checks.same(consumers.get(0).unsettledMessageCount(), 2L);
        first.context().accept();
        Checks.same(body(next(inbox).message()), "c");
        // The end of a consumer returns what it has not settled.
        consumers.get(0).close();
        Checks.same(body(next(consume(connection, queue)).message()), "b");
    }

    private static void pause(Connection connection, QueueType kind) throws Exception {
        String queue = queue(connection, kind);
        List<Consumer> consumers = new ArrayList<>();
        BlockingQueue<Received> inbox = consume(connection, queue, 10, consumers);
        consumers.get(0).pause();
        publish(connection, queue, "a");
        awaitCount(connection, queue, 1);
        Checks.same(inbox.size(), 0);
        consumers.get(0).unpause();
        next(inbox).context().accept();
        awaitCount(connection, queue, 0);
    }

    private static void preSettled(Connection connection) throws Exception {
        String queue = queue(connection, QueueType.QUORUM);
        publish(connection, queue, "a", "b");
        BlockingQueue<String> inbox = new LinkedBlockingQueue<>();
        connection.consumerBuilder().queue(queue).preSettled().messageHandler((context, message) -> inbox.add(body(message))).build();
        Checks.same(inbox.poll(PATIENCE, TimeUnit.SECONDS), "a");
        Checks.same(inbox.poll(PATIENCE, TimeUnit.SECONDS), "b");
        awaitCount(connection, queue, 0);
    }

    private static void priority(Connection connection) throws Exception {
        String queue = queue(connection, QueueType.QUORUM);
        BlockingQueue<String> inbox = new LinkedBlockingQueue<>();
        for (int priority : List.of(1, 5, 3)) {
            connection.consumerBuilder().queue(queue).priority(priority).messageHandler((context, message) -> {
                inbox.add("" + priority);
                context.accept();
            }).build();
        }
        publish(connection, queue, "a");
        Checks.same(inbox.poll(PATIENCE, TimeUnit.SECONDS), "5");
    }

    private static void singleActive(Connection connection) throws Exception {
        String queue = queue(connection, QueueType.QUORUM, Map.of("x-single-active-consumer", true));
        List<Consumer> consumers = new ArrayList<>();
        BlockingQueue<Received> first = consume(connection, queue, 10, consumers);
        BlockingQueue<Received> second = consume(connection, queue, 10, consumers);
        publish(connection, queue, "a");
        next(first).context().accept();
        Checks.same(second.size(), 0);
        consumers.get(0).close();
        publish(connection, queue, "b");
        Checks.same(body(next(second).message()), "b");
    }

    private static void missingQueue(Connection connection) throws Exception {
        fails(AmqpException.AmqpEntityDoesNotExistException.class, () -> publisher(connection, "missing"));
        fails(AmqpException.AmqpEntityDoesNotExistException.class, () -> consume(connection, "missing"));
        fails(AmqpException.AmqpEntityDoesNotExistException.class,
                () -> connection.publisherBuilder().exchange("missing").build());
    }

    private static void deletedQueue(Connection connection) throws Exception {
        String queue = queue(connection, QueueType.CLASSIC);
        CountDownLatch closed = new CountDownLatch(2);
        List<String> causes = Collections.synchronizedList(new ArrayList<>());
        Resource.StateListener listener = context -> {
            if (context.currentState() == Resource.State.CLOSED) {
                causes.add(String.valueOf(context.failureCause()));
                closed.countDown();
            }
        };
        Publisher publisher = connection.publisherBuilder().queue(queue).listeners(listener).build();
        connection.consumerBuilder().queue(queue).listeners(listener)
                .messageHandler((context, message) -> context.accept()).build();
        Checks.same(publish(publisher, "a"), Status.ACCEPTED);
        connection.management().queueDelete(queue);
        Checks.until("the end of the publisher", () -> {
            try {
                publisher.publish(publisher.message(), context -> { });
            } catch (AmqpException expected) {
                return true;
            }
            return null;
        });
        Checks.holds(closed.await(PATIENCE, TimeUnit.SECONDS), "the end of both");
        Checks.holds(causes.stream().allMatch(cause -> cause.contains("deleted")), "the reason, got: " + causes);
    }

    private static void exclusive(Connection connection) throws Exception {
        String queue = connection.management().queue(fresh("exclusive")).type(QueueType.CLASSIC).exclusive(true).declare().name();
        publish(connection, queue, "a");
        try (Connection other = environment.connectionBuilder().build()) {
            fails(AmqpException.class, () -> consume(other, queue));
        }
        Checks.same(body(next(consume(connection, queue)).message()), "a");
    }

    private static void requests(Connection connection) throws Exception {
        String requests = queue(connection, QueueType.QUORUM);
        String replies = queue(connection, QueueType.CLASSIC);
        try (Responder responder = connection.responderBuilder().requestQueue(requests)
                        .handler((context, message) -> context.message(("answer to " + body(message)).getBytes(UTF_8))).build();
                Requester requester = connection.requesterBuilder().requestAddress().queue(requests).requester()
                        .replyToQueue(replies).build()) {
            for (int i = 0; i < 20; i++) {
                Message answer = requester.publish(requester.message(("" + i).getBytes(UTF_8))).get(PATIENCE, TimeUnit.SECONDS);
                Checks.same(body(answer), "answer to " + i);
            }
        }
    }

    private static void closedConnection() throws Exception {
        Connection connection = environment.connectionBuilder().build();
        Publisher publisher = publisher(connection, queue(connection, QueueType.CLASSIC));
        connection.close();
        fails(AmqpException.class, () -> publisher.publish(publisher.message(), context -> { }));
    }

    private static void recovery() throws Exception {
        CountDownLatch recovered = new CountDownLatch(1);
        ConnectionBuilder builder = environment.connectionBuilder().recovery()
                .backOffDelayPolicy(BackOffDelayPolicy.fixed(Duration.ofMillis(100))).connectionBuilder()
                .listeners(context -> {
                    if (context.previousState() == Resource.State.RECOVERING && context.currentState() == Resource.State.OPEN) {
                        recovered.countDown();
                    }
                });
        try (Connection connection = builder.build()) {
            String kept = queue(connection, QueueType.QUORUM);
            // The client declares it again.
            String exclusive = connection.management().queue(fresh("exclusive")).type(QueueType.CLASSIC).exclusive(true).declare().name();
            publish(connection, kept, "a", "b");
            BlockingQueue<Received> inbox = consume(connection, exclusive);
            Checks.node("kill", "one");
            Checks.node("start", "one");
            Checks.holds(recovered.await(PATIENCE, TimeUnit.SECONDS), "the recovery");
            Checks.until("a publish to the queue that was declared again", () -> {
                try {
                    publish(connection, exclusive, "c");
                    return true;
                } catch (AmqpException recovering) {
                    return null;
                }
            });
            Checks.same(body(next(inbox).message()), "c");
            BlockingQueue<Received> letters = consume(connection, kept);
            Checks.same(body(next(letters).message()), "a");
            Checks.same(body(next(letters).message()), "b");
        }
    }
}
