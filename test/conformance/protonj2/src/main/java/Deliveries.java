import static org.hamcrest.Matchers.anyOf;
import static org.hamcrest.Matchers.equalTo;
import static org.hamcrest.Matchers.nullValue;

import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.qpid.protonj2.test.driver.codec.messaging.Accepted;
import org.apache.qpid.protonj2.test.driver.codec.messaging.Source;
import org.apache.qpid.protonj2.test.driver.codec.messaging.Target;
import org.apache.qpid.protonj2.test.driver.codec.primitives.UnknownDescribedType;
import org.apache.qpid.protonj2.test.driver.codec.primitives.UnsignedLong;
import org.apache.qpid.protonj2.test.driver.codec.transport.Role;
import org.hamcrest.Matcher;

/** Deliveries to the client: credit, drain, dispositions, and clients that leave (part 2, 2.6.7 to 2.6.12 and 2.7.6). */
final class Deliveries {
    private Deliveries() {}

    static void register(Suite suite) {
        credit(suite);
        drain(suite);
        outcomes(suite);
        dispositions(suite);
        wrongDispositions(suite);
        sizes(suite);
        leaving(suite);
    }

    private interface LinkStep {
        void run(Peer peer, String queue) throws Exception;
    }

    /** A step with a link on handle 0 on which the client receives from a queue with messages. */
    private static Suite.Body receiving(int messages, LinkStep step) {
        return Peer.with(Peer::begun, peer -> {
            String queue = Peer.filled(messages);
            peer.receiver(0, queue);
            step.run(peer, queue);
        });
    }

    /** Receives the messages 0 to COUNT - 1 and settles none. */
    private static void receive(Peer peer, int count) {
        for (int number = 0; number < count; number++) {
            peer.expectMessage(number).withDeliveryId(number).withHandle(0).withSettled(anyOf(nullValue(), equalTo(false)));
        }
        peer.credit(0, 0, count);
        peer.await();
    }

    private static void credit(Suite suite) {
        suite.group("delivery");
        suite.check("without credit nothing comes", receiving(1, (peer, queue) -> {
            peer.creditWithAnswer(0, 0, 0);
            peer.finish();
            Peer.holds(queue, 0);
        }));
        suite.check("credit is a limit, not a sum", receiving(5, (peer, queue) -> {
            peer.expectMessage(0);
            peer.expectMessage(1);
            peer.credit(0, 0, 2);
            peer.await();
            // The same state again grants nothing new.
            peer.creditWithAnswer(0, 0, 2);
            peer.expectMessage(2);
            peer.credit(0, 2, 1);
            peer.await();
            peer.finish();
        }));
        suite.check("a delivery count behind the broker's grants what is left", receiving(5, (peer, queue) -> {
            receive(peer, 3);
            peer.expectMessage(3);
            peer.creditWithAnswer(0, 1, 3);
            peer.finish();
        }));
        suite.check("a delivery count that is far behind grants nothing", receiving(3, (peer, queue) -> {
            receive(peer, 2);
            peer.creditWithAnswer(0, 0x80000010L, 10);
            peer.finish();
        }));
        suite.check("a credit of 2^32 - 1 delivers everything", receiving(3, (peer, queue) -> {
            for (int number = 0; number < 3; number++) {
                peer.expectMessage(number);
            }
            peer.credit(0, 0, 0xFFFFFFFFL);
            peer.await();
            peer.finish();
        }));
        suite.check("credit that is taken back grants nothing", Peer.with(Peer::begun, peer -> {
            String queue = Peer.queue();
            peer.receiver(0, queue);
            peer.credit(0, 0, 10);
            peer.creditWithAnswer(0, 0, 0);
            peer.sender(1, queue);
            peer.publish(1, 0);
            peer.creditWithAnswer(0, 0, 0);
            peer.finish();
            Peer.holds(queue, 0);
        }));
        suite.check("credit ahead of the attach is kept", Peer.with(Peer::begun, peer -> {
            String queue = Peer.filled(1);
            peer.expectAttach().ofSender();
            peer.expectMessage(0);
            peer.remoteAttach().withName("r").withHandle(0).ofReceiver().withSource(new Source().setAddress(Peer.address(queue)))
                    .withTarget(new Target()).deferred().now();
            peer.remoteFlow().withHandle(0).withLinkCredit(1).now();
            peer.await();
            peer.finish();
        }));
        suite.check("a thousand flows in one write have one effect", receiving(2, (peer, queue) -> {
            peer.expectMessage(0);
            for (int i = 0; i < 1000; i++) {
                peer.remoteFlow().withHandle(0).withDeliveryCount(0).withLinkCredit(1).deferred().now();
            }
            peer.creditWithAnswer(0, 0, 1);
            peer.finish();
        }));
        suite.check("a receiver of mode settled gets settled deliveries, which are gone", Peer.with(Peer::begun, peer -> {
            String queue = Peer.filled(2);
            peer.expectAttach().ofSender().withSndSettleMode((byte) 1);
            peer.remoteAttach().withName("r").withHandle(0).ofReceiver().withSenderSettleModeSettled()
                    .withSource(new Source().setAddress(Peer.address(queue))).withTarget(new Target()).now();
            peer.await();
            peer.expectMessage(0).withSettled(true);
            peer.expectMessage(1).withSettled(true);
            peer.credit(0, 0, 2);
            peer.await();
            // A disposition for settled deliveries has no effect.
            peer.remoteDisposition().withRole(Role.RECEIVER).withFirst(0).withLast(1).withSettled(true).withState().released().now();
            peer.sync();
            peer.finish();
            Peer.holds(queue);
        }));
    }

