import static org.hamcrest.Matchers.allOf;
import static org.hamcrest.Matchers.anyOf;
import static org.hamcrest.Matchers.equalTo;
import static org.hamcrest.Matchers.hasProperty;
import static org.hamcrest.Matchers.notNullValue;
import static org.hamcrest.Matchers.nullValue;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.qpid.protonj2.test.driver.codec.messaging.Source;
import org.apache.qpid.protonj2.test.driver.codec.messaging.Target;
import org.apache.qpid.protonj2.test.driver.codec.primitives.DescribedType;
import org.apache.qpid.protonj2.test.driver.codec.primitives.Symbol;
import org.apache.qpid.protonj2.test.driver.codec.primitives.UnknownDescribedType;
import org.apache.qpid.protonj2.test.driver.codec.primitives.UnsignedLong;
import org.apache.qpid.protonj2.test.driver.codec.transport.Role;
import org.apache.qpid.protonj2.test.driver.codec.transport.SenderSettleMode;

/** Attach and detach, handles and names, and the fields of source and target (part 2, 2.6 and 2.7.3; part 3, 3.5). */
final class Links {
    private static final int NAME = 0;
    private static final int HANDLE = 1;
    private static final int ROLE = 2;
    private static final int SND_SETTLE_MODE = 3;
    private static final int RCV_SETTLE_MODE = 4;
    private static final int SOURCE = 5;
    private static final int TARGET = 6;
    private static final int UNSETTLED = 7;
    private static final int INCOMPLETE_UNSETTLED = 8;
    private static final int INITIAL_DELIVERY_COUNT = 9;
    private static final int MAX_MESSAGE_SIZE = 10;
    private static final int OFFERED_CAPABILITIES = 11;
    private static final int DESIRED_CAPABILITIES = 12;
    private static final int PROPERTIES = 13;

    private static final int DURABLE = 1;
    private static final int EXPIRY_POLICY = 2;
    private static final int TIMEOUT = 3;
    private static final int DYNAMIC = 4;
    private static final int DYNAMIC_NODE_PROPERTIES = 5;
    private static final int DISTRIBUTION_MODE = 6;
    private static final int FILTER = 7;
    private static final int DEFAULT_OUTCOME = 8;
    private static final int OUTCOMES = 9;
    private static final int SOURCE_CAPABILITIES = 10;
    private static final int TARGET_CAPABILITIES = 6;

    private Links() {}

    static void register(Suite suite) {
        attaches(suite);
        wrongFields(suite);
        handles(suite);
        refused(suite);
        sources(suite);
        smallFrames(suite);
        unsettled(suite);
        dynamic(suite);
        detaches(suite);
    }

    /** The fields of an attach on which the client sends to this queue, with one of them replaced. */
    private static Object[] sending(String queue, int field, Object value) {
        Object[] fields = new Object[PROPERTIES + 1];
        fields[NAME] = "l";
        fields[HANDLE] = Peer.uint(0);
        fields[ROLE] = false;
        fields[SOURCE] = Peer.described(Peer.SOURCE);
        fields[TARGET] = Peer.described(Peer.TARGET, Peer.address(queue));
        fields[INITIAL_DELIVERY_COUNT] = Peer.uint(0);
        fields[field] = value;
        return fields;
    }

    /** The fields of an attach on which the client receives from this queue, with one of them replaced. */
    private static Object[] receiving(String queue, int field, Object value) {
        Object[] fields = new Object[PROPERTIES + 1];
        fields[NAME] = "l";
        fields[HANDLE] = Peer.uint(0);
        fields[ROLE] = true;
        fields[SOURCE] = Peer.described(Peer.SOURCE, Peer.address(queue));
        fields[TARGET] = Peer.described(Peer.TARGET);
        fields[field] = value;
        return fields;
    }

    /** A source with this address and another field. */
    private static DescribedType source(Object address, int field, Object value) {
        Object[] fields = new Object[SOURCE_CAPABILITIES + 1];
        fields[0] = address;
        fields[field] = value;
        return Peer.described(Peer.SOURCE, fields);
    }

    private static DescribedType target(Object address, int field, Object value) {
        Object[] fields = new Object[TARGET_CAPABILITIES + 1];
        fields[0] = address;
        fields[field] = value;
        return Peer.described(Peer.TARGET, fields);
    }

