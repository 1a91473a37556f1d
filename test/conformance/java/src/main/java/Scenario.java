import static java.nio.charset.StandardCharsets.UTF_8;

import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.AMQP.BasicProperties;
import com.rabbitmq.client.AlreadyClosedException;
import com.rabbitmq.client.AuthenticationFailureException;
import com.rabbitmq.client.BuiltinExchangeType;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.Delivery;
import com.rabbitmq.client.GetResponse;
import com.rabbitmq.client.MessageProperties;
import com.rabbitmq.client.RpcClient;
import com.rabbitmq.client.RpcClientParams;
import com.rabbitmq.client.RpcServer;
import com.rabbitmq.client.ShutdownSignalException;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Date;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.UUID;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** RabbitMQ's Java client against Posthorn: what an application does with it, and what it is told when it does it wrong. */
final class Scenario {
    static final List<String> KINDS = List.of("classic", "quorum");

    interface Step {
        void run(Channel channel) throws Exception;
    }

    public static void main(String[] words) throws Exception {
        Checks checks = new Checks(words);
        for (String kind : KINDS) {
            checks.check("publishes with confirms: " + kind, () -> confirms(kind));
            checks.check("prefetch bounds what is out: " + kind, () -> prefetch(kind));
            checks.check("nack, reject and recover requeue or drop: " + kind, () -> settlement(kind));
            checks.check("a lost connection returns what it held: " + kind, () -> lostConnection(kind));
            checks.check("a consumer hears that its queue is gone: " + kind, () -> cancelled(kind));
            checks.check("large bodies travel in many frames: " + kind, () -> largeBodies(kind));
            checks.check("properties and headers arrive as they were: " + kind, () -> properties(kind));
            checks.check("purge and delete count: " + kind, () -> purgeAndDelete(kind));
        }
        checks.check("a wrong password and a wrong virtual host are told apart", Scenario::logins);
        checks.check("unroutable mandatory messages come back", Scenario::returned);
        checks.check("exchanges route by their type", Scenario::routing);
        checks.check("exchanges bind to exchanges, and an alternate takes what has no route", Scenario::exchangeToExchange);
        checks.check("errors close the channel with the code and text", Scenario::channelErrors);
        checks.check("errors close the connection with the code and text", Scenario::connectionErrors);
        checks.check("exclusive, server-named and auto-delete queues go", Scenario::temporaryQueues);
        checks.check("transactions commit and roll back", Scenario::transactions);
        checks.check("remote calls are answered directly", Scenario::remoteCalls);
        checks.check("consumers have priorities", Scenario::priorities);
        Recovery.register(checks);
        checks.end("java");
    }

    static ConnectionFactory factory() {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setHost("127.0.0.1");
        return factory;
    }

    /** The step with a connection and a channel in confirm mode of its own. */
    private static void opened(Step step) throws Exception {
        try (Connection connection = factory().newConnection()) {
            Channel channel = connection.createChannel();
            channel.confirmSelect();
            step.run(channel);
        }
    }

    private static String fresh(String prefix) {
        return prefix + "-" + UUID.randomUUID();
    }

    private static String declare(Channel channel, String kind) throws IOException {
        return channel.queueDeclare(fresh(kind), true, false, false, Map.of("x-queue-type", kind)).getQueue();
    }

    private static void publish(Channel channel, String queue, String... bodies) throws Exception {
        for (String body : bodies) {
            channel.basicPublish("", queue, MessageProperties.PERSISTENT_BASIC, body.getBytes(UTF_8));
        }
        channel.waitForConfirmsOrDie(Checks.PATIENCE.toMillis());
    }

    /** The next message, as soon as there is one. */
    private static GetResponse get(Channel channel, String queue) throws Exception {
        return Checks.until("a message in " + queue, () -> channel.basicGet(queue, false));
    }

    private static List<String> take(Channel channel, String queue, int count) throws Exception {
        List<String> taken = new ArrayList<>();
        for (int n = 0; n < count; n++) {
            GetResponse message = get(channel, queue);
            channel.basicAck(message.getEnvelope().getDeliveryTag(), false);
            taken.add(new String(message.getBody(), UTF_8));
        }
        return taken;
    }

    private static String[] numbers(int count) {
        String[] numbers = new String[count];
        Arrays.setAll(numbers, Integer::toString);
        return numbers;
    }

