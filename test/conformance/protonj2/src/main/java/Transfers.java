import static org.hamcrest.Matchers.anyOf;
import static org.hamcrest.Matchers.equalTo;
import static org.hamcrest.Matchers.instanceOf;
import static org.hamcrest.Matchers.notNullValue;
import static org.hamcrest.Matchers.nullValue;

import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.UnaryOperator;
import java.util.stream.LongStream;
import org.apache.qpid.protonj2.test.driver.actions.TransferInjectAction;
import org.apache.qpid.protonj2.test.driver.codec.messaging.Accepted;
import org.apache.qpid.protonj2.test.driver.codec.messaging.Rejected;
import org.apache.qpid.protonj2.test.driver.codec.messaging.Released;
import org.apache.qpid.protonj2.test.driver.codec.messaging.Source;
import org.apache.qpid.protonj2.test.driver.codec.messaging.Target;
import org.apache.qpid.protonj2.test.driver.codec.primitives.Symbol;
import org.apache.qpid.protonj2.test.driver.codec.primitives.UnsignedLong;
import org.apache.qpid.protonj2.test.driver.codec.transport.ReceiverSettleMode;
import org.apache.qpid.protonj2.test.driver.codec.transport.Role;
import org.apache.qpid.protonj2.test.driver.codec.transport.SenderSettleMode;

/** Transfers to the broker (part 2, 2.6.12 to 2.6.14 and 2.7.5). */
final class Transfers {
    /** Fields of a transfer. */
    private static final int HANDLE = 0;
    private static final int DELIVERY_ID = 1;
    private static final int DELIVERY_TAG = 2;
    private static final int MESSAGE_FORMAT = 3;
    private static final int SETTLED = 4;
    private static final int MORE = 5;
    private static final int RCV_SETTLE_MODE = 6;
    private static final int STATE = 7;
    private static final int RESUME = 8;
    private static final int ABORTED = 9;
    private static final int BATCHABLE = 10;

    private Transfers() {}

    static void register(Suite suite) {
        single(suite);
        wrongFields(suite);
        deliveryIds(suite);
        several(suite);
        aborted(suite);
        credit(suite);
        modes(suite);
        messages(suite);
        interrupted(suite);
    }

    /** A step with a link on which the client sends, on handle 0. */
    private interface LinkStep {
        void run(Peer peer, String queue) throws Exception;
    }

    private static Suite.Body sending(LinkStep step) {
        return Peer.with(Peer::begun, peer -> {
            String queue = Peer.queue();
            peer.sender(0, queue);
            step.run(peer, queue);
        });
    }