    private static void attaches(Suite suite) {
        suite.group("attach");
        Map<String, Object> names = new LinkedHashMap<>();
        names.put("an empty name", "");
        names.put("a name of 30000 bytes", "n".repeat(30_000));
        names.put("a name with all planes of Unicode", "a\u0000\u00e9\u20ac\ud83d\ude00\u202e");
        names.forEach((name, text) -> suite.check("it may have " + name, Peer.with(Peer::begun, peer -> {
            peer.expectAttach().withName((String) text).ofReceiver().withTarget(notNullValue());
            peer.expectFlow().withHandle(0);
            peer.send(0, Peer.ATTACH, sending(Peer.queue(), NAME, text));
            peer.await();
            peer.finish();
        })));
        Map<String, Object[]> legal = new LinkedHashMap<>();
        legal.put("properties of many types", new Object[] {PROPERTIES, Map.of(Peer.symbol("a"), List.of(1, "x"), Peer.symbol("b"), true)});
        legal.put("a property nested 20 times", new Object[] {PROPERTIES, Map.of(Peer.symbol("a"), Peer.nested(20))});
        legal.put("a thousand properties", new Object[] {PROPERTIES, thousand()});
        legal.put("a thousand capabilities", new Object[] {DESIRED_CAPABILITIES, thousand().keySet().toArray(new Symbol[0])});
        legal.put("offered capabilities", new Object[] {OFFERED_CAPABILITIES, Peer.symbol("unknown")});
        legal.put("a max-message-size of 0", new Object[] {MAX_MESSAGE_SIZE, UnsignedLong.valueOf(0)});
        legal.put("an empty map of unsettled deliveries", new Object[] {UNSETTLED, Map.of()});
        legal.put("no other deliveries", new Object[] {INCOMPLETE_UNSETTLED, false});
        legal.forEach((name, field) -> {
            suite.check("a sender may have " + name, Peer.with(Peer::begun, peer -> {
                peer.expectAttach().withName("l").ofReceiver().withTarget(notNullValue());
                peer.expectFlow().withHandle(0);
                peer.send(0, Peer.ATTACH, sending(Peer.queue(), (int) field[0], field[1]));
                peer.await();
                peer.publish(0, 0);
                peer.finish();
            }));
            suite.check("a receiver may have " + name, Peer.with(Peer::begun, peer -> {
                peer.expectAttach().withName("l").ofSender().withSource(notNullValue()).withInitialDeliveryCount(notNullValue());
                peer.send(0, Peer.ATTACH, receiving(Peer.filled(1), (int) field[0], field[1]));
                peer.await();
                peer.expectMessage(0);
                peer.credit(0, 0, 1);
                peer.await();
                peer.finish();
            }));
        });
        suite.check("settle modes are negotiated", Peer.with(Peer::begun, peer -> {
            String queue = Peer.queue();
            for (byte mode = 0; mode <= 2; mode++) {
                // Mixed becomes unsettled, because the broker settles nothing itself.
                SenderSettleMode expected = mode == 1 ? SenderSettleMode.SETTLED : SenderSettleMode.UNSETTLED;
                peer.expectAttach().ofSender().withSndSettleMode(expected);
                peer.remoteAttach().withName("l" + mode).withHandle((long) mode).ofReceiver().withSndSettleMode(mode)
                        .withSource(new Source().setAddress(Peer.address(queue))).withTarget(new Target()).now();
                peer.await();
            }
            peer.finish();
        }));
    }

    private static Map<Symbol, Object> thousand() {
        Map<Symbol, Object> all = new HashMap<>();
        for (int i = 0; i < 1000; i++) {
            all.put(Peer.symbol("key-" + i), i);
        }
        return all;
    }

