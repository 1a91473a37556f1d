import static org.hamcrest.Matchers.anyOf;
import static org.hamcrest.Matchers.equalTo;
import static org.hamcrest.Matchers.notNullValue;
import static org.hamcrest.Matchers.nullValue;

import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.qpid.protonj2.test.driver.codec.messaging.Source;
import org.apache.qpid.protonj2.test.driver.codec.messaging.Target;
import org.apache.qpid.protonj2.test.driver.codec.primitives.UnknownDescribedType;
import org.apache.qpid.protonj2.test.driver.codec.primitives.UnsignedInteger;
import org.apache.qpid.protonj2.test.driver.codec.primitives.UnsignedLong;
import org.apache.qpid.protonj2.test.driver.codec.transport.Begin;

/** Begin, end, channels and session windows (part 2, 2.5, 2.7.2, 2.7.4 and 2.7.8). */
final class Sessions {
    private Sessions() {}

    static void register(Suite suite) {
        begins(suite);
        ends(suite);
        windows(suite);
        flows(suite);
    }

    private static void begins(Suite suite) {
        suite.group("begin");
        Map<String, Object[]> legal = new LinkedHashMap<>();
        legal.put("windows of 0", new Object[] {null, Peer.uint(0), Peer.uint(0), Peer.uint(0)});
        legal.put("windows of 2^32 - 1", new Object[] {null, Peer.uint(0), Peer.uint(0xFFFFFFFFL), Peer.uint(0xFFFFFFFFL)});
        legal.put("a next-outgoing-id of 2^32 - 1", new Object[] {null, Peer.uint(0xFFFFFFFFL), Peer.uint(1), Peer.uint(1)});
        legal.put("capabilities and properties", new Object[] {null, Peer.uint(0), Peer.uint(1), Peer.uint(1), Peer.uint(0),
            Peer.symbol("a"), Peer.symbol("b"), Map.of(Peer.symbol("c"), List.of(1, 2))});
        legal.forEach((name, fields) -> suite.check("it may have " + name, Peer.with(Peer::opened, peer -> {
            peer.expectBegin().withRemoteChannel(equalTo(Peer.ushort(0))).withHandleMax(notNullValue());
            // The driver knows sessions that it has begun itself.
            peer.getDriver().sessions().handleLocalBegin(
                    new Begin(), Peer.ushort(0));
            peer.send(0, Peer.BEGIN, fields);
            peer.await();
            peer.finish();
        })));
        Map<String, Object[]> wrong = new LinkedHashMap<>();
        wrong.put("no fields", new Object[] {});
        wrong.put("no next-outgoing-id", new Object[] {null, null, Peer.uint(1), Peer.uint(1)});
        wrong.put("no incoming-window", new Object[] {null, Peer.uint(0), null, Peer.uint(1)});
        wrong.put("no outgoing-window", new Object[] {null, Peer.uint(0), Peer.uint(1)});
        wrong.put("a window that is an int", new Object[] {null, Peer.uint(0), 1, Peer.uint(1)});
        wrong.put("a window that is a ulong", new Object[] {null, Peer.uint(0), UnsignedLong.valueOf(1), Peer.uint(1)});
        wrong.put("a remote channel that is a uint", new Object[] {Peer.uint(0), Peer.uint(0), Peer.uint(1), Peer.uint(1)});
        wrong.put("a remote channel that did not begin", new Object[] {Peer.ushort(0), Peer.uint(0), Peer.uint(1), Peer.uint(1)});
        wrong.put("a remote channel above channel-max", new Object[] {Peer.ushort(0xFFFF), Peer.uint(0), Peer.uint(1), Peer.uint(1)});
        wrong.put("nine fields", new Object[] {null, Peer.uint(0), Peer.uint(1), Peer.uint(1), null, null, null, null, "more"});
        wrong.forEach((name, fields) -> suite.check(name + " closes the connection", Peer.with(Peer::opened, peer -> {
            peer.send(0, Peer.BEGIN, fields);
            peer.closed(Peer.DECODE, Peer.INVALID, Peer.NOT_ALLOWED);
        })));
        suite.check("a channel above channel-max closes the connection", Peer.with(Peer::opened, peer -> {
            int limit = peer.getDriver().getRemoteOpen().getChannelMax().intValue();
            peer.send(limit + 1, Peer.BEGIN, null, Peer.uint(0), Peer.uint(1), Peer.uint(1));
            peer.closed(Peer.FRAMING);
        }));
        suite.check("the channel 65535 closes the connection", Peer.with(Peer::opened, peer -> {
            peer.send(0xFFFF, Peer.BEGIN, null, Peer.uint(0), Peer.uint(1), Peer.uint(1));
            peer.closed(Peer.FRAMING);
        }));
        suite.check("a client with a channel-max of 0 has one session, on channel 0", Peer.with(
                () -> Peer.opened(open -> open.withChannelMax(0)), peer -> {
                    peer.begin(0);
                    peer.sync();
                    peer.finish();
                }));
        suite.check("all channels up to channel-max have sessions at the same time", Peer.with(Peer::opened, peer -> {
            int limit = peer.getDriver().getRemoteOpen().getChannelMax().intValue();
            for (int channel = limit; channel >= 0; channel--) {
                peer.begin(channel);
            }
            for (int channel = 0; channel <= limit; channel++) {
                peer.sync(channel);
            }
            peer.finish();
        }));
        suite.check("a second begin on a channel closes the connection", Peer.with(Peer::begun, peer -> {
            peer.send(0, Peer.BEGIN, null, Peer.uint(0), Peer.uint(1), Peer.uint(1));
            peer.closed(Peer.ILLEGAL_STATE, Peer.NOT_ALLOWED);
        }));
    }

