import static java.nio.charset.StandardCharsets.UTF_8;

import com.rabbitmq.stream.ByteCapacity;
import com.rabbitmq.stream.Consumer;
import com.rabbitmq.stream.Environment;
import com.rabbitmq.stream.EnvironmentBuilder;
import com.rabbitmq.stream.Message;
import com.rabbitmq.stream.NoOffsetException;
import com.rabbitmq.stream.OffsetSpecification;
import com.rabbitmq.stream.Producer;
import com.rabbitmq.stream.ProducerBuilder;
import com.rabbitmq.stream.StreamDoesNotExistException;
import com.rabbitmq.stream.StreamException;
import com.rabbitmq.stream.compression.Compression;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.UnaryOperator;
import java.util.stream.IntStream;
import java.util.stream.LongStream;

/** RabbitMQ's Java client for streams against Posthorn: what an application does with it. */
final class Scenario {
    private static final long PATIENCE = Checks.PATIENCE.toSeconds();
    private static final AtomicInteger NUMBERS = new AtomicInteger();
    private static Checks checks;

    interface Step {
        void run(Environment environment) throws Exception;
    }

    /** A message that a consumer received. */
    record Received(long offset, String body) {}

    public static void main(String[] words) throws Exception {
        checks = new Checks(words);
        one("a wrong password is refused", environment -> wrongPassword());
        one("a stream is created once and deleted once", Scenario::declare);
        one("messages are confirmed and consumed in order", Scenario::many);
        one("a consumer starts at each kind of offset", Scenario::offsets);
        one("a named producer is deduplicated", Scenario::deduplication);
        one("sub-entries are consumed with each compression", Scenario::subEntries);
        one("a filtered consumer gets the messages of its filter", Scenario::filter);
        one("stored offsets are found again", Scenario::tracking);
        one("a super stream is written and read", Scenario::superStream);
        one("the next single active consumer takes over at the stored offset", Scenario::singleActive);
        one("single active consumers share the partitions", Scenario::sharedPartitions);
        checks.check("producers and consumers recover when their node is killed", Scenario::recovery);
        checks.check("producers and consumers move to another node", Scenario::failover);
        checks.end("stream-java");
    }

    private static void one(String name, Step step) {
        checks.check(name, () -> {
            try (Environment environment = builder().port(5552).build()) {
                step.run(environment);
            }
        });
    }

    private static EnvironmentBuilder builder() {
        return Environment.builder().host("127.0.0.1").recoveryBackOffDelayPolicy(attempt -> Duration.ofMillis(500))
                .topologyUpdateBackOffDelayPolicy(attempt -> Duration.ofMillis(500));
    }

    private static String fresh(String prefix) {
        return prefix + "-" + NUMBERS.getAndIncrement();
    }

    private static String create(Environment environment, String prefix) {
        String stream = fresh(prefix);
        environment.streamCreator().stream(stream).create();
        return stream;
    }

    private static Message message(Producer producer, Object body) {
        return producer.messageBuilder().addData(body.toString().getBytes(UTF_8)).build();
    }

    /** Publishes numbers and waits until all are confirmed. */
    private static void publish(Environment environment, String stream, int from, int to,
            UnaryOperator<ProducerBuilder> settings) throws Exception {
        CountDownLatch confirms = new CountDownLatch(to - from);
        try (Producer producer = settings.apply(environment.producerBuilder().stream(stream)).build()) {
            for (int n = from; n < to; n++) {
                producer.send(message(producer, n), status -> {
                    if (status.isConfirmed()) {
                        confirms.countDown();
                    }
                });
            }
            Checks.holds(confirms.await(PATIENCE, TimeUnit.SECONDS), confirms.getCount() + " more confirms");
        }
    }

    private static void publish(Environment environment, String stream, int from, int to) throws Exception {
        publish(environment, stream, from, to, UnaryOperator.identity());
    }

    /** Consumes a number of messages. */
    private static List<Received> consume(Environment environment, String stream, int count,
            OffsetSpecification offset) throws Exception {
        List<Received> found = Collections.synchronizedList(new ArrayList<>());
        try (Consumer consumer = environment.consumerBuilder().stream(stream).offset(offset)
                .messageHandler((context, message) -> found.add(received(context.offset(), message))).build()) {
            Checks.until(count + " messages of " + stream, () -> found.size() >= count ? true : null);
        }
        return List.copyOf(found);
    }