    private static void drain(Suite suite) {
        suite.group("drain");
        suite.check("an empty queue uses up the credit", receiving(0, (peer, queue) -> {
            peer.expectFlow().withHandle(0).withDeliveryCount(100).withLinkCredit(0).withDrain(true);
            peer.remoteFlow().withHandle(0).withDeliveryCount(0).withLinkCredit(100).withDrain(true).now();
            peer.await();
            peer.finish();
        }));
        suite.check("messages come before the answer", receiving(3, (peer, queue) -> {
            for (int number = 0; number < 3; number++) {
                peer.expectMessage(number);
            }
            peer.expectFlow().withHandle(0).withDeliveryCount(10).withLinkCredit(0).withDrain(true);
            peer.remoteFlow().withHandle(0).withDeliveryCount(0).withLinkCredit(10).withDrain(true).now();
            peer.await();
            peer.finish();
        }));
        suite.check("a credit of 2^32 - 1 is used up", receiving(1, (peer, queue) -> {
            peer.expectMessage(0);
            peer.expectFlow().withHandle(0).withDeliveryCount(0xFFFFFFFFL).withLinkCredit(0).withDrain(true);
            peer.remoteFlow().withHandle(0).withDeliveryCount(0).withLinkCredit(0xFFFFFFFFL).withDrain(true).now();
            peer.await();
            // The delivery count wraps.
            peer.expectFlow().withHandle(0).withDeliveryCount(4).withLinkCredit(0).withDrain(true);
            peer.remoteFlow().withHandle(0).withDeliveryCount(0xFFFFFFFFL).withLinkCredit(5).withDrain(true).now();
            peer.await();
            peer.finish();
        }));
        suite.check("without credit it is answered", receiving(1, (peer, queue) -> {
            peer.expectFlow().withHandle(0).withDeliveryCount(0).withLinkCredit(0);
            peer.remoteFlow().withHandle(0).withDeliveryCount(0).withLinkCredit(0).withDrain(true).withEcho(true).now();
            peer.await();
            peer.finish();
        }));
        suite.check("after it credit works again", receiving(0, (peer, queue) -> {
            peer.sender(1, queue);
            for (int round = 0; round < 10; round++) {
                peer.expectFlow().withHandle(0).withDeliveryCount(3L * round + 2).withLinkCredit(0).withDrain(true);
                peer.remoteFlow().withHandle(0).withDeliveryCount(3L * round).withLinkCredit(2).withDrain(true).now();
                peer.await();
                peer.publish(1, round);
                peer.expectMessage(round);
                peer.credit(0, 3L * round + 2, 1);
                peer.await();
            }
            peer.finish();
        }));
    }