    private static Delivery next(BlockingQueue<Delivery> deliveries) throws InterruptedException {
        Delivery delivery = deliveries.poll(Checks.PATIENCE.toSeconds(), TimeUnit.SECONDS);
        Checks.holds(delivery != null, "a delivery");
        return delivery;
    }

    private static void confirms(String kind) throws Exception {
        opened(channel -> {
            String queue = declare(channel, kind);
            publish(channel, queue, numbers(500));
            BlockingQueue<Delivery> deliveries = new LinkedBlockingQueue<>();
            channel.basicConsume(queue, true, (tag, delivery) -> deliveries.add(delivery), tag -> { });
            for (String number : numbers(500)) {
                Checks.same(new String(next(deliveries).getBody(), UTF_8), number);
            }
        });
    }

    private static void prefetch(String kind) throws Exception {
        opened(channel -> {
            String queue = declare(channel, kind);
            publish(channel, queue, numbers(12));
            channel.basicQos(5);
            BlockingQueue<Delivery> deliveries = new LinkedBlockingQueue<>();
            channel.basicConsume(queue, false, (tag, delivery) -> deliveries.add(delivery), tag -> { });
            long last = 0;
            for (int n = 0; n < 5; n++) {
                last = next(deliveries).getEnvelope().getDeliveryTag();
            }
            Checks.same(channel.messageCount(queue), 7L);
            Checks.same(channel.consumerCount(queue), 1L);
            Checks.holds(deliveries.isEmpty(), "no sixth delivery");
            channel.basicAck(last, true);
            for (int n = 5; n < 12; n++) {
                Delivery delivery = next(deliveries);
                Checks.same(new String(delivery.getBody(), UTF_8), Integer.toString(n));
                channel.basicAck(delivery.getEnvelope().getDeliveryTag(), false);
            }
        });
    }

    private static void settlement(String kind) throws Exception {
        opened(channel -> {
            String queue = declare(channel, kind);
            publish(channel, queue, "1");
            GetResponse first = get(channel, queue);
            Checks.holds(!first.getEnvelope().isRedeliver(), "a first delivery");
            channel.basicNack(first.getEnvelope().getDeliveryTag(), false, true);
            Checks.holds(get(channel, queue).getEnvelope().isRedeliver(), "redelivered after nack");
            channel.basicRecover(true);
            GetResponse third = get(channel, queue);
            Checks.holds(third.getEnvelope().isRedeliver(), "redelivered after recover");
            channel.basicReject(third.getEnvelope().getDeliveryTag(), false);
            Checks.same(channel.basicGet(queue, false), null);
        });
    }

    private static void lostConnection(String kind) throws Exception {
        opened(channel -> {
            String queue = declare(channel, kind);
            publish(channel, queue, "held");
            Connection other = factory().newConnection();
            get(other.createChannel(), queue);
            other.abort();
            GetResponse message = get(channel, queue);
            Checks.holds(message.getEnvelope().isRedeliver(), "redelivered");
        });
    }

    private static void cancelled(String kind) throws Exception {
        opened(channel -> {
            String queue = declare(channel, kind);
            CountDownLatch told = new CountDownLatch(1);
            channel.basicConsume(queue, false, (tag, delivery) -> { }, tag -> told.countDown());
            channel.getConnection().createChannel().queueDelete(queue);
            Checks.holds(told.await(Checks.PATIENCE.toSeconds(), TimeUnit.SECONDS), "basic.cancel");
            Checks.holds(channel.isOpen(), "the channel goes on");
        });
    }

    private static void largeBodies(String kind) throws Exception {
        ConnectionFactory factory = factory();
        factory.setRequestedFrameMax(4096);
        try (Connection connection = factory.newConnection()) {
            Checks.same(connection.getFrameMax(), 4096);
            Channel channel = connection.createChannel();
            channel.confirmSelect();
            String queue = declare(channel, kind);
            byte[] body = new byte[5_000_000];
            new Random(7).nextBytes(body);
            channel.basicPublish("", queue, null, body);
            publish(channel, queue, "");
            Checks.holds(Arrays.equals(get(channel, queue).getBody(), body), "the body as it was");
            Checks.same(get(channel, queue).getBody().length, 0);
        }
    }