    private static void single(Suite suite) {
        suite.group("transfer");
        suite.check("a message is accepted and arrives", sending((peer, queue) -> {
            peer.publish(0, 0);
            peer.finish();
            Peer.holds(queue, 0);
        }));
        suite.check("a settled message has no answer and arrives", sending((peer, queue) -> {
            peer.message(0, 0).withSettled(true).now();
            peer.sync();
            peer.finish();
            Peer.holds(queue, 0);
        }));
        suite.check("batchable changes nothing", sending((peer, queue) -> {
            peer.expectAccepted(0);
            peer.message(0, 0).withBatchable(true).now();
            peer.await();
            peer.finish();
            Peer.holds(queue, 0);
        }));
        suite.check("a state of the sender without a transaction changes nothing", sending((peer, queue) -> {
            peer.expectAccepted(0);
            peer.message(0, 0).withState().accepted().now();
            peer.await();
            peer.finish();
            Peer.holds(queue, 0);
        }));
        suite.check("a state of the sender that the broker does not know changes nothing", sending((peer, queue) -> {
            peer.expectAccepted(0);
            peer.send(0, UnsignedLong.valueOf(Peer.TRANSFER), Arrays.asList(fields(STATE, Peer.described(0x2f))), Peer.text("message 0"));
            peer.await();
            peer.finish();
            Peer.holds(queue, 0);
        }));
        suite.check("delivery tags may be empty, repeated and 32 bytes long", sending((peer, queue) -> {
            byte[][] tags = {{}, {}, new byte[32], new byte[32]};
            for (int id = 0; id < tags.length; id++) {
                peer.expectAccepted(id);
                peer.message(0, id).withDeliveryTag(tags[id]).now();
                peer.await();
            }
            peer.finish();
            Peer.holds(queue, 0, 1, 2, 3);
        }));
        suite.check("a handle that is not attached ends the session", Peer.with(Peer::begun, peer -> {
            peer.message(0, 0).now();
            peer.ended("amqp:session:unattached-handle");
        }));
        suite.check("a handle on which the client receives ends the session or the link", Peer.with(Peer::begun, peer -> {
            peer.receiver(0, Peer.queue());
            peer.message(0, 0).now();
            peer.ended(Peer.NOT_ALLOWED, Peer.ILLEGAL_STATE, "amqp:session:errant-link");
        }));
        suite.check("a state of an unknown transaction detaches the link", sending((peer, queue) -> {
            peer.message(0, 0).withState().transactional().withTxnId(new byte[] {1, 2, 3}).also().now();
            peer.detached(0, "amqp:transaction:unknown-id");
            peer.finish();
            Peer.holds(queue);
        }));
        suite.check("a resumed delivery is refused", sending((peer, queue) -> {
            peer.message(0, 0).withResume(true).now();
            peer.detached(0, Peer.NOT_IMPLEMENTED);
            peer.finish();
            Peer.holds(queue);
        }));
    }

    private static Object[] fields(int field, Object value) {
        Object[] fields = new Object[BATCHABLE + 1];
        fields[HANDLE] = Peer.uint(0);
        fields[DELIVERY_ID] = Peer.uint(0);
        fields[DELIVERY_TAG] = Peer.binary(1);
        fields[field] = value;
        return fields;
    }

    private static void wrongFields(Suite suite) {
        suite.group("wrong transfer");
        Map<String, Object[]> wrong = new LinkedHashMap<>();
        wrong.put("no handle", new Object[] {HANDLE, null});
        wrong.put("a handle that is a ulong", new Object[] {HANDLE, UnsignedLong.valueOf(0)});
        wrong.put("no delivery-id", new Object[] {DELIVERY_ID, null});
        wrong.put("a delivery-id that is an int", new Object[] {DELIVERY_ID, 0});
        wrong.put("a delivery-tag that is text", new Object[] {DELIVERY_TAG, "tag"});
        wrong.put("a delivery-tag of 33 bytes", new Object[] {DELIVERY_TAG, Peer.binary(new int[33])});
        wrong.put("a message-format that is text", new Object[] {MESSAGE_FORMAT, "0"});
        wrong.put("a settled that is a number", new Object[] {SETTLED, 1});
        wrong.put("a more that is text", new Object[] {MORE, "true"});
        wrong.put("a receiver settle mode of 2", new Object[] {RCV_SETTLE_MODE, Peer.ubyte(2)});
        wrong.put("a state that is text", new Object[] {STATE, "accepted"});
        wrong.put("a resume that is a number", new Object[] {RESUME, 0});
        wrong.put("an aborted that is a list", new Object[] {ABORTED, List.of()});
        wrong.forEach((name, field) -> suite.check(name + " ends the session", sending((peer, queue) -> {
            peer.send(0, UnsignedLong.valueOf(Peer.TRANSFER),
                    Arrays.asList(fields((int) field[0], field[1])), Peer.text("message 0"));
            peer.ended(Peer.DECODE, Peer.INVALID, Peer.NOT_IMPLEMENTED);
            Peer.holds(queue);
        })));
        suite.check("no delivery-tag detaches the link", sending((peer, queue) -> {
            peer.message(0, 0).withNullDeliveryTag().now();
            peer.detached(0, Peer.INVALID);
            peer.finish();
            Peer.holds(queue);
        }));
    }