    private static void ends(Suite suite) {
        suite.group("end");
        suite.check("a channel is free after the end", Peer.with(Peer::begun, peer -> {
            for (int i = 0; i < 100; i++) {
                peer.expectEnd().withError(nullValue());
                peer.remoteEnd().onChannel(0).now();
                peer.await();
                peer.begin(0);
            }
            peer.sync();
            peer.finish();
        }));
        suite.check("an end with an error is answered without one", Peer.with(Peer::begun, peer -> {
            peer.expectEnd().withError(nullValue());
            peer.remoteEnd().withErrorCondition("example:failed", "d").onChannel(0).now();
            peer.await();
            peer.finish();
        }));
        suite.check("an end and a begin in one write are answered in order", Peer.with(Peer::begun, peer -> {
            peer.expectEnd().withError(nullValue());
            peer.expectBegin();
            peer.remoteEnd().onChannel(0).deferred().now();
            peer.remoteBegin().withNextOutgoingId(0).withIncomingWindow(1).withOutgoingWindow(1).onChannel(0).now();
            peer.await();
            peer.finish();
        }));
        suite.check("a second end closes the connection", Peer.with(Peer::begun, peer -> {
            peer.expectEnd().withError(nullValue());
            peer.remoteEnd().onChannel(0).now();
            peer.await();
            peer.remoteEnd().onChannel(0).now();
            peer.closed(Peer.ILLEGAL_STATE, Peer.NOT_ALLOWED);
        }));
        Map<String, Object[]> wrong = new LinkedHashMap<>();
        wrong.put("an error that is text", new Object[] {"error"});
        wrong.put("an error without a condition", new Object[] {Peer.described(0x1d)});
        wrong.put("two fields", new Object[] {null, 1});
        wrong.forEach((name, fields) -> suite.check("an end with " + name + " closes the connection", Peer.with(Peer::begun, peer -> {
            peer.send(0, Peer.END, fields);
            peer.closed(Peer.DECODE, Peer.INVALID);
        })));
        suite.check("an end of one session leaves the deliveries of another", Peer.with(Peer::begun, peer -> {
            String queue = Peer.filled(1);
            peer.begin(1);
            peer.begin(2);
            peer.receiver(0, queue);
            peer.expectMessage(0).onChannel(2);
            peer.credit(0, 0, 1);
            peer.await();
            peer.expectEnd().withError(nullValue()).onChannel(1);
            peer.remoteEnd().onChannel(1).now();
            peer.await();
            peer.remoteDisposition().withRole(true).withFirst(0).withSettled(true).withState().accepted().onChannel(2).now();
            peer.sync(2);
            peer.finish();
            Peer.holds(queue);
        }));
        Map<String, Object> orphans = new LinkedHashMap<>();
        orphans.put("attach", Peer.described(Peer.ATTACH, "l", Peer.uint(0), true));
        orphans.put("flow", Peer.described(Peer.FLOW, null, Peer.uint(1), Peer.uint(0), Peer.uint(1)));
        orphans.put("transfer", Peer.described(Peer.TRANSFER, Peer.uint(0), Peer.uint(0), Peer.binary(1)));
        orphans.put("disposition", Peer.described(Peer.DISPOSITION, true, Peer.uint(0)));
        orphans.put("detach", Peer.described(Peer.DETACH, Peer.uint(0)));
        orphans.put("end", Peer.described(Peer.END));
        orphans.forEach((name, performative) -> suite.check("on a channel without a session the " + name + " closes the connection",
                Peer.with(Peer::begun, peer -> {
                    UnknownDescribedType value = (UnknownDescribedType) performative;
                    peer.send(9, value.getDescriptor(), value.getDescribed(), new byte[0]);
                    peer.closed(Peer.ILLEGAL_STATE, Peer.NOT_ALLOWED);
                })));
        suite.check("frames of a session that the broker has ended have no answer", Peer.with(Peer::begun, peer -> {
            peer.expectEnd().withError(Peer.error("amqp:session:unattached-handle"));
            peer.remoteFlow().withHandle(5).withLinkCredit(1).withDeliveryCount(0).now();
            peer.await();
            peer.send(0, Peer.ATTACH, "l", Peer.uint(0), true);
            peer.send(0, Peer.TRANSFER, Peer.uint(0), Peer.uint(0), Peer.binary(1));
            peer.send(0, Peer.FLOW, null, Peer.uint(1), Peer.uint(0), Peer.uint(1), null, null, null, null, null, true);
            peer.begin(1);
            peer.sync(1);
            peer.finish();
        }));
    }