    private static void properties(String kind) throws Exception {
        opened(channel -> {
            Map<String, Object> headers = new HashMap<>();
            headers.put("byte", (byte) -1);
            headers.put("short", (short) -2);
            headers.put("int", -70_000);
            headers.put("long", 1L << 40);
            headers.put("float", 0.5f);
            headers.put("double", 1.5);
            headers.put("decimal", new java.math.BigDecimal("12.34"));
            headers.put("yes", true);
            headers.put("time", new Date(1_700_000_000_000L));
            headers.put("nothing", null);
            headers.put("table", Map.of("inner", 1));
            headers.put("list", List.of(1, Map.of("inner", 2)));
            BasicProperties sent = new BasicProperties.Builder().contentType("text/plain").contentEncoding("utf-8").headers(headers)
                .deliveryMode(2).priority(3).correlationId("c").replyTo("r").expiration("600000").messageId("m")
                .timestamp(new Date(1_700_000_000_000L)).type("t").userId("guest").appId("a").clusterId("x").build();
            String queue = declare(channel, kind);
            channel.basicPublish("", queue, sent, new byte[0]);
            Checks.same(get(channel, queue).getProps(), sent);
        });
    }

    private static void purgeAndDelete(String kind) throws Exception {
        opened(channel -> {
            String queue = declare(channel, kind);
            publish(channel, queue, "1", "2", "3");
            Checks.same(channel.queuePurge(queue).getMessageCount(), 3);
            publish(channel, queue, "4");
            Checks.same(channel.queueDelete(queue).getMessageCount(), 1);
            Checks.same(channel.queueDelete(queue).getMessageCount(), 0);
        });
    }

    private static void logins() throws Exception {
        ConnectionFactory factory = factory();
        factory.setPassword("wrong");
        try {
            factory.newConnection();
            throw new AssertionError("it let us in");
        } catch (AuthenticationFailureException error) {
            Checks.holds(error.getMessage().contains("ACCESS_REFUSED"), "ACCESS_REFUSED, got " + error.getMessage());
        }
        ConnectionFactory elsewhere = factory();
        elsewhere.setVirtualHost("nowhere");
        refused(530, "nowhere", elsewhere::newConnection);
    }

    private static void returned() throws Exception {
        opened(channel -> {
            BlockingQueue<com.rabbitmq.client.Return> returns = new LinkedBlockingQueue<>();
            channel.addReturnListener(returns::add);
            channel.basicPublish("amq.direct", "nowhere", true, null, "lost".getBytes(UTF_8));
            channel.waitForConfirmsOrDie(Checks.PATIENCE.toMillis());
            com.rabbitmq.client.Return message = returns.poll(Checks.PATIENCE.toSeconds(), TimeUnit.SECONDS);
            Checks.same(message.getReplyCode(), AMQP.NO_ROUTE);
            Checks.same(message.getReplyText(), "NO_ROUTE");
            Checks.same(new String(message.getBody(), UTF_8), "lost");
        });
    }

    /** True when a mandatory publish was not returned. The body is the key. */
    private static boolean routed(Channel channel, String exchange, String key, Map<String, Object> headers) throws Exception {
        List<String> returns = new ArrayList<>();
        com.rabbitmq.client.ReturnListener listener = channel.addReturnListener(message -> returns.add(message.getRoutingKey()));
        BasicProperties properties = new BasicProperties.Builder().headers(headers).build();
        channel.basicPublish(exchange, key, true, properties, key.getBytes(UTF_8));
        channel.waitForConfirmsOrDie(Checks.PATIENCE.toMillis());
        channel.removeReturnListener(listener);
        return returns.isEmpty();
    }

    private record Case(BuiltinExchangeType type, String key, Map<String, Object> arguments, List<String> routed, List<String> lost) { }

    private static void routing() throws Exception {
        Map<String, Object> pdf = Map.of("format", "pdf", "pages", 3);
        Map<String, Object> all = new HashMap<>(pdf);
        all.put("x-match", "all");
        List<Case> cases = List.of(
            new Case(BuiltinExchangeType.DIRECT, "blue", null, List.of("blue"), List.of("red", "")),
            new Case(BuiltinExchangeType.TOPIC, "*.b.#", null, List.of("a.b", "a.b.c.d"), List.of("b", "a.c")),
            new Case(BuiltinExchangeType.FANOUT, "", null, List.of("any", ""), List.of()),
            new Case(BuiltinExchangeType.HEADERS, "", all, List.of("any"), List.of()));
        opened(channel -> {
            for (Case one : cases) {
                String exchange = fresh("exchange");
                String queue = declare(channel, "classic");
                channel.exchangeDeclare(exchange, one.type());
                channel.queueBind(queue, exchange, one.key(), one.arguments());
                for (String key : one.routed()) {
                    Checks.holds(routed(channel, exchange, key, pdf), one.type() + " routes " + key);
                }
                for (String key : one.lost()) {
                    Checks.holds(!routed(channel, exchange, key, pdf), one.type() + " does not route " + key);
                }
                if (one.type() == BuiltinExchangeType.HEADERS) {
                    Checks.holds(!routed(channel, exchange, "", Map.of("format", "pdf")), "all headers are needed");
                }
                Checks.same(take(channel, queue, one.routed().size()), one.routed());
                channel.queueUnbind(queue, exchange, one.key(), one.arguments());
                channel.exchangeDelete(exchange, true);
            }
        });
    }