    private static void deliveryIds(Suite suite) {
        suite.group("delivery id");
        suite.check("it may start anywhere", sending((peer, queue) -> {
            peer.publish(0, 77);
            peer.publish(0, 78);
            peer.finish();
            Peer.holds(queue, 77, 78);
        }));
        suite.check("it wraps after 2^32 - 1", sending((peer, queue) -> {
            peer.publish(0, 0xFFFFFFFEL);
            peer.publish(0, 0xFFFFFFFFL);
            peer.publish(0, 0);
            peer.publish(0, 1);
            peer.finish();
        }));
        suite.check("it belongs to the session, over its links", sending((peer, queue) -> {
            peer.sender(1, queue);
            peer.publish(0, 0);
            peer.publish(1, 1);
            peer.publish(0, 2);
            peer.message(1, 2).now();
            peer.ended(Peer.INVALID, Peer.NOT_ALLOWED);
            Peer.holds(queue, 0, 1, 2);
        }));
        suite.check("of a settled delivery it is not used again", sending((peer, queue) -> {
            peer.publish(0, 0);
            peer.message(0, 0).now();
            peer.ended(Peer.INVALID, Peer.NOT_ALLOWED);
            Peer.holds(queue, 0);
        }));
        suite.check("it does not go backwards", sending((peer, queue) -> {
            peer.publish(0, 5);
            peer.message(0, 4).now();
            peer.ended(Peer.INVALID, Peer.NOT_ALLOWED);
            Peer.holds(queue, 5);
        }));
        suite.check("it does not leap by half of its range", sending((peer, queue) -> {
            peer.publish(0, 0);
            peer.message(0, 0x80000000L).now();
            peer.ended(Peer.INVALID, Peer.NOT_ALLOWED);
            Peer.holds(queue, 0);
        }));
        suite.check("another session has its own", sending((peer, queue) -> {
            peer.publish(0, 0);
            peer.begin(1);
            peer.sender(0, "other", queue);
            peer.publish(0, 0);
            peer.finish();
            Peer.holds(queue, 0, 0);
        }));
    }