    private static Received received(long offset, Message message) {
        return new Received(offset, new String(message.getBodyAsBinary(), UTF_8));
    }

    private static List<Received> numbered(int from, int to) {
        return IntStream.range(from, to).mapToObj(n -> new Received(n, String.valueOf(n))).toList();
    }

    private static List<String> bodies(List<Received> messages) {
        return messages.stream().map(Received::body).toList();
    }

    private static List<String> numbers(int from, int to) {
        return IntStream.range(from, to).mapToObj(String::valueOf).toList();
    }

    private static void refused(Class<? extends Exception> kind, Checks.Body body) throws Exception {
        try {
            body.run();
        } catch (Exception error) {
            Checks.holds(kind.isInstance(error), kind + ", got: " + error);
            return;
        }
        throw new AssertionError("it was not refused with " + kind);
    }

    private static void wrongPassword() throws Exception {
        refused(StreamException.class, () -> builder().port(5552).password("wrong").build().close());
    }

    private static void declare(Environment environment) throws Exception {
        String stream = fresh("declare");
        Checks.same(environment.streamExists(stream), false);
        environment.streamCreator().stream(stream).maxLengthBytes(ByteCapacity.MB(10)).maxAge(Duration.ofHours(1)).create();
        // The same settings again are accepted, and others are not.
        environment.streamCreator().stream(stream).maxLengthBytes(ByteCapacity.MB(10)).maxAge(Duration.ofHours(1)).create();
        refused(StreamException.class, () -> environment.streamCreator().stream(stream).maxAge(Duration.ofHours(2)).create());
        Checks.same(environment.streamExists(stream), true);
        environment.deleteStream(stream);
        refused(StreamException.class, () -> environment.deleteStream(stream));
        refused(StreamDoesNotExistException.class, () -> environment.producerBuilder().stream(stream).build());
    }

    private static void many(Environment environment) throws Exception {
        String stream = create(environment, "many");
        publish(environment, stream, 0, 20_000);
        Checks.same(consume(environment, stream, 20_000, OffsetSpecification.first()), numbered(0, 20_000));
        Checks.same(environment.queryStreamStats(stream).firstOffset(), 0L);
        Checks.same(environment.queryStreamStats(stream).committedOffset(), 19_999L);
    }

    private static void offsets(Environment environment) throws Exception {
        String stream = create(environment, "offsets");
        publish(environment, stream, 0, 100);
        long began = System.currentTimeMillis();
        long between = Checks.until("the clock moves on",
                () -> System.currentTimeMillis() > began + 1 ? (Long) System.currentTimeMillis() : null);
        publish(environment, stream, 100, 200);
        Checks.same(consume(environment, stream, 150, OffsetSpecification.offset(50)), numbered(50, 200));
        Checks.same(consume(environment, stream, 100, OffsetSpecification.timestamp(between)), numbered(100, 200));
        long last = consume(environment, stream, 1, OffsetSpecification.last()).get(0).offset();
        Checks.holds(last >= 100, "a chunk of the second batch, got: " + last);
    }

    private static void deduplication(Environment environment) throws Exception {
        String stream = create(environment, "dedup");
        for (int last : new int[] {100, 110}) {
            CountDownLatch confirms = new CountDownLatch(last);
            try (Producer producer = environment.producerBuilder().name("p").confirmTimeout(Duration.ZERO).stream(stream).build()) {
                for (int n = 1; n <= last; n++) {
                    Message message = producer.messageBuilder().publishingId(n).addData(String.valueOf(n).getBytes(UTF_8)).build();
                    producer.send(message, status -> confirms.countDown());
                }
                Checks.holds(confirms.await(PATIENCE, TimeUnit.SECONDS), "duplicates are confirmed too");
                Checks.same(producer.getLastPublishingId(), (long) last);
            }
        }
        Checks.same(bodies(consume(environment, stream, 110, OffsetSpecification.first())), numbers(1, 111));
    }