    private static void exchangeToExchange() throws Exception {
        opened(channel -> {
            String alternate = fresh("alternate");
            String source = fresh("source");
            String destination = fresh("destination");
            String queue = declare(channel, "quorum");
            channel.exchangeDeclare(alternate, "fanout");
            channel.exchangeDeclare(source, "topic", false, false, Map.of("alternate-exchange", alternate));
            channel.exchangeDeclare(destination, "fanout", false, true, true, null);
            channel.exchangeBind(destination, source, "in.#");
            channel.queueBind(queue, destination, "");
            Checks.holds(routed(channel, source, "in.here", null), "through both exchanges");
            channel.queueBind(queue, alternate, "");
            Checks.holds(routed(channel, source, "elsewhere", null), "through the alternate exchange");
            Checks.same(take(channel, queue, 2), List.of("in.here", "elsewhere"));
            // Its last binding takes the auto-delete exchange with it.
            channel.queueUnbind(queue, destination, "");
            refused(404, "no exchange", () -> channel.exchangeDeclarePassive(destination));
        });
    }

    /** The body fails with this code, and the words are in the text. */
    private static void refused(int code, String words, Checks.Body body) throws Exception {
        try {
            body.run();
        } catch (IOException | AlreadyClosedException error) {
            Throwable cause = error instanceof AlreadyClosedException ? error : error.getCause();
            Checks.holds(cause instanceof ShutdownSignalException, "an error of the broker, got " + error);
            Object reason = ((ShutdownSignalException) cause).getReason();
            int got = reason instanceof AMQP.Channel.Close close ? close.getReplyCode() : ((AMQP.Connection.Close) reason).getReplyCode();
            Checks.holds(got == code && reason.toString().contains(words), code + " " + words + ", got " + reason);
            return;
        }
        throw new AssertionError("expected " + code + " " + words);
    }

    private static void channelErrors() throws Exception {
        opened(owned -> {
            Connection connection = factory().newConnection();
            String exclusive = owned.queueDeclare().getQueue();
            String taken = declare(owned, "classic");
            owned.basicConsume(taken, false, "alone", false, true, null, (tag, delivery) -> { }, tag -> { });
            Object[][] wrong = {
                {404, "no queue 'missing' in vhost '/'", (Step) c -> c.queueDeclarePassive("missing")},
                {404, "no exchange 'missing' in vhost '/'", (Step) c -> c.exchangeDeclarePassive("missing")},
                {404, "no exchange 'missing' in vhost '/'", (Step) c -> c.queueBind(taken, "missing", "")},
                {403, "contains reserved prefix 'amq.*'", (Step) c -> c.queueDeclare("amq.mine", true, false, false, null)},
                {403, "in exclusive use", (Step) c -> c.basicConsume(taken, (tag, delivery) -> { }, tag -> { })},
                {405, "cannot obtain exclusive access to locked queue '" + exclusive, (Step) c -> c.basicGet(exclusive, false)},
                {406, "inequivalent arg 'durable' for queue '" + taken, (Step) c -> c.queueDeclare(taken, false, false, false, null)},
                {406, "inequivalent arg 'auto_delete' for exchange 'amq.topic'", (Step) c -> c.exchangeDeclare("amq.topic", "topic", true, true, null)},
                {406, "unknown exchange type 'no-such-type'", (Step) c -> c.exchangeDeclare(fresh("e"), "no-such-type")},
                {406, "unknown delivery tag 9", (Step) c -> { c.basicAck(9, false); c.basicGet(taken, false); }},
                {404, "no exchange 'missing' in vhost '/'", (Step) c -> { c.basicPublish("missing", "", null, new byte[0]); c.basicGet(taken, false); }},
            };
            for (Object[] one : wrong) {
                Channel channel = connection.createChannel();
                refused((Integer) one[0], (String) one[1], () -> ((Step) one[2]).run(channel));
                Checks.holds(!channel.isOpen() && connection.isOpen(), "the channel is closed and the connection is not");
            }
            connection.close();
        });
    }