    private static void several(Suite suite) {
        suite.group("multi-transfer");
        byte[] whole = Peer.text("message 0");
        byte[] first = Arrays.copyOf(whole, 6);
        byte[] second = Arrays.copyOfRange(whole, 6, whole.length);
        suite.check("later transfers may repeat the fields of the first", sending((peer, queue) -> {
            peer.expectAccepted(0);
            peer.part(0, 0, first).withMessageFormat(0).withMore(true).now();
            peer.part(0, 0, second).withMessageFormat(0).now();
            peer.await();
            peer.finish();
            Peer.holds(queue, 0);
        }));
        suite.check("later transfers may leave the fields out", sending((peer, queue) -> {
            peer.expectAccepted(0);
            peer.part(0, 0, first).withMore(true).now();
            peer.remoteTransfer().withHandle(0).withNullDeliveryTag().withPayload(second).now();
            peer.await();
            peer.finish();
            Peer.holds(queue, 0);
        }));
        suite.check("transfers without a payload are part of it", sending((peer, queue) -> {
            peer.expectAccepted(0);
            for (byte[] part : new byte[][] {{}, first, {}, {}, second, {}}) {
                peer.part(0, 0, part).withMore(true).now();
            }
            peer.part(0, 0, new byte[0]).now();
            peer.await();
            peer.finish();
            Peer.holds(queue, 0);
        }));
        suite.check("settled on a later transfer settles it", sending((peer, queue) -> {
            peer.part(0, 0, first).withMore(true).withSettled(false).now();
            peer.part(0, 0, second).withSettled(true).now();
            peer.sync();
            peer.finish();
            Peer.holds(queue, 0);
        }));
        Map<String, UnaryOperator<TransferInjectAction>> changes = new LinkedHashMap<>();
        changes.put("another delivery-id", transfer -> transfer.withDeliveryId(1));
        changes.put("another delivery-tag", transfer -> transfer.withDeliveryTag(new byte[] {9}));
        changes.put("another message-format", transfer -> transfer.withMessageFormat(1));
        changes.forEach((name, change) -> suite.check(name + " within a delivery detaches the link", sending((peer, queue) -> {
            peer.part(0, 0, first).withMore(true).now();
            change.apply(peer.part(0, 0, second)).now();
            peer.detached(0, Peer.INVALID, Peer.NOT_ALLOWED);
            peer.sender(1, queue);
            peer.publish(1, 5);
            peer.finish();
            Peer.holds(queue, 5);
        })));
        suite.check("deliveries of two links are interleaved", sending((peer, queue) -> {
            peer.sender(1, queue);
            byte[] other = Peer.text("message 1");
            peer.part(0, 0, first).withMore(true).now();
            peer.part(1, 1, Arrays.copyOf(other, 6)).withMore(true).now();
            peer.expectAccepted(0);
            peer.part(0, 0, second).now();
            peer.await();
            peer.expectAccepted(1);
            peer.part(1, 1, Arrays.copyOfRange(other, 6, other.length)).now();
            peer.await();
            peer.finish();
            Peer.holds(queue, 0, 1);
        }));
        suite.check("a message in frames of one byte arrives", sending((peer, queue) -> {
            peer.expectAccepted(0);
            for (int at = 0; at < whole.length; at++) {
                peer.part(0, 0, new byte[] {whole[at]}).withMore(at < whole.length - 1).now();
            }
            peer.await();
            peer.finish();
            Peer.holds(queue, 0);
        }));
        suite.check("a message above the limit of the link detaches it", sending((peer, queue) -> {
            byte[] part = new byte[120_000];
            peer.expectDetach().withClosed(true).withError(Peer.error("amqp:link:message-size-exceeded"));
            peer.part(0, 0, Peer.text("x")).withMore(true).now();
            for (int i = 0; i < 16 * 1024 * 1024 / part.length + 1; i++) {
                peer.part(0, 0, part).withMore(true).now();
            }
            peer.await();
            peer.finish();
            Peer.holds(queue);
        }));
    }

    private static void aborted(Suite suite) {
        suite.group("aborted");
        byte[] first = Arrays.copyOf(Peer.text("message 0"), 6);
        suite.check("a delivery that is aborted has no answer and does not arrive", sending((peer, queue) -> {
            peer.part(0, 0, first).withMore(true).now();
            peer.part(0, 0, new byte[0]).withAborted(true).now();
            peer.sync();
            peer.publish(0, 1);
            peer.finish();
            Peer.holds(queue, 1);
        }));
        suite.check("the payload and the other fields of the last transfer do not count", sending((peer, queue) -> {
            peer.part(0, 0, first).withMore(true).now();
            peer.part(0, 0, Peer.text("more")).withAborted(true).withMore(true).withSettled(true).now();
            peer.publish(0, 1);
            peer.finish();
            Peer.holds(queue, 1);
        }));
        suite.check("a delivery may be aborted with its first transfer", sending((peer, queue) -> {
            peer.part(0, 0, Peer.text("message 0")).withAborted(true).now();
            peer.sync();
            peer.publish(0, 1);
            peer.finish();
            Peer.holds(queue, 1);
        }));
        suite.check("a disposition for it has no effect", sending((peer, queue) -> {
            peer.part(0, 0, first).withMore(true).now();
            peer.part(0, 0, new byte[0]).withAborted(true).now();
            peer.remoteDisposition().withRole(Role.SENDER).withFirst(0).withSettled(true).now();
            peer.publish(0, 1);
            peer.finish();
            Peer.holds(queue, 1);
        }));
        suite.check("a thousand aborted deliveries leave the link its credit", sending((peer, queue) -> {
            peer.ignoreFlows();
            for (int id = 0; id < 1000; id++) {
                if (id % 50 == 49) {
                    // The answer shows that the broker has renewed the credit.
                    peer.publish(0, id);
                    continue;
                }
                peer.part(0, id, first).withMore(true).now();
                peer.part(0, id, new byte[0]).withAborted(true).now();
            }
            peer.finish();
            Peer.holds(queue, LongStream.range(0, 20).map(i -> 50 * i + 49).toArray());
        }));
    }