    private static void subEntries(Environment environment) throws Exception {
        for (Compression compression : Compression.values()) {
            String stream = create(environment, "sub");
            publish(environment, stream, 0, 1000, producer -> producer.subEntrySize(50).compression(compression));
            Checks.same(consume(environment, stream, 1000, OffsetSpecification.first()), numbered(0, 1000));
        }
    }

    private static void filter(Environment environment) throws Exception {
        String stream = create(environment, "filter");
        for (int n : new int[] {1, 2}) {
            publish(environment, stream, n, n + 1, producer -> producer
                    .filterValue(message -> new String(message.getBodyAsBinary(), UTF_8)));
        }
        List<String> found = Collections.synchronizedList(new ArrayList<>());
        try (Consumer consumer = environment.consumerBuilder().stream(stream).offset(OffsetSpecification.first()).filter()
                .values("2").postFilter(message -> new String(message.getBodyAsBinary(), UTF_8).equals("2")).builder()
                .messageHandler((context, message) -> found.add(received(0, message).body())).build()) {
            Checks.until("the message of the filter", () -> found.isEmpty() ? null : true);
        }
        Checks.same(List.copyOf(found), List.of("2"));
    }

    private static void tracking(Environment environment) throws Exception {
        String stream = create(environment, "tracking");
        publish(environment, stream, 0, 20);
        List<Long> found = Collections.synchronizedList(new ArrayList<>());
        // The client takes a stored offset of 0 for none.
        for (int expected : new int[] {20, 35}) {
            try (Consumer consumer = environment.consumerBuilder().stream(stream).name("group").manualTrackingStrategy()
                    .checkInterval(Duration.ZERO).builder().offset(OffsetSpecification.first())
                    .messageHandler((context, message) -> found.add(context.offset())).build()) {
                if (expected == 20) {
                    refused(NoOffsetException.class, consumer::storedOffset);
                }
                Checks.until(expected + " messages", () -> found.size() >= expected ? true : null);
                consumer.store(4);
                Checks.until("the stored offset", () -> consumer.storedOffset() == 4 ? true : null);
            }
        }
        Checks.same(List.copyOf(found), LongStream.concat(LongStream.range(0, 20), LongStream.range(5, 20)).boxed().toList());
    }

    private static void superStream(Environment environment) throws Exception {
        String name = fresh("super");
        environment.streamCreator().name(name).superStream().partitions(3).creator().create();
        publishSuper(environment, name, 300);
        Set<String> found = ConcurrentHashMap.newKeySet();
        Set<String> streams = ConcurrentHashMap.newKeySet();
        try (Consumer consumer = environment.consumerBuilder().superStream(name).offset(OffsetSpecification.first())
                .messageHandler((context, message) -> {
                    streams.add(context.stream());
                    found.add(received(0, message).body());
                }).build()) {
            Checks.until("300 messages", () -> found.size() == 300 ? true : null);
        }
        Checks.same(new TreeSet<>(streams), new TreeSet<>(Set.of(name + "-0", name + "-1", name + "-2")));
        environment.deleteSuperStream(name);
    }

    private static void publishSuper(Environment environment, String name, int count) throws Exception {
        CountDownLatch confirms = new CountDownLatch(count);
        try (Producer producer = environment.producerBuilder().superStream(name)
                .routing(message -> new String(message.getBodyAsBinary(), UTF_8)).producerBuilder().build()) {
            for (int n = 0; n < count; n++) {
                producer.send(message(producer, n), status -> {
                    if (status.isConfirmed()) {
                        confirms.countDown();
                    }
                });
            }
            Checks.holds(confirms.await(PATIENCE, TimeUnit.SECONDS), confirms.getCount() + " more confirms");
        }
    }