    private static void outcomes(Suite suite) {
        suite.group("outcome");
        suite.check("accepted messages are gone", receiving(2, (peer, queue) -> {
            receive(peer, 2);
            peer.remoteDisposition().withRole(Role.RECEIVER).withFirst(0).withLast(1).withSettled(true).withState().accepted().now();
            peer.sync();
            peer.finish();
            Peer.holds(queue);
        }));
        suite.check("released messages come again", receiving(2, (peer, queue) -> {
            receive(peer, 2);
            peer.remoteDisposition().withRole(Role.RECEIVER).withFirst(0).withLast(1).withSettled(true).withState().released().now();
            peer.sync();
            peer.finish();
            Peer.holds(queue, 0, 1);
        }));
        suite.check("rejected messages are gone", receiving(1, (peer, queue) -> {
            receive(peer, 1);
            peer.remoteDisposition().withRole(Role.RECEIVER).withFirst(0).withSettled(true).withState()
                    .rejected("example:bad", "d").now();
            peer.sync();
            peer.finish();
            Peer.holds(queue);
        }));
        suite.check("modified messages come again", receiving(1, (peer, queue) -> {
            receive(peer, 1);
            peer.remoteDisposition().withRole(Role.RECEIVER).withFirst(0).withSettled(true).withState()
                    .modified(true, false, Map.of("x-tried", 1)).now();
            peer.sync();
            peer.finish();
            Peer.holds(queue, 0);
        }));
        suite.check("settled without a state has the default outcome of the source", receiving(1, (peer, queue) -> {
            receive(peer, 1);
            peer.remoteDisposition().withRole(Role.RECEIVER).withFirst(0).withSettled(true).now();
            peer.sync();
            peer.finish();
            // The answer to the attach names released.
            Peer.holds(queue, 0);
        }));
        suite.check("an outcome that is not settled is settled by the broker", receiving(1, (peer, queue) -> {
            receive(peer, 1);
            peer.expectDisposition().withRole(Role.SENDER).withFirst(0).withSettled(true).withState(Accepted.getInstance());
            peer.remoteDisposition().withRole(Role.RECEIVER).withFirst(0).withSettled(false).withState().accepted().now();
            peer.await();
            peer.finish();
            Peer.holds(queue);
        }));
        suite.check("the state received is no outcome", receiving(1, (peer, queue) -> {
            receive(peer, 1);
            peer.send(0, Peer.DISPOSITION, true, Peer.uint(0), null, false, Peer.described(0x23, Peer.uint(0), UnsignedLong.valueOf(0)));
            peer.sync();
            peer.remoteDisposition().withRole(Role.RECEIVER).withFirst(0).withSettled(true).withState().accepted().now();
            peer.sync();
            peer.finish();
            Peer.holds(queue);
        }));
        suite.check("an outcome that the source does not have is refused", Peer.with(Peer::begun, peer -> {
            String queue = Peer.filled(1);
            peer.receiver(0, queue);
            receive(peer, 1);
            peer.send(0, Peer.DISPOSITION, true, Peer.uint(0), null, true, new UnknownDescribedType(
                    Peer.symbol("example:lost:list"), List.of()));
            peer.ended(Peer.NOT_IMPLEMENTED, Peer.INVALID, Peer.DECODE);
            Peer.holds(queue, 0);
        }));
    }