    private static void credit(Suite suite) {
        suite.group("credit");
        suite.check("a transfer without credit detaches the link", Peer.with(Peer::begun, peer -> {
            // The management node renews credit with its answers, for which the client grants no credit.
            peer.expectAttach().ofReceiver();
            peer.expectFlow().withLinkCredit(notNullValue());
            Map<Symbol, Object> paired = Map.of(Peer.symbol("paired"), true);
            peer.remoteAttach().withName("pair").withHandle(0).ofSender().withInitialDeliveryCount(0).withSenderSettleModeSettled()
                    .withSource(new Source().setAddress("me")).withTarget(new Target().setAddress("/management")).withProperties(paired).now();
            peer.await();
            peer.expectAttach().ofSender();
            peer.remoteAttach().withName("pair").withHandle(1).ofReceiver().withSenderSettleModeSettled()
                    .withSource(new Source().setAddress("/management")).withTarget(new Target().setAddress("me")).withProperties(paired).now();
            peer.await();
            peer.ignoreFlows();
            peer.expectDetach().withHandle(0).withClosed(true).withError(Peer.error("amqp:link:transfer-limit-exceeded"));
            for (int id = 0; id < 400; id++) {
                peer.remoteTransfer().withHandle(0).withDeliveryId(id).withDeliveryTag(Peer.tag(id)).withSettled(true).withProperties()
                        .withMessageId("id").withTo("/queues/q").withSubject("GET").withReplyTp("$me").also().withBody().withValue((Object) null)
                        .also().now();
            }
            peer.await();
            peer.finish();
        }));
        suite.check("a thousand messages are accepted as the credit is renewed", sending((peer, queue) -> {
            peer.ignoreFlows();
            for (int id = 0; id < 1000; id++) {
                if (id % 50 == 49) {
                    peer.publish(0, id);
                } else {
                    peer.message(0, id).withSettled(true).now();
                }
            }
            peer.finish();
            Peer.holds(queue, LongStream.range(0, 1000).toArray());
        }));
    }

    private static void modes(Suite suite) {
        suite.group("settle mode");
        suite.check("an unsettled transfer on a link of mode settled detaches it", Peer.with(Peer::begun, peer -> {
            attach(peer, SenderSettleMode.SETTLED, ReceiverSettleMode.FIRST);
            peer.message(0, 0).withSettled(false).now();
            peer.detached(0, Peer.INVALID, Peer.NOT_ALLOWED);
            peer.finish();
        }));
        suite.check("a settled transfer on a link of mode unsettled detaches it", Peer.with(Peer::begun, peer -> {
            attach(peer, SenderSettleMode.UNSETTLED, ReceiverSettleMode.FIRST);
            peer.message(0, 0).withSettled(true).now();
            peer.detached(0, Peer.INVALID, Peer.NOT_ALLOWED);
            peer.finish();
        }));
        suite.check("a transfer of receiver mode second on a link of mode first detaches it", Peer.with(Peer::begun, peer -> {
            attach(peer, SenderSettleMode.MIXED, ReceiverSettleMode.FIRST);
            peer.message(0, 0).withRcvSettleMode(ReceiverSettleMode.SECOND).now();
            peer.detached(0, Peer.INVALID, Peer.NOT_ALLOWED);
            peer.finish();
        }));
        suite.check("the client settles the links of receiver mode second that the broker offers", Peer.with(Peer::begun, peer -> {
            String queue = Peer.queue();
            AtomicReference<Object> mode = new AtomicReference<>();
            peer.expectAttach().ofReceiver().withCapture(attach -> mode.set(attach.getReceiverSettleMode()));
            peer.expectFlow();
            peer.remoteAttach().withName("l").withHandle(0).ofSender().withInitialDeliveryCount(0).withReceivervSettlesSecond()
                    .withSource(new Source()).withTarget(new Target().setAddress(Peer.address(queue))).now();
            peer.await();
            boolean isSecond = ReceiverSettleMode.SECOND.getValue().equals(mode.get());
            peer.expectDisposition().withRole(Role.RECEIVER).withFirst(0).withSettled(!isSecond ? equalTo(true) : anyOf(nullValue(), equalTo(false)))
                    .withState(Accepted.getInstance());
            peer.message(0, 0).now();
            peer.await();
            peer.remoteDisposition().withRole(Role.SENDER).withFirst(0).withSettled(true).now();
            peer.sync();
            peer.finish();
            Peer.holds(queue, 0);
        }));
    }