    private static void wrongFields(Suite suite) {
        suite.group("wrong attach");
        Map<String, Object[]> wrong = new LinkedHashMap<>();
        wrong.put("no name", new Object[] {NAME, null});
        wrong.put("a name that is a symbol", new Object[] {NAME, Peer.symbol("l")});
        wrong.put("no handle", new Object[] {HANDLE, null});
        wrong.put("a handle that is a ushort", new Object[] {HANDLE, Peer.ushort(0)});
        wrong.put("no role", new Object[] {ROLE, null});
        wrong.put("a role that is a number", new Object[] {ROLE, 1});
        wrong.put("no initial-delivery-count", new Object[] {INITIAL_DELIVERY_COUNT, null});
        wrong.put("a sender settle mode of 3", new Object[] {SND_SETTLE_MODE, Peer.ubyte(3)});
        wrong.put("a receiver settle mode of 2", new Object[] {RCV_SETTLE_MODE, Peer.ubyte(2)});
        wrong.put("a settle mode that is an int", new Object[] {SND_SETTLE_MODE, 1});
        wrong.put("a source that is text", new Object[] {SOURCE, "/queues/q"});
        wrong.put("a source that is a list without a descriptor", new Object[] {SOURCE, List.of("/queues/q")});
        wrong.put("a source that is a target", new Object[] {SOURCE, Peer.described(Peer.TARGET)});
        wrong.put("a target with an unknown descriptor", new Object[] {TARGET, Peer.described(0x7777, "/queues/q")});
        wrong.put("a target that is a source", new Object[] {TARGET, Peer.described(Peer.SOURCE, "/queues/q")});
        wrong.put("a target with eight fields", new Object[] {TARGET, Peer.described(Peer.TARGET, "/queues/q", null, null, null, null, null, null, 1)});
        wrong.put("a source of durability 3", new Object[] {SOURCE, source(null, DURABLE, Peer.uint(3))});
        wrong.put("a target of durability 2^32 - 1", new Object[] {TARGET, target(null, DURABLE, Peer.uint(0xFFFFFFFFL))});
        wrong.put("an unknown expiry policy", new Object[] {SOURCE, source(null, EXPIRY_POLICY, Peer.symbol("whenever"))});
        wrong.put("a timeout that is negative", new Object[] {SOURCE, source(null, TIMEOUT, -1)});
        wrong.put("a dynamic that is text", new Object[] {TARGET, target(null, DYNAMIC, "true")});
        wrong.put("node properties that are a list", new Object[] {SOURCE, source(null, DYNAMIC_NODE_PROPERTIES, List.of(1, 2))});
        wrong.put("a distribution mode that is text", new Object[] {SOURCE, source(null, DISTRIBUTION_MODE, "move")});
        wrong.put("a filter that is text", new Object[] {SOURCE, source(null, FILTER, "a = 1")});
        wrong.put("a filter that is a list", new Object[] {SOURCE, source(null, FILTER, List.of("a"))});
        wrong.put("a default outcome that is text", new Object[] {SOURCE, source(null, DEFAULT_OUTCOME, "accepted")});
        wrong.put("a default outcome that is a symbol", new Object[] {SOURCE, source(null, DEFAULT_OUTCOME, Peer.symbol("amqp:accepted:list"))});
        wrong.put("outcomes that are a list", new Object[] {SOURCE, source(null, OUTCOMES, List.of(Peer.symbol("amqp:accepted:list")))});
        wrong.put("outcomes that are text", new Object[] {SOURCE, source(null, OUTCOMES, "amqp:accepted:list")});
        wrong.put("capabilities that are a map", new Object[] {TARGET, target(null, TARGET_CAPABILITIES, Map.of())});
        wrong.put("a map of unsettled deliveries that is a list", new Object[] {UNSETTLED, List.of()});
        wrong.put("a max-message-size that is a uint", new Object[] {MAX_MESSAGE_SIZE, Peer.uint(1)});
        wrong.put("properties that are text", new Object[] {PROPERTIES, "a=1"});
        wrong.forEach((name, field) -> suite.check(name + " ends the session", Peer.with(Peer::begun, peer -> {
            peer.send(0, Peer.ATTACH, sending(Peer.queue(), (int) field[0], field[1]));
            peer.ended(Peer.DECODE, Peer.INVALID, Peer.NOT_IMPLEMENTED);
        })));
        suite.check("fifteen fields end the session", Peer.with(Peer::begun, peer -> {
            peer.send(0, Peer.ATTACH, Arrays.copyOf(sending(Peer.queue(), ROLE, false), 16));
            peer.ended(Peer.DECODE, Peer.INVALID);
        }));
    }

    private static void handles(Suite suite) {
        suite.group("handle");
        suite.check("a handle in use ends the session", Peer.with(Peer::begun, peer -> {
            String queue = Peer.queue();
            peer.sender(0, queue);
            Object[] fields = sending(queue, NAME, "other");
            peer.send(0, Peer.ATTACH, fields);
            peer.ended("amqp:session:handle-in-use");
        }));
        suite.check("a handle above handle-max closes the connection", Peer.with(Peer::begun, peer -> {
            long limit = handleMax(peer);
            peer.send(0, Peer.ATTACH, sending(Peer.queue(), HANDLE, Peer.uint(limit + 1)));
            peer.closed(Peer.FRAMING);
        }));
        suite.check("a handle of 2^32 - 1 closes the connection", Peer.with(Peer::begun, peer -> {
            peer.send(0, Peer.ATTACH, sending(Peer.queue(), HANDLE, Peer.uint(0xFFFFFFFFL)));
            peer.closed(Peer.FRAMING);
        }));
        suite.check("all handles up to handle-max are attached in any order", Peer.with(Peer::begun, peer -> {
            String queue = Peer.queue();
            long limit = handleMax(peer);
            for (long handle = limit; handle >= 0; handle--) {
                peer.sender(handle, queue);
            }
            peer.publish(0, 0);
            peer.publish(limit, 1);
            peer.finish();
        }));
        suite.check("a client with a handle-max of 0 gets no second link", Peer.with(Peer::opened, peer -> {
            String queue = Peer.queue();
            peer.expectBegin();
            peer.remoteBegin().withNextOutgoingId(0).withIncomingWindow(10).withOutgoingWindow(10).withHandleMax(0).onChannel(0).now();
            peer.await();
            peer.receiver(0, queue);
            peer.send(0, Peer.ATTACH, receivingOn(1, "second", queue));
            peer.ended("amqp:resource-limit-exceeded", Peer.NOT_ALLOWED);
        }));
        suite.check("a handle is free after its detach, for the other role too", Peer.with(Peer::begun, peer -> {
            String queue = Peer.queue();
            for (int i = 0; i < 20; i++) {
                peer.sender(3, "s" + i, queue);
                detach(peer, 3);
                peer.receiver(3, "r" + i, queue);
                detach(peer, 3);
            }
            peer.finish();
        }));
        suite.check("the same name in both roles has two links", Peer.with(Peer::begun, peer -> {
            String queue = Peer.queue();
            peer.sender(0, "name", queue);
            peer.receiver(1, "name", queue);
            peer.expectAccepted(0);
            peer.message(0, 0).now();
            peer.await();
            peer.expectMessage(0);
            peer.credit(1, 0, 1);
            peer.await();
            peer.finish();
        }));
        // 2.6.1: a link has one attachment at a time. The attachment that goes on is the last one.
        suite.check("the same name on another handle steals the link", Peer.with(Peer::begun, peer -> {
            String queue = Peer.queue();
            peer.sender(0, "name", queue);
            peer.expectDetach().withHandle(0).withClosed(true).withError(Peer.error("amqp:link:stolen"));
            peer.expectAttach().ofReceiver().withName("name").withTarget(notNullValue());
            peer.expectFlow();
            peer.send(0, Peer.ATTACH, sendingOn(1, "name", queue));
            peer.await();
            peer.publish(1, 0);
            peer.finish();
        }));
    }