    private static void windows(Suite suite) {
        suite.group("window");
        suite.check("a window of 0 holds deliveries back until it opens", Peer.with(Peer::opened, peer -> {
            String queue = Peer.filled(3);
            peer.begin(0, 0);
            peer.receiver(0, queue);
            peer.credit(0, 0, 10);
            peer.sync();
            long next = peer.getDriver().sessions().getLastLocallyOpenedSession().getNextIncomingId().longValue();
            for (int number = 0; number < 3; number++) {
                peer.expectMessage(number).withDeliveryId(number);
                peer.remoteFlow().withNullHandle().withNextIncomingId((next + number) & 0xFFFFFFFFL).withIncomingWindow(1).now();
                peer.await();
            }
            peer.finish();
        }));
        suite.check("a delivery of many frames goes on frame by frame as the window opens", Peer.with(
                () -> Peer.opened(open -> open.withMaxFrameSize(512)), Deliveries::receiveFrameByFrame));
        suite.check("a next-incoming-id ahead of the broker ends the session", Peer.with(Peer::begun, peer -> {
            long next = peer.getDriver().sessions().getLastLocallyOpenedSession().getNextIncomingId().longValue();
            peer.remoteFlow().withNullHandle().withNextIncomingId((next + 1) & 0xFFFFFFFFL).withIncomingWindow(1).now();
            peer.ended("amqp:session:window-violation");
        }));
        suite.check("a next-incoming-id that is half the range ahead ends the session", Peer.with(Peer::begun, peer -> {
            long next = peer.getDriver().sessions().getLastLocallyOpenedSession().getNextIncomingId().longValue();
            peer.remoteFlow().withNullHandle().withNextIncomingId((next + 0x7FFFFFFFL) & 0xFFFFFFFFL).withIncomingWindow(1).now();
            peer.ended("amqp:session:window-violation");
        }));
        suite.check("transfers beyond a window that an alarm has closed end the session", Peer.with(
                () -> Peer.opened(Scenario.STRICT_PORT, open -> {}), peer -> {
                    peer.expectBegin().withIncomingWindow(0);
                    peer.remoteBegin().withNextOutgoingId(0).withIncomingWindow(10).withOutgoingWindow(10).onChannel(0).now();
                    peer.await();
                    peer.expectAttach().ofReceiver();
                    peer.expectFlow();
                    peer.remoteAttach().withName("l").withHandle(0).ofSender().withInitialDeliveryCount(0).withSource(new Source())
                            .withTarget(new Target().setAddress("/exchanges/amq.fanout")).now();
                    peer.await();
                    peer.message(0, 0).now();
                    peer.expectEnd().withError(Peer.error("amqp:session:window-violation"));
                    peer.await();
                    peer.finish();
                }));
        suite.check("transfer ids of the client wrap after 2^32 - 1", Peer.with(Peer::opened, peer -> {
            String queue = Peer.queue();
            peer.expectBegin();
            peer.remoteBegin().withNextOutgoingId(0xFFFFFFFEL).withIncomingWindow(100).withOutgoingWindow(100).onChannel(0).now();
            peer.await();
            peer.sender(0, queue);
            for (int id = 0; id < 5; id++) {
                peer.publish(0, id);
            }
            // A flow without its own count of the transfers shows that of the broker.
            peer.expectFlow().withHandle(nullValue()).withNextIncomingId(3);
            peer.remoteFlow().withNullHandle().withNextOutgoingId(3).withEcho(true).now();
            peer.await();
            peer.finish();
        }));
        suite.check("delivery counts of the client wrap after 2^32 - 1", Peer.with(Peer::begun, peer -> {
            peer.expectAttach().ofReceiver();
            peer.expectFlow().withDeliveryCount(0xFFFFFFFEL);
            peer.remoteAttach().withName("l").withHandle(0).ofSender().withInitialDeliveryCount(0xFFFFFFFEL).withSource(new Source())
                    .withTarget(new Target().setAddress(Peer.address(Peer.queue()))).now();
            peer.await();
            for (int id = 0; id < 5; id++) {
                peer.publish(0, id);
            }
            peer.expectFlow().withHandle(0).withDeliveryCount(3);
            peer.remoteFlow().withHandle(0).withEcho(true).now();
            peer.await();
            peer.finish();
        }));
        suite.check("a message of 1000 transfers fits, because the broker renews its window", Peer.with(Peer::begun, peer -> {
            String queue = Peer.queue();
            peer.sender(0, queue);
            byte[] message = Peer.text("x".repeat(992) + "message 0");
            // The broker grants more when half of its window is used, and each flow tells the transfers that it knows.
            long window = peer.getDriver().sessions().getLastLocallyOpenedSession().getRemoteBegin().getIncomingWindow().longValue();
            for (long flows = 1000 / ((window + 1) / 2); flows > 0; flows--) {
                peer.expectFlow().withHandle(nullValue()).withIncomingWindow(window);
            }
            peer.expectAccepted(0);
            for (int at = 0; at < 1000; at++) {
                byte[] part = Arrays.copyOfRange(message, at, at < 999 ? at + 1 : message.length);
                peer.part(0, 0, part).withMore(at < 999).now();
            }
            peer.await();
            peer.finish();
        }));
    }