    private static void attach(Peer peer, SenderSettleMode snd, ReceiverSettleMode rcv) throws Exception {
        peer.expectAttach().ofReceiver().withTarget(notNullValue());
        peer.expectFlow();
        peer.remoteAttach().withName("l").withHandle(0).ofSender().withInitialDeliveryCount(0).withSndSettleMode(snd).withRcvSettleMode(rcv)
                .withSource(new Source()).withTarget(new Target().setAddress(Peer.address(Peer.queue()))).now();
        peer.await();
    }

    private static void messages(Suite suite) {
        suite.group("message");
        Map<String, String> undecodable = new LinkedHashMap<>();
        undecodable.put("bytes that are no section", "ff ff ff");
        undecodable.put("a value without a descriptor", "a1 01 61");
        undecodable.put("an unknown section", "00 53 79 a1 01 61");
        undecodable.put("a section that ends early", "00 53 75 b0 00 00 00 09 61");
        undecodable.put("a header of a map", "00 53 70 c1 01 00 00 53 77 40");
        undecodable.put("a header with a priority of text", "00 53 70 c0 05 02 41 a1 01 61 00 53 77 40");
        undecodable.put("application properties that are a list", "00 53 74 45 00 53 77 40");
        undecodable.put("annotations with an odd count", "00 53 72 c1 04 01 a3 01 61 00 53 77 40");
        undecodable.put("properties with 14 fields", "00 53 73 c0 0f 0e 40 40 40 40 40 40 40 40 40 40 40 40 40 40 00 53 77 40");
        undecodable.forEach((name, bytes) -> suite.check(name + " detaches the link or is rejected", sending((peer, queue) -> {
            peer.expectDetach().withClosed(true).withError(Peer.error(Peer.DECODE, Peer.INVALID, Peer.NOT_IMPLEMENTED));
            peer.part(0, 0, Peer.hex(bytes)).now();
            peer.await();
            peer.sync();
            peer.finish();
            Peer.holds(queue);
        })));
        Map<String, String> legal = new LinkedHashMap<>();
        legal.put("all sections", "00 53 70 c0 04 02 41 50 05 00 53 71 c1 01 00 00 53 72 c1 01 00 00 53 73 c0 04 01 a1 01 69"
                + "00 53 74 c1 07 02 a1 01 6b a1 01 76 00 53 75 a0 09 6d65737361676520 30 00 53 78 c1 01 00");
        legal.put("two data sections", "00 53 75 a0 01 61 00 53 75 a0 09 6d65737361676520 30");
        legal.put("a sequence", "00 53 76 c0 0c 01 a1 09 6d65737361676520 30");
        legal.put("sections with 8-byte codes", "00 80 0000000000000077 a1 09 6d65737361676520 30");
        legal.put("sections with symbols", "00 a3 11 616d71703a616d71702d76616c75653a2a a1 09 6d65737361676520 30");
        legal.forEach((name, bytes) -> suite.check(name + " arrive", sending((peer, queue) -> {
            peer.expectAccepted(0);
            peer.part(0, 0, Peer.hex(bytes)).now();
            peer.await();
            peer.receiver(1, queue);
            peer.expectTransfer().withNonNullPayload();
            peer.credit(1, 0, 1);
            peer.await();
            peer.finish();
        })));
        // The broker does not read the body, and RabbitMQ passes on such keys, which 3.2.5 excludes.
        Map<String, String> unread = new LinkedHashMap<>();
        unread.put("a value of arrays without end", "00 53 77 e0 08 01 e0 06 01 e0 04 01 e0");
        unread.put("a value of lists nested 40 times", "00 53 77" + nestedLists(40));
        unread.put("application properties with a key that is a number", "00 53 74 c1 05 02 54 01 54 01 00 53 77 40");
        unread.forEach((name, bytes) -> suite.check(name + " is accepted", sending((peer, queue) -> {
            peer.expectAccepted(0);
            peer.part(0, 0, Peer.hex(bytes)).now();
            peer.await();
            peer.finish();
        })));
        suite.check("to an exchange without a route it is released", Peer.with(Peer::begun, peer -> {
            peer.expectAttach().ofReceiver();
            peer.expectFlow();
            peer.remoteAttach().withName("l").withHandle(0).ofSender().withInitialDeliveryCount(0).withSource(new Source())
                    .withTarget(new Target().setAddress("/exchanges/amq.direct/nowhere")).now();
            peer.await();
            peer.expectDisposition().withRole(Role.RECEIVER).withFirst(0).withSettled(true).withState(Released.getInstance());
            peer.message(0, 0).now();
            peer.await();
            peer.finish();
        }));
        suite.check("to the anonymous terminus without an address it is rejected", Peer.with(Peer::begun, peer -> {
            peer.expectAttach().ofReceiver();
            peer.expectFlow();
            peer.remoteAttach().withName("l").withHandle(0).ofSender().withInitialDeliveryCount(0).withSource(new Source())
                    .withTarget(new Target()).now();
            peer.await();
            peer.expectDisposition().withRole(Role.RECEIVER).withFirst(0).withSettled(true).withState(instanceOf(Rejected.class));
            peer.message(0, 0).now();
            peer.await();
            peer.finish();
        }));
    }