    private static long handleMax(Peer peer) {
        return peer.getDriver().sessions().getLastLocallyOpenedSession().getRemoteBegin().getHandleMax().longValue();
    }

    private static Object[] sendingOn(long handle, String name, String queue) {
        Object[] fields = sending(queue, HANDLE, Peer.uint(handle));
        fields[NAME] = name;
        return fields;
    }

    private static Object[] receivingOn(long handle, String name, String queue) {
        Object[] fields = receiving(queue, HANDLE, Peer.uint(handle));
        fields[NAME] = name;
        return fields;
    }

    private static void detach(Peer peer, long handle) {
        peer.expectDetach().withClosed(true).withError(nullValue());
        peer.remoteDetach().withHandle(handle).withClosed(true).now();
        peer.await();
    }

    private static void refused(Suite suite) {
        suite.group("refused link");
        Map<String, Object> targets = new LinkedHashMap<>();
        targets.put("no target", null);
        targets.put("a target address that is a number", Peer.described(Peer.TARGET, 1));
        targets.put("a target address that is a symbol", Peer.described(Peer.TARGET, Peer.symbol("/queues/q")));
        targets.put("a target address of version 1", Peer.described(Peer.TARGET, "/queue/q"));
        targets.put("a target address with half an escape", Peer.described(Peer.TARGET, "/queues/%4"));
        targets.put("a target address that is empty", Peer.described(Peer.TARGET, ""));
        targets.put("a dynamic target with an address", target("/queues/q", DYNAMIC, true));
        targets.put("a dynamic target without a capability", target(null, DYNAMIC, true));
        targets.forEach((name, value) -> suite.check(name, Peer.with(Peer::begun, peer -> {
            peer.send(0, Peer.ATTACH, sending("none", TARGET, value));
            peer.refused(0, true, Peer.INVALID, Peer.NOT_IMPLEMENTED);
            peer.finish();
        })));
        Map<String, Object> sources = new LinkedHashMap<>();
        sources.put("no source", null);
        sources.put("a source without an address", Peer.described(Peer.SOURCE));
        sources.put("a source address that is bytes", Peer.described(Peer.SOURCE, Peer.binary(1, 2)));
        sources.put("a source address that is a list", Peer.described(Peer.SOURCE, List.of("/queues/q")));
        sources.put("a source address of an exchange", Peer.described(Peer.SOURCE, "/exchanges/amq.fanout"));
        sources.put("a dynamic source with an address", source("/queues/q", DYNAMIC, true));
        sources.put("a dynamic source without a capability", source(null, DYNAMIC, true));
        sources.put("a dynamic source with an unknown capability", Peer.described(Peer.SOURCE, null, null, null, null, true, null, null,
                null, null, null, Peer.symbol("topic")));
        sources.forEach((name, value) -> suite.check(name, Peer.with(Peer::begun, peer -> {
            peer.send(0, Peer.ATTACH, receiving("none", SOURCE, value));
            peer.refused(0, false, Peer.INVALID, Peer.NOT_IMPLEMENTED);
            peer.finish();
        })));
        suite.check("a queue that does not exist, as target", Peer.with(Peer::begun, peer -> {
            peer.send(0, Peer.ATTACH, sending("there-is-none", ROLE, false));
            peer.refused(0, true, Peer.NOT_FOUND);
            peer.finish();
        }));
        suite.check("a queue that does not exist, as source", Peer.with(Peer::begun, peer -> {
            peer.send(0, Peer.ATTACH, receiving("there-is-none", ROLE, true));
            peer.refused(0, false, Peer.NOT_FOUND);
            peer.finish();
        }));
        suite.check("transfers to it have no answer", Peer.with(Peer::begun, peer -> {
            peer.expectAttach().ofReceiver().withTarget(nullValue());
            peer.expectDetach().withClosed(true).withError(Peer.error(Peer.NOT_FOUND));
            peer.send(0, Peer.ATTACH, sending("there-is-none", ROLE, false));
            peer.await();
            for (int id = 0; id < 10; id++) {
                peer.message(0, id).now();
            }
            peer.remoteDetach().withHandle(0).withClosed(true).now();
            peer.sync();
            peer.finish();
        }));
        suite.check("a name of 30000 bytes", Peer.with(Peer::begun, peer -> {
            Object[] fields = sending("there-is-none", NAME, "n".repeat(30_000));
            peer.send(0, Peer.ATTACH, fields);
            peer.refused(0, true, Peer.NOT_FOUND);
            peer.finish();
        }));
    }