    private static void flows(Suite suite) {
        suite.group("flow");
        Map<String, Object[]> wrong = new LinkedHashMap<>();
        wrong.put("no fields", new Object[] {});
        wrong.put("no incoming-window", new Object[] {Peer.uint(0), null, Peer.uint(0), Peer.uint(1)});
        wrong.put("no next-outgoing-id", new Object[] {Peer.uint(0), Peer.uint(1), null, Peer.uint(1)});
        wrong.put("no outgoing-window", new Object[] {Peer.uint(0), Peer.uint(1), Peer.uint(0)});
        wrong.put("a window that is text", new Object[] {null, "1", Peer.uint(0), Peer.uint(1)});
        wrong.put("a credit that is a ulong", new Object[] {null, Peer.uint(1), Peer.uint(0), Peer.uint(1), Peer.uint(0), Peer.uint(0),
            UnsignedLong.valueOf(1)});
        wrong.put("a drain that is a number", new Object[] {null, Peer.uint(1), Peer.uint(0), Peer.uint(1), Peer.uint(0), Peer.uint(0),
            Peer.uint(1), null, 1});
        wrong.put("properties that are a list", new Object[] {null, Peer.uint(1), Peer.uint(0), Peer.uint(1), null, null, null, null, null,
            null, List.of()});
        wrong.forEach((name, fields) -> suite.check(name + " ends the session or the connection", Peer.with(Peer::begun, peer -> {
            peer.send(0, Peer.FLOW, fields);
            endedOrClosed(peer, Peer.DECODE, Peer.INVALID);
        })));
        suite.check("a handle that is not attached ends the session", Peer.with(Peer::begun, peer -> {
            peer.remoteFlow().withHandle(3).withDeliveryCount(0).withLinkCredit(1).now();
            peer.ended("amqp:session:unattached-handle");
        }));
        suite.check("a handle of 2^32 - 1 ends the session", Peer.with(Peer::begun, peer -> {
            peer.remoteFlow().withHandle(0xFFFFFFFFL).withDeliveryCount(0).withLinkCredit(1).now();
            peer.ended("amqp:session:unattached-handle");
        }));
        suite.check("an echo for a link on which the client sends has its credit", Peer.with(Peer::begun, peer -> {
            peer.sender(4, Peer.queue());
            peer.expectFlow().withHandle(0).withLinkCredit(notNullValue()).withDeliveryCount(0);
            peer.remoteFlow().withHandle(4).withEcho(true).now();
            peer.await();
            peer.finish();
        }));
        suite.check("an echo for a link on which the broker sends has its state", Peer.with(Peer::begun, peer -> {
            peer.receiver(7, Peer.filled(2));
            peer.expectFlow().withHandle(0).withLinkCredit(0).withDeliveryCount(0).withAvailable(2);
            peer.remoteFlow().withHandle(7).withDeliveryCount(0).withLinkCredit(0).withEcho(true).now();
            peer.await();
            peer.finish();
        }));
        suite.check("a thousand echoes have a thousand answers", Peer.with(Peer::begun, peer -> {
            for (int i = 0; i < 1000; i++) {
                peer.expectFlow().withHandle(nullValue()).withEcho(anyOf(nullValue(), equalTo(false)));
            }
            for (int i = 0; i < 1000; i++) {
                peer.remoteFlow().withNullHandle().withEcho(true).now();
            }
            peer.await();
            peer.finish();
        }));
        suite.check("a sender whose delivery count passes its credit is detached", Peer.with(Peer::begun, peer -> {
            peer.sender(0, Peer.queue());
            peer.remoteFlow().withHandle(0).withDeliveryCount(100_000).withLinkCredit(0).now();
            peer.detached(0, "amqp:link:transfer-limit-exceeded");
            peer.finish();
        }));
    }

    /** The session or the connection ends with one of these conditions. */
    static void endedOrClosed(Peer peer, String... conditions) throws Exception {
        peer.ended(conditions);
    }
}