    /** Lists in lists, as hexadecimal text. */
    private static String nestedLists(int depth) {
        String inner = "45";
        for (int i = 1; i < depth; i++) {
            inner = String.format("c0 %02x 01 ", 1 + inner.replace(" ", "").length() / 2) + inner;
        }
        return inner;
    }

    /** Clients that leave in the middle of a delivery, of which nothing arrives. */
    private static void interrupted(Suite suite) {
        suite.group("interrupted");
        byte[] first = Arrays.copyOf(Peer.text("message 0"), 6);
        suite.check("a detach within a delivery discards it", sending((peer, queue) -> {
            peer.part(0, 0, first).withMore(true).now();
            peer.expectDetach().withError(nullValue());
            peer.remoteDetach().withHandle(0).withClosed(true).now();
            peer.await();
            peer.sender(1, queue);
            peer.publish(1, 1);
            peer.finish();
            Peer.holds(queue, 1);
        }));
        suite.check("an end within a delivery discards it", sending((peer, queue) -> {
            peer.part(0, 0, first).withMore(true).now();
            peer.expectEnd().withError(nullValue());
            peer.remoteEnd().onChannel(0).now();
            peer.await();
            peer.finish();
            Peer.holds(queue);
        }));
        suite.check("a close within a delivery discards it", sending((peer, queue) -> {
            peer.part(0, 0, first).withMore(true).now();
            peer.finish();
            Peer.holds(queue);
        }));
        suite.check("a client that leaves within a frame leaves nothing", sending((peer, queue) -> {
            byte[] frame = Peer.encodedFrame(0, 0, Peer.hex("00 53 14 c0 06 03 43 43 a0 01 61"));
            peer.publish(0, 0);
            peer.bytes(Arrays.copyOf(frame, frame.length - 2));
            peer.close();
            Peer.holds(queue, 0);
        }));
    }
}