    private static void sources(Suite suite) {
        suite.group("source");
        Map<String, Object[]> legal = new LinkedHashMap<>();
        legal.put("a filter without entries", new Object[] {FILTER, Map.of()});
        legal.put("an unknown filter", new Object[] {FILTER, Map.of(Peer.symbol("x"), described("example:unknown", "v"))});
        legal.put("a filter whose value has no descriptor", new Object[] {FILTER, Map.of(Peer.symbol("x"), "v")});
        legal.put("a filter whose value is null", new Object[] {FILTER, nullFilter()});
        legal.put("a JMS selector that is a list", new Object[] {FILTER, Map.of(Peer.symbol("s"), described("apache.org:selector-filter:string", List.of(1)))});
        legal.put("a JMS selector that does not parse", new Object[] {FILTER,
            Map.of(Peer.symbol("s"), described("apache.org:selector-filter:string", "((((a = "))});
        legal.put("a filter nested 20 times", new Object[] {FILTER, Map.of(Peer.symbol("x"), described("example:unknown", Peer.nested(20)))});
        legal.put("a thousand filters", new Object[] {FILTER, thousandFilters()});
        legal.put("only the outcome accepted", new Object[] {OUTCOMES, new Symbol[] {Peer.symbol("amqp:accepted:list")}});
        legal.put("no outcomes", new Object[] {OUTCOMES, new Symbol[0]});
        legal.put("a default outcome", new Object[] {DEFAULT_OUTCOME, Peer.described(0x26)});
        legal.put("unknown capabilities", new Object[] {SOURCE_CAPABILITIES, new Symbol[] {Peer.symbol("queue"), Peer.symbol("unknown")}});
        legal.put("node properties without dynamic", new Object[] {DYNAMIC_NODE_PROPERTIES, Map.of(Peer.symbol("x"), 1)});
        legal.put("all durability", new Object[] {DURABLE, Peer.uint(2)});
        legal.put("a timeout of 2^32 - 1", new Object[] {TIMEOUT, Peer.uint(0xFFFFFFFFL)});
        legal.forEach((name, field) -> suite.check("it may have " + name + ", and delivers", Peer.with(Peer::begun, peer -> {
            String queue = Peer.filled(1);
            peer.expectAttach().ofSender().withSource(notNullValue());
            peer.send(0, Peer.ATTACH, receiving(queue, SOURCE, source(Peer.address(queue), (int) field[0], field[1])));
            peer.await();
            peer.expectMessage(0).accept();
            peer.credit(0, 0, 1);
            peer.await();
            peer.finish();
        })));
        suite.check("a queue is refused with an unknown outcome", Peer.with(Peer::begun, peer -> {
            String queue = Peer.queue();
            Symbol[] outcomes = {Peer.symbol("amqp:accepted:list"), Peer.symbol("example:lost")};
            peer.send(0, Peer.ATTACH, receiving(queue, SOURCE, source(Peer.address(queue), OUTCOMES, outcomes)));
            peer.refused(0, false, Peer.NOT_IMPLEMENTED, Peer.INVALID);
            peer.finish();
        }));
        suite.check("with the distribution mode copy the messages stay in the queue", Peer.with(Peer::begun, peer -> {
            String queue = Peer.filled(2);
            peer.expectAttach().ofSender().withSource(hasProperty("distributionMode", equalTo(Peer.symbol("copy"))));
            peer.send(0, Peer.ATTACH, receiving(queue, SOURCE, source(Peer.address(queue), DISTRIBUTION_MODE, Peer.symbol("copy"))));
            peer.await();
            peer.expectMessage(0).accept();
            peer.expectMessage(1).accept();
            peer.credit(0, 0, 2);
            peer.await();
            peer.finish();
            Peer.holds(queue, 0, 1);
        }));
        suite.check("the answer names the outcomes and the mode that hold", Peer.with(Peer::begun, peer -> {
            String queue = Peer.queue();
            peer.expectAttach().ofSender().withSource(allOf(
                    hasProperty("address", equalTo(Peer.address(queue))),
                    hasProperty("distributionMode", equalTo(Peer.symbol("move"))),
                    hasProperty("outcomes", notNullValue()),
                    hasProperty("defaultOutcome", notNullValue())));
            peer.send(0, Peer.ATTACH, receiving(queue, ROLE, true));
            peer.await();
            peer.finish();
        }));
        suite.check("a filter with a symbol of 60000 bytes has no effect", Peer.with(Peer::begun, peer -> {
            String queue = Peer.filled(1);
            peer.expectAttach().ofSender().withSource(notNullValue());
            peer.frame(0, 0, withLargeSymbol(Peer.address(queue), 60_000));
            peer.await();
            peer.expectMessage(0);
            peer.credit(0, 0, 1);
            peer.await();
            peer.finish();
        }));
        suite.check("filters that differ in a symbol of 60000 bytes are sent 50 times", Peer.with(Peer::begun, peer -> {
            String queue = Peer.queue();
            for (int i = 0; i < 50; i++) {
                peer.expectAttach().ofSender();
                peer.expectDetach().withError(nullValue());
                peer.frame(0, 0, withLargeSymbol(Peer.address(queue), 60_000 - i));
                peer.remoteDetach().withHandle(0).withClosed(true).now();
                peer.await();
            }
            peer.finish();
        }));
    }