    private static void connectionErrors() throws Exception {
        Object[][] wrong = {
            {540, "immediate=true", (Step) c -> { c.basicPublish("", "any", false, true, null, new byte[0]); c.queueDeclare(); }},
            {540, "prefetch_size!=0 (1)", (Step) c -> c.basicQos(1, 1, false)},
            {530, "attempt to reuse consumer tag 'same'", (Step) c -> {
                String queue = declare(c, "classic");
                c.basicConsume(queue, false, "same", (tag, delivery) -> { }, tag -> { });
                c.basicConsume(queue, false, "same", (tag, delivery) -> { }, tag -> { });
            }},
        };
        for (Object[] one : wrong) {
            Connection connection = factory().newConnection();
            Channel channel = connection.createChannel();
            refused((Integer) one[0], (String) one[1], () -> ((Step) one[2]).run(channel));
            connection.abort();
        }
    }

    private static void temporaryQueues() throws Exception {
        opened(watcher -> {
            Connection owner = factory().newConnection();
            Channel channel = owner.createChannel();
            String exclusive = channel.queueDeclare().getQueue();
            Checks.holds(exclusive.startsWith("amq.gen-"), "a name from the server, got " + exclusive);
            String automatic = channel.queueDeclare(fresh("automatic"), false, false, true, null).getQueue();
            String consumer = channel.basicConsume(automatic, (tag, delivery) -> { }, tag -> { });
            channel.basicCancel(consumer);
            owner.close();
            for (String gone : List.of(automatic, exclusive)) {
                Channel again = watcher.getConnection().createChannel();
                refused(404, gone, () -> again.queueDeclarePassive(gone));
            }
        });
    }

    private static void transactions() throws Exception {
        try (Connection connection = factory().newConnection()) {
            Channel channel = connection.createChannel();
            String queue = declare(channel, "classic");
            channel.txSelect();
            channel.basicPublish("", queue, null, "1".getBytes(UTF_8));
            channel.txRollback();
            channel.basicPublish("", queue, null, "2".getBytes(UTF_8));
            Checks.same(channel.messageCount(queue), 0L);
            channel.txCommit();
            GetResponse message = get(channel, queue);
            Checks.same(new String(message.getBody(), UTF_8), "2");
            channel.basicAck(message.getEnvelope().getDeliveryTag(), false);
            channel.txRollback();
            channel.basicNack(message.getEnvelope().getDeliveryTag(), false, true);
            channel.txCommit();
            Checks.holds(get(channel, queue).getEnvelope().isRedeliver(), "the rolled back ack is undone");
        }
    }

    private static void remoteCalls() throws Exception {
        opened(channel -> {
            String queue = declare(channel, "classic");
            RpcServer server = new RpcServer(channel.getConnection().createChannel(), queue) {
                @Override
                public byte[] handleCall(byte[] request, BasicProperties properties) {
                    return ("re: " + new String(request, UTF_8)).getBytes(UTF_8);
                }
            };
            Thread thread = new Thread(() -> {
                try {
                    server.mainloop();
                } catch (IOException error) {
                    error.printStackTrace();
                }
            });
            thread.setDaemon(true);
            thread.start();
            RpcClientParams parameters = new RpcClientParams().channel(channel.getConnection().createChannel()).exchange("")
                .routingKey(queue).replyTo("amq.rabbitmq.reply-to").timeout((int) Checks.PATIENCE.toMillis());
            try (RpcClient client = new RpcClient(parameters)) {
                for (String number : numbers(20)) {
                    Checks.same(client.stringCall(number), "re: " + number);
                }
            }
            server.terminateMainloop();
        });
    }

    private static void priorities() throws Exception {
        opened(channel -> {
            String queue = declare(channel, "classic");
            BlockingQueue<String> order = new LinkedBlockingQueue<>();
            channel.basicConsume(queue, true, Map.of(), (tag, delivery) -> order.add("low"), tag -> { });
            channel.basicConsume(queue, true, Map.of("x-priority", 10), (tag, delivery) -> order.add("high"), tag -> { });
            publish(channel, queue, "1", "2");
            for (int n = 0; n < 2; n++) {
                Checks.same(order.poll(Checks.PATIENCE.toSeconds(), TimeUnit.SECONDS), "high");
            }
        });
    }
}