    private static void dispositions(Suite suite) {
        suite.group("disposition");
        Map<String, long[]> unknown = new LinkedHashMap<>();
        unknown.put("deliveries that were not sent", new long[] {1000, 2000});
        unknown.put("the next delivery", new long[] {1, 1});
        unknown.put("deliveries before the first", new long[] {0xFFFFFFF0L, 0xFFFFFFFFL});
        unknown.put("half of all ids from the next one", new long[] {1, 0x80000000L});
        unknown.forEach((name, range) -> suite.check("of " + name + " has no effect", receiving(1, (peer, queue) -> {
            receive(peer, 1);
            peer.remoteDisposition().withRole(Role.RECEIVER).withFirst(range[0]).withLast(range[1]).withSettled(true).withState().accepted().now();
            peer.sync();
            peer.finish();
            Peer.holds(queue, 0);
        })));
        suite.check("of a range around the deliveries settles those that exist", receiving(3, (peer, queue) -> {
            receive(peer, 3);
            peer.remoteDisposition().withRole(Role.RECEIVER).withFirst(0xFFFFFFF0L).withLast(0x7FFFFFEFL).withSettled(true).withState().accepted()
                    .now();
            peer.sync();
            peer.finish();
            Peer.holds(queue);
        }));
        suite.check("of a settled delivery has no effect", receiving(2, (peer, queue) -> {
            receive(peer, 2);
            for (int i = 0; i < 3; i++) {
                peer.remoteDisposition().withRole(Role.RECEIVER).withFirst(0).withSettled(true).withState().accepted().now();
            }
            peer.remoteDisposition().withRole(Role.RECEIVER).withFirst(0).withSettled(true).withState().released().now();
            peer.sync();
            peer.finish();
            Peer.holds(queue, 1);
        }));
        suite.check("of ranges that overlap settles each delivery once, with its first state", receiving(4, (peer, queue) -> {
            receive(peer, 4);
            peer.remoteDisposition().withRole(Role.RECEIVER).withFirst(1).withLast(2).withSettled(true).withState().accepted().now();
            peer.remoteDisposition().withRole(Role.RECEIVER).withFirst(0).withLast(3).withSettled(true).withState().released().now();
            peer.sync();
            peer.finish();
            Peer.holds(queue, 0, 3);
        }));
        suite.check("of the role sender does not settle what the broker sent", receiving(1, (peer, queue) -> {
            receive(peer, 1);
            peer.remoteDisposition().withRole(Role.SENDER).withFirst(0).withSettled(true).withState().accepted().now();
            peer.sync();
            peer.finish();
            Peer.holds(queue, 0);
        }));
        suite.check("of the role receiver does not settle what the client sent", Peer.with(Peer::begun, peer -> {
            String queue = Peer.queue();
            peer.sender(0, queue);
            peer.remoteDisposition().withRole(Role.RECEIVER).withFirst(0).withSettled(true).withState().accepted().now();
            peer.publish(0, 0);
            peer.remoteDisposition().withRole(Role.RECEIVER).withFirst(0).withSettled(true).withState().accepted().now();
            peer.sync();
            peer.finish();
            Peer.holds(queue, 0);
        }));
        suite.check("of a link that was detached has no effect", receiving(1, (peer, queue) -> {
            receive(peer, 1);
            peer.expectDetach().withError(nullValue());
            peer.remoteDetach().withHandle(0).withClosed(true).now();
            peer.await();
            peer.remoteDisposition().withRole(Role.RECEIVER).withFirst(0).withSettled(true).withState().accepted().now();
            peer.sync();
            peer.finish();
            Peer.holds(queue, 0);
        }));
        suite.check("batchable changes nothing", receiving(1, (peer, queue) -> {
            receive(peer, 1);
            peer.remoteDisposition().withRole(Role.RECEIVER).withFirst(0).withSettled(true).withBatchable(true).withState().accepted().now();
            peer.sync();
            peer.finish();
            Peer.holds(queue);
        }));
        suite.check("of two links in one range settles both", Peer.with(Peer::begun, peer -> {
            String one = Peer.filled(1);
            String other = Peer.filled(1);
            peer.receiver(0, one);
            peer.receiver(1, other);
            peer.expectMessage(0).withDeliveryId(0);
            peer.credit(0, 0, 1);
            peer.await();
            peer.expectMessage(0).withDeliveryId(1);
            peer.credit(1, 0, 1);
            peer.await();
            peer.remoteDisposition().withRole(Role.RECEIVER).withFirst(0).withLast(1).withSettled(true).withState().accepted().now();
            peer.sync();
            peer.finish();
            Peer.holds(one);
            Peer.holds(other);
        }));
    }

    private static void wrongDispositions(Suite suite) {
        suite.group("wrong disposition");
        Map<String, Object[]> wrong = new LinkedHashMap<>();
        wrong.put("no fields", new Object[] {});
        wrong.put("no role", new Object[] {null, Peer.uint(0), null, true, Peer.described(0x24)});
        wrong.put("a role that is a number", new Object[] {1, Peer.uint(0), null, true, Peer.described(0x24)});
        wrong.put("no first", new Object[] {true, null, Peer.uint(0), true, Peer.described(0x24)});
        wrong.put("a first that is a ulong", new Object[] {true, UnsignedLong.valueOf(0), null, true, Peer.described(0x24)});
        wrong.put("a last that is text", new Object[] {true, Peer.uint(0), "0", true, Peer.described(0x24)});
        wrong.put("a last before the first", new Object[] {true, Peer.uint(1), Peer.uint(0), true, Peer.described(0x24)});
        wrong.put("a settled that is a number", new Object[] {true, Peer.uint(0), null, 1, Peer.described(0x24)});
        wrong.put("a state that is a symbol", new Object[] {true, Peer.uint(0), null, true, Peer.symbol("amqp:accepted:list")});
        wrong.put("a state that is a list", new Object[] {true, Peer.uint(0), null, true, List.of()});
        wrong.put("accepted with a field", new Object[] {true, Peer.uint(0), null, true, Peer.described(0x24, 1)});
        wrong.put("rejected with an error that is text", new Object[] {true, Peer.uint(0), null, true, Peer.described(0x25, "error")});
        wrong.put("modified with a flag that is text", new Object[] {true, Peer.uint(0), null, true, Peer.described(0x27, "true")});
        wrong.put("modified with annotations that are a list", new Object[] {true, Peer.uint(0), null, true, Peer.described(0x27, true, null, List.of())});
        wrong.put("received without fields", new Object[] {true, Peer.uint(0), null, false, Peer.described(0x23)});
        wrong.put("seven fields", new Object[] {true, Peer.uint(0), null, true, Peer.described(0x24), false, 1});
        wrong.forEach((name, fields) -> suite.check(name + " ends the session, and the message comes again", receiving(1, (peer, queue) -> {
            receive(peer, 1);
            peer.send(0, Peer.DISPOSITION, fields);
            peer.ended(Peer.DECODE, Peer.INVALID, Peer.NOT_IMPLEMENTED);
            Peer.holds(queue, 0);
        })));
    }