    /** An attach of a receiver whose filter set has one key of this size. The driver cannot encode symbols above 255 bytes. */
    private static byte[] withLargeSymbol(String address, int size) {
        byte[] text = address.getBytes(StandardCharsets.UTF_8);
        ByteBuffer filter = ByteBuffer.allocate(size + 32);
        int entries = 5 + size + 7;
        filter.put((byte) 0xd1).putInt(4 + entries).putInt(2).put((byte) 0xb3).putInt(size);
        byte[] key = new byte[size];
        Arrays.fill(key, (byte) 'k');
        filter.put(key).put(Peer.hex("00 a3 01 78 a1 01 76"));
        int sourceSize = 2 + text.length + 6 + filter.position();
        ByteBuffer source = ByteBuffer.allocate(sourceSize + 32);
        source.put(Peer.hex("00 53 28 d0")).putInt(4 + sourceSize).putInt(8).put((byte) 0xa1).put((byte) text.length).put(text)
                .put(Peer.hex("40 40 40 40 40 40")).put(filter.array(), 0, filter.position());
        int attachSize = 3 + 1 + 1 + 2 + source.position() + 4;
        ByteBuffer attach = ByteBuffer.allocate(attachSize + 32);
        attach.put(Peer.hex("00 53 12 d0")).putInt(4 + attachSize).putInt(7).put(Peer.hex("a1 01 6c 43 41 40 40"))
                .put(source.array(), 0, source.position()).put(Peer.hex("00 53 29 45"));
        return Arrays.copyOf(attach.array(), attach.position());
    }

    private static DescribedType described(String descriptor, Object value) {
        return new UnknownDescribedType(Peer.symbol(descriptor), value);
    }

    private static Map<Symbol, Object> nullFilter() {
        Map<Symbol, Object> filter = new HashMap<>();
        filter.put(Peer.symbol("x"), null);
        return filter;
    }

    private static Map<Symbol, Object> thousandFilters() {
        Map<Symbol, Object> filters = new HashMap<>();
        for (int i = 0; i < 1000; i++) {
            filters.put(Peer.symbol("filter-" + i), described("example:unknown", "v"));
        }
        return filters;
    }