    private static void singleActive(Environment environment) throws Exception {
        String stream = create(environment, "single");
        // The client gets whole chunks, and skips messages only at the start of a subscription.
        publish(environment, stream, 0, 7);
        publish(environment, stream, 7, 10);
        Map<Integer, List<Long>> found = new ConcurrentHashMap<>();
        List<Consumer> consumers = new ArrayList<>();
        for (int number : new int[] {1, 2}) {
            List<Long> offsets = found.computeIfAbsent(number, n -> Collections.synchronizedList(new ArrayList<>()));
            consumers.add(environment.consumerBuilder().stream(stream).name("group").singleActiveConsumer()
                    .manualTrackingStrategy().checkInterval(Duration.ZERO).builder().offset(OffsetSpecification.first())
                    .consumerUpdateListener(context -> {
                        try {
                            return OffsetSpecification.offset(context.consumer().storedOffset() + 1);
                        } catch (NoOffsetException none) {
                            return OffsetSpecification.first();
                        }
                    })
                    .messageHandler((context, message) -> offsets.add(context.offset())).build());
            if (number == 1) {
                Checks.until("the messages of the first consumer", () -> offsets.size() == 10 ? true : null);
            }
        }
        Consumer first = consumers.get(0);
        first.store(6);
        Checks.until("the stored offset", () -> first.storedOffset() == 6 ? true : null);
        Checks.same(found.get(2), List.of());
        first.close();
        Checks.until("the messages of the second consumer", () -> found.get(2).size() >= 3 ? true : null);
        Checks.same(found.get(2), List.of(7L, 8L, 9L));
        consumers.get(1).close();
    }

    private static void sharedPartitions(Environment environment) throws Exception {
        String name = fresh("shared");
        environment.streamCreator().name(name).superStream().partitions(2).creator().create();
        Set<String> seen = ConcurrentHashMap.newKeySet();
        List<Consumer> consumers = new ArrayList<>();
        for (int number : new int[] {0, 1}) {
            consumers.add(environment.consumerBuilder().superStream(name).name("group").singleActiveConsumer()
                    .offset(OffsetSpecification.first())
                    .messageHandler((context, message) -> seen.add(number + " " + context.stream())).build());
        }
        Checks.until("each consumer gets messages of the partition with its number", () -> {
            publishSuper(environment, name, 20);
            return seen.containsAll(Set.of("0 " + name + "-0", "1 " + name + "-1")) ? true : null;
        });
        consumers.forEach(Consumer::close);
    }

    /** Publishes and consumes while `fault` happens. Every confirmed message arrives. */
    private static void survive(Environment environment, String stream, Checks.Body fault) throws Exception {
        Set<Integer> confirmed = ConcurrentHashMap.newKeySet();
        Set<Integer> found = ConcurrentHashMap.newKeySet();
        Consumer consumer = environment.consumerBuilder().stream(stream).offset(OffsetSpecification.first())
                .messageHandler((context, message) -> found.add(Integer.valueOf(received(0, message).body()))).build();
        Producer producer = environment.producerBuilder().stream(stream).name("p").confirmTimeout(Duration.ZERO).build();
        AtomicInteger next = new AtomicInteger();
        Checks.Body batch = () -> {
            for (int n = 0; n < 100; n++) {
                int number = next.getAndIncrement();
                producer.send(message(producer, number), status -> {
                    if (status.isConfirmed()) {
                        confirmed.add(number);
                    }
                });
            }
        };
        batch.run();
        Checks.until("confirms before the fault", () -> confirmed.size() == 100 ? true : null);
        batch.run();
        fault.run();
        int mark = next.get();
        Checks.until("confirms after the fault", () -> {
            // The client refuses messages while it recovers.
            batch.run();
            return confirmed.stream().anyMatch(number -> number >= mark) ? true : null;
        });
        Checks.until("every confirmed message", () -> found.containsAll(confirmed) ? true : null);
        producer.close();
        consumer.close();
    }

    private static void recovery() throws Exception {
        try (Environment environment = builder().port(5552).build()) {
            survive(environment, create(environment, "kill"), () -> {
                Checks.node("kill", "one");
                Checks.node("start", "one");
            });
        }
        Checks.node("stop", "one");
    }

    private static void failover() throws Exception {
        Checks.cluster("start");
        List<String> uris = IntStream.of(5581, 5582, 5583).mapToObj(port -> "rabbitmq-stream://guest:guest@127.0.0.1:" + port).toList();
        try (Environment environment = builder().uris(uris).build()) {
            for (String name : List.of("n1", "n2", "n3")) {
                // One of the three nodes leads the stream.
                survive(environment, create(environment, "failover"), () -> Checks.node("kill", name));
                Checks.cluster("node", name);
            }
        }
        for (String name : List.of("n1", "n2", "n3")) {
            Checks.node("stop", name);
        }
    }
}