    /** A queue with one message of this size, which ends with "message 0". */
    private static String large(int size) throws Exception {
        String queue = Peer.queue();
        Peer peer = Peer.begun();
        peer.sender(0, queue);
        peer.expectAccepted(0);
        byte[] message = Peer.text("x".repeat(size) + "message 0");
        for (int at = 0; at < message.length; at += 100_000) {
            int end = Math.min(at + 100_000, message.length);
            peer.part(0, 0, Arrays.copyOfRange(message, at, end)).withMore(end < message.length).now();
        }
        peer.await();
        peer.finish();
        return queue;
    }

    /** Receives a message in frames of 512 bytes; the audit compares their sizes. */
    static void receiveLarge(Peer peer) throws Exception {
        String queue = large(5000);
        peer.begin(0);
        peer.receiver(0, queue);
        for (int i = 0; i < 10; i++) {
            peer.expectTransfer().withMore(true).withNonNullPayload();
        }
        peer.expectTransfer().withMore(anyOf(nullValue(), equalTo(false))).withPayload(Peer.ending("message 0"));
        peer.credit(0, 0, 1);
        peer.await();
        peer.finish();
    }

    /** Receives a message in frames of 512 bytes, with a window of one transfer. */
    static void receiveFrameByFrame(Peer peer) throws Exception {
        String queue = large(5000);
        peer.begin(0, 0);
        peer.receiver(0, queue);
        peer.credit(0, 0, 1);
        peer.sync();
        long next = peer.getDriver().sessions().getLastLocallyOpenedSession().getNextIncomingId().longValue();
        for (int i = 0; i < 11; i++) {
            Matcher<?> isLast = i < 10 ? equalTo(true) : anyOf(nullValue(), equalTo(false));
            peer.expectTransfer().withMore(isLast).withNonNullPayload();
            peer.remoteFlow().withNullHandle().withNextIncomingId((next + i) & 0xFFFFFFFFL).withIncomingWindow(1).now();
            peer.await();
        }
        peer.finish();
    }

    private static void sizes(Suite suite) {
        suite.group("size");
        suite.check("a message above the max-message-size of the client detaches the link and stays", Peer.with(Peer::begun, peer -> {
            String queue = large(5000);
            peer.expectAttach().ofSender();
            peer.remoteAttach().withName("r").withHandle(0).ofReceiver().withMaxMessageSize(UnsignedLong.valueOf(1000))
                    .withSource(new Source().setAddress(Peer.address(queue))).withTarget(new Target()).now();
            peer.await();
            peer.credit(0, 0, 1);
            peer.detached(0, "amqp:link:message-size-exceeded");
            peer.finish();
            Peer.holds(queue, 0);
        }));
        suite.check("a message of many frames goes on while another link is served in the same session", Peer.with(
                () -> Peer.opened(open -> open.withMaxFrameSize(512)), peer -> {
                    String big = large(5000);
                    String small = Peer.filled(1);
                    peer.begin(0, 5);
                    peer.receiver(0, big);
                    peer.receiver(1, small);
                    for (int i = 0; i < 5; i++) {
                        peer.expectTransfer().withHandle(0).withMore(true).withNonNullPayload();
                    }
                    peer.credit(0, 0, 1);
                    peer.await();
                    peer.credit(1, 0, 1);
                    peer.sync();
                    long next = peer.getDriver().sessions().getLastLocallyOpenedSession().getNextIncomingId().longValue();
                    for (int i = 0; i < 6; i++) {
                        peer.expectTransfer().withHandle(0).withNonNullPayload();
                    }
                    peer.expectMessage(0).withHandle(1);
                    peer.remoteFlow().withNullHandle().withNextIncomingId((next + 5) & 0xFFFFFFFFL).withIncomingWindow(100).now();
                    peer.await();
                    peer.finish();
                }));
    }