    /** Answers that do not fit in the frames of the client. Whatever the broker does, its frames are allowed. */
    private static void smallFrames(Suite suite) {
        suite.group("small frames");
        Peer.Opener small = () -> {
            Peer peer = Peer.opened(open -> open.withMaxFrameSize(512));
            peer.begin(0);
            return peer;
        };
        suite.check("a name of 400 bytes is answered in one frame", Peer.with(small, peer -> {
            peer.expectAttach().withName("n".repeat(400)).ofReceiver().withTarget(notNullValue());
            peer.expectFlow();
            peer.send(0, Peer.ATTACH, sending(Peer.queue(), NAME, "n".repeat(400)));
            peer.await();
            peer.publish(0, 0);
            peer.finish();
        }));
        for (boolean sends : new boolean[] {true, false}) {
            String who = sends ? "sender" : "receiver";
            suite.check("a " + who + " with a source of 300 bytes and a name of 200 is refused", Peer.with(small, peer -> {
                Object[] fields = sends ? sending(Peer.queue(), NAME, "n".repeat(200)) : receiving(Peer.queue(), NAME, "n".repeat(200));
                fields[sends ? SOURCE : TARGET] = sends ? Peer.described(Peer.SOURCE, "a".repeat(300)) : Peer.described(Peer.TARGET, "a".repeat(300));
                peer.send(0, Peer.ATTACH, fields);
                peer.refused(0, sends, "amqp:frame-size-too-small", Peer.INVALID);
                peer.finish();
            }));
            // No attach with this name fits, and a detach needs an attach.
            suite.check("a " + who + " with a name of 600 bytes ends the session", Peer.with(small, peer -> {
                Object[] fields = sends ? sending(Peer.queue(), NAME, "n".repeat(600)) : receiving(Peer.queue(), NAME, "n".repeat(600));
                peer.send(0, Peer.ATTACH, fields);
                peer.ended("amqp:frame-size-too-small", "amqp:resource-limit-exceeded", Peer.INVALID);
            }));
            suite.check("a refused " + who + " with a name of 600 bytes ends the session", Peer.with(small, peer -> {
                Object[] fields = sends ? sending("there-is-none", NAME, "n".repeat(600)) : receiving("there-is-none", NAME, "n".repeat(600));
                peer.send(0, Peer.ATTACH, fields);
                peer.ended("amqp:frame-size-too-small", "amqp:resource-limit-exceeded", Peer.INVALID);
            }));
        }
        suite.check("a rejection that repeats long names fits", Peer.with(small, peer -> {
            String name = "q".repeat(200);
            peer.expectAttach().ofReceiver();
            peer.expectFlow();
            peer.send(0, Peer.ATTACH, sending("none", TARGET, Peer.described(Peer.TARGET)));
            peer.await();
            peer.expectDisposition().withRole(Role.RECEIVER).withFirst(0).withSettled(true);
            peer.remoteTransfer().withHandle(0).withDeliveryId(0).withDeliveryTag(Peer.tag(0)).withProperties().withTo("/queues/" + name).also()
                    .withBody().withValue("x").also().now();
            peer.await();
            peer.finish();
        }));
    }

    /** The broker has no link recovery and says so (docs/compatibility.md). */
    private static void unsettled(Suite suite) {
        suite.group("unsettled map");
        Map<String, Object> maps = new LinkedHashMap<>();
        maps.put("a delivery that the broker does not know", Map.of(Peer.binary(1), Peer.described(0x24)));
        maps.put("a delivery without a state", nullState());
        maps.put("a thousand deliveries", thousandDeliveries());
        maps.put("a key that is text", Map.of("tag", Peer.described(0x24)));
        maps.put("a value that is no state", Map.of(Peer.binary(1), "state"));
        maps.forEach((name, map) -> suite.check(name + " is refused", Peer.with(Peer::begun, peer -> {
            peer.send(0, Peer.ATTACH, sending(Peer.queue(), UNSETTLED, map));
            peer.refused(0, true, Peer.NOT_IMPLEMENTED);
            peer.finish();
        })));
        suite.check("an incomplete one is refused", Peer.with(Peer::begun, peer -> {
            peer.send(0, Peer.ATTACH, receiving(Peer.queue(), INCOMPLETE_UNSETTLED, true));
            peer.refused(0, false, Peer.NOT_IMPLEMENTED);
            peer.finish();
        }));
    }

    private static Map<Object, Object> nullState() {
        Map<Object, Object> map = new HashMap<>();
        map.put(Peer.binary(1), null);
        return map;
    }

    private static Map<Object, Object> thousandDeliveries() {
        Map<Object, Object> map = new HashMap<>();
        for (int i = 0; i < 1000; i++) {
            map.put(Peer.binary(i >> 8, i), Peer.described(0x23, Peer.uint(i), UnsignedLong.valueOf(0)));
        }
        return map;
    }

    private static void dynamic(Suite suite) {
        suite.group("dynamic node");
        suite.check("a source has an address until its detach", Peer.with(Peer::begun, peer -> {
            AtomicReference<String> address = new AtomicReference<>();
            peer.expectAttach().ofSender().withSource(hasProperty("address", notNullValue()))
                    .withCapture(attach -> address.set(attach.getSource().getAddress()));
            peer.remoteAttach().withName("r").withHandle(0).ofReceiver().withTarget(new Target())
                    .withSource(new Source().setDynamic(true).setCapabilities(new Symbol[] {Peer.symbol("temporary-queue")})).now();
            peer.await();
            String name = address.get().replace("/queues/", "");
            peer.sender(1, name);
            peer.publish(1, 0);
            peer.expectMessage(0).accept();
            peer.credit(0, 0, 1);
            peer.await();
            peer.expectDetach().withHandle(0).withError(nullValue());
            peer.expectDetach().withHandle(1).withClosed(true).withError(Peer.error("amqp:resource-deleted"));
            peer.remoteDetach().withHandle(0).withClosed(true).now();
            peer.await();
            peer.finish();
        }));
        suite.check("a link with the same name is new after a detach", Peer.with(Peer::begun, peer -> {
            String queue = Peer.filled(1);
            for (int i = 0; i < 3; i++) {
                peer.expectAttach().ofSender().withName("r").withInitialDeliveryCount(0).withUnsettled(nullValue());
                peer.remoteAttach().withName("r").withHandle(0).ofReceiver().withSource(new Source().setAddress(Peer.address(queue)))
                        .withTarget(new Target()).now();
                peer.await();
                peer.expectMessage(0).withDeliveryId(i);
                peer.credit(0, 0, 1);
                peer.await();
                peer.expectDetach().withClosed(anyOf(nullValue(), equalTo(false))).withError(nullValue());
                peer.remoteDetach().withHandle(0).withClosed(false).now();
                peer.await();
            }
            peer.finish();
            Peer.holds(queue, 0);
        }));
        suite.check("a hundred targets are attached and detached", Peer.with(Peer::begun, peer -> {
            for (int i = 0; i < 100; i++) {
                peer.expectAttach().ofReceiver().withTarget(hasProperty("address", notNullValue()));
                peer.expectFlow();
                peer.remoteAttach().withName("s").withHandle(0).ofSender().withInitialDeliveryCount(0).withSource(new Source())
                        .withTarget(new Target().setDynamic(true).setCapabilities(new Symbol[] {Peer.symbol("temporary-queue")})).now();
                peer.await();
                detach(peer, 0);
            }
            peer.finish();
        }));
    }

    private static void detaches(Suite suite) {
        suite.group("detach");
        suite.check("closed or not, it is answered in kind", Peer.with(Peer::begun, peer -> {
            String queue = Peer.queue();
            for (boolean isClosed : new boolean[] {false, true}) {
                peer.sender(0, "s" + isClosed, queue);
                peer.expectDetach().withHandle(0).withClosed(isClosed ? equalTo(true) : anyOf(nullValue(), equalTo(false))).withError(nullValue());
                peer.remoteDetach().withHandle(0).withClosed(isClosed).now();
                peer.await();
            }
            peer.finish();
        }));
        suite.check("a handle that is not attached is ignored", Peer.with(Peer::begun, peer -> {
            peer.send(0, Peer.DETACH, Peer.uint(5), true);
            peer.sync();
            peer.finish();
        }));
        suite.check("a second one is ignored", Peer.with(Peer::begun, peer -> {
            peer.sender(0, Peer.queue());
            detach(peer, 0);
            peer.send(0, Peer.DETACH, Peer.uint(0), true);
            peer.sync();
            peer.finish();
        }));
        suite.check("an attach and a detach in one write are answered in order", Peer.with(Peer::begun, peer -> {
            String queue = Peer.queue();
            peer.expectAttach().ofSender();
            peer.expectDetach().withClosed(true).withError(nullValue());
            peer.remoteAttach().withName("r").withHandle(0).ofReceiver().withSource(new Source().setAddress(Peer.address(queue)))
                    .withTarget(new Target()).deferred().now();
            peer.remoteDetach().withHandle(0).withClosed(true).now();
            peer.await();
            peer.finish();
        }));
        suite.check("an error of the client is answered without one", Peer.with(Peer::begun, peer -> {
            peer.sender(0, Peer.queue());
            peer.expectDetach().withClosed(true).withError(nullValue());
            peer.remoteDetach().withHandle(0).withClosed(true).withErrorCondition("example:failed", "d").now();
            peer.await();
            peer.finish();
        }));
        Map<String, Object[]> wrong = new LinkedHashMap<>();
        wrong.put("no handle", new Object[] {});
        wrong.put("a handle that is text", new Object[] {"0"});
        wrong.put("a closed that is a number", new Object[] {Peer.uint(0), 1});
        wrong.put("an error that is text", new Object[] {Peer.uint(0), true, "error"});
        wrong.put("an error without a condition", new Object[] {Peer.uint(0), true, Peer.described(0x1d, null, "d")});
        wrong.forEach((name, fields) -> suite.check(name + " ends the session", Peer.with(Peer::begun, peer -> {
            peer.sender(0, Peer.queue());
            peer.send(0, Peer.DETACH, fields);
            peer.ended(Peer.DECODE, Peer.INVALID);
        })));
        suite.check("frames of the link that come after it end the session", Peer.with(Peer::begun, peer -> {
            peer.sender(0, Peer.queue());
            detach(peer, 0);
            peer.message(0, 0).now();
            peer.ended("amqp:session:unattached-handle");
        }));
    }
}