    /** Clients that leave while they have deliveries, which others get. */
    private static void leaving(Suite suite) {
        suite.group("leaving");
        suite.check("deliveries of a detached link come again", receiving(3, (peer, queue) -> {
            receive(peer, 3);
            peer.expectDetach().withError(nullValue());
            peer.remoteDetach().withHandle(0).withClosed(false).now();
            peer.await();
            peer.receiver(1, "again", queue);
            for (int number = 0; number < 3; number++) {
                peer.expectMessage(number).withDeliveryId(number + 3).withHandle(0).accept();
            }
            peer.credit(1, 0, 10);
            peer.await();
            peer.finish();
            Peer.holds(queue);
        }));
        suite.check("deliveries of an ended session come again", receiving(3, (peer, queue) -> {
            receive(peer, 3);
            peer.expectEnd().withError(nullValue());
            peer.remoteEnd().onChannel(0).now();
            peer.await();
            peer.finish();
            Peer.holds(queue, 0, 1, 2);
        }));
        suite.check("deliveries of a closed connection come again", receiving(3, (peer, queue) -> {
            receive(peer, 3);
            peer.finish();
            Peer.holds(queue, 0, 1, 2);
        }));
        suite.check("deliveries of a broken connection come again", receiving(3, (peer, queue) -> {
            receive(peer, 3);
            peer.close();
            arrive(queue, 3);
        }));
        suite.check("deliveries whose connection the broker closes come again", receiving(3, (peer, queue) -> {
            receive(peer, 3);
            peer.bytes(Peer.hex("00000007 02 00 0000"));
            peer.closed(Peer.FRAMING);
            Peer.holds(queue, 0, 1, 2);
        }));
        suite.check("a client that accepts and leaves at once has accepted", receiving(2, (peer, queue) -> {
            receive(peer, 2);
            peer.remoteDisposition().withRole(Role.RECEIVER).withFirst(0).withLast(0).withSettled(true).withState().accepted().now();
            peer.finish();
            Peer.holds(queue, 1);
        }));
        Map<String, LinkStep> halves = new LinkedHashMap<>();
        halves.put("detaches", (peer, queue) -> {
            peer.expectDetach().withError(nullValue());
            peer.remoteDetach().withHandle(0).withClosed(true).now();
            peer.await();
            // No transfer of the link follows, whatever the window.
            peer.remoteFlow().withNullHandle().withIncomingWindow(1000).now();
            peer.sync();
            peer.finish();
        });
        halves.put("ends the session", (peer, queue) -> {
            peer.expectEnd().withError(nullValue());
            peer.remoteEnd().onChannel(0).now();
            peer.await();
            peer.finish();
        });
        halves.put("closes the connection", (peer, queue) -> peer.finish());
        halves.put("breaks the connection", (peer, queue) -> peer.close());
        halves.put("sends a frame that is none", (peer, queue) -> {
            peer.bytes(Peer.hex("00000007 02 00 0000"));
            peer.closed(Peer.FRAMING);
        });
        halves.forEach((name, step) -> suite.check("a client that " + name + " within a delivery leaves it to others", Peer.with(
                () -> Peer.opened(open -> open.withMaxFrameSize(512)), peer -> {
                    String queue = large(5000);
                    peer.begin(0, 3);
                    peer.receiver(0, queue);
                    for (int i = 0; i < 3; i++) {
                        peer.expectTransfer().withMore(true).withNonNullPayload();
                    }
                    peer.credit(0, 0, 1);
                    peer.await();
                    step.run(peer, queue);
                    arrive(queue, 1);
                })));
    }

    /** The messages 0 to COUNT - 1 come, as soon as the broker knows that their connection has ended. */
    private static void arrive(String queue, int count) throws Exception {
        Peer peer = Peer.begun();
        peer.receiver(0, queue);
        for (int number = 0; number < count; number++) {
            peer.expectMessage(number).accept();
        }
        peer.credit(0, 0, count);
        peer.await();
        peer.finish();
    }
}
