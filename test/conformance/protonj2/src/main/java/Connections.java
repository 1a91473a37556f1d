import static org.hamcrest.Matchers.notNullValue;
import static org.hamcrest.Matchers.nullValue;

import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.qpid.protonj2.test.driver.codec.primitives.Symbol;
import org.apache.qpid.protonj2.test.driver.codec.primitives.UnknownDescribedType;
import org.apache.qpid.protonj2.test.driver.codec.primitives.UnsignedLong;
import org.apache.qpid.protonj2.test.driver.codec.transport.ErrorCondition;

/** Open, close, idle timeouts, and frames as such (part 2, 2.3, 2.4, 2.7.1 and 2.7.9). */
final class Connections {
    private Connections() {}

    static void register(Suite suite) {
        opens(suite);
        closes(suite);
        frames(suite);
        idle(suite);
    }

    private static void opens(Suite suite) {
        suite.group("open");
        suite.check("it is answered with the limits of the broker", Peer.with(Peer::authenticated, peer -> {
            peer.expectOpen().withContainerId(notNullValue(String.class)).withMaxFrameSize(notNullValue()).withChannelMax(notNullValue())
                    .withIdleTimeOut(notNullValue()).withProperties(notNullValue());
            peer.remoteOpen().withContainerId("hostile").now();
            peer.await();
            peer.finish();
        }));
        Map<String, Object[]> legal = new LinkedHashMap<>();
        legal.put("an empty container id", new Object[] {""});
        legal.put("a container id of 60000 bytes", new Object[] {"c".repeat(60_000)});
        legal.put("all fields null except the container id", new Object[] {"c", null, null, null, null, null, null, null, null, null});
        legal.put("the smallest max-frame-size", new Object[] {"c", null, Peer.uint(512)});
        legal.put("the largest max-frame-size and channel-max", new Object[] {"c", null, Peer.uint(0xFFFFFFFFL), Peer.ushort(0xFFFF)});
        legal.put("a channel-max of 0", new Object[] {"c", null, null, Peer.ushort(0)});
        legal.put("locales and capabilities as single symbols and as arrays", new Object[] {"c", null, null, null, null, Peer.symbol("en-US"),
            symbols("en-US", "de-DE"), Peer.symbol("a"), symbols("x", "y")});
        legal.put("properties of many types", new Object[] {"c", null, null, null, null, null, null, null, null,
            Map.of(Peer.symbol("a"), 1, Peer.symbol("b"), List.of("x", true), Peer.symbol("c"), Map.of("k", Peer.binary(1, 2)),
                    Peer.symbol("d"), Peer.described(77, "unknown"))});
        // Keys should be symbols (2.8.13); RabbitMQ accepts others as well.
        legal.put("a property with a key that is text", new Object[] {"c", null, null, null, null, null, null, null, null, Map.of("a", 1)});
        legal.put("a property nested 20 times", new Object[] {"c", null, null, null, null, null, null, null, null,
            Map.of(Peer.symbol("a"), Peer.nested(20))});
        legal.forEach((name, fields) -> suite.check("it may have " + name, Peer.with(Peer::authenticated, peer -> {
            peer.expectOpen();
            peer.send(0, Peer.OPEN, fields);
            peer.await();
            peer.begin(0);
            peer.finish();
        })));

        suite.group("wrong open");
        // 2.4.1 and 2.7.9: the answer is an open, and a close with the error.
        Map<String, Object[]> wrong = new LinkedHashMap<>();
        wrong.put("no container id", new Object[] {});
        wrong.put("a container id that is null", new Object[] {null, "host"});
        wrong.put("a container id that is a symbol", new Object[] {Peer.symbol("c")});
        wrong.put("a container id that is a list", new Object[] {List.of("c")});
        wrong.put("a max-frame-size of 511", new Object[] {"c", null, Peer.uint(511)});
        wrong.put("a max-frame-size that is a ulong", new Object[] {"c", null, UnsignedLong.valueOf(4096)});
        wrong.put("a channel-max that is a uint", new Object[] {"c", null, null, Peer.uint(7)});
        wrong.put("an idle timeout that is text", new Object[] {"c", null, null, null, "1000"});
        wrong.put("properties that are a list", new Object[] {"c", null, null, null, null, null, null, null, null, List.of(1)});
        wrong.put("capabilities that are a list of symbols", new Object[] {"c", null, null, null, null, null, null, List.of(Peer.symbol("a"))});
        wrong.put("eleven fields", new Object[] {"c", null, null, null, null, null, null, null, null, null, "more"});
        wrong.forEach((name, fields) -> suite.check(name + " closes the connection", Peer.with(Peer::authenticated, peer -> {
            peer.expectOpen();
            peer.send(0, Peer.OPEN, fields);
            peer.closed(Peer.DECODE, Peer.INVALID, "amqp:frame-size-too-small");
        })));
        suite.check("an idle timeout that no client can keep is refused", Peer.with(Peer::authenticated, peer -> {
            peer.expectOpen();
            peer.remoteOpen().withContainerId("c").withIdleTimeOut(1).now();
            peer.closed(Peer.NOT_ALLOWED);
        }));
        suite.check("an unknown virtual host is refused", Peer.with(Peer::authenticated, peer -> {
            peer.expectOpen();
            peer.remoteOpen().withContainerId("c").withHostname("vhost:there-is-none").now();
            peer.closed(Peer.NOT_FOUND, Peer.NOT_ALLOWED);
        }));
        suite.check("a second open closes the connection", Peer.with(Peer::opened, peer -> {
            peer.remoteOpen().now();
            peer.closed(Peer.ILLEGAL_STATE);
        }));
        Map<String, Object> early = new LinkedHashMap<>();
        early.put("begin", Peer.described(Peer.BEGIN, null, Peer.uint(0), Peer.uint(1), Peer.uint(1)));
        early.put("attach", Peer.described(Peer.ATTACH, "l", Peer.uint(0), true));
        early.put("flow", Peer.described(Peer.FLOW, null, Peer.uint(1), Peer.uint(0), Peer.uint(1)));
        early.put("transfer", Peer.described(Peer.TRANSFER, Peer.uint(0), Peer.uint(0), Peer.binary(1)));
        early.put("disposition", Peer.described(Peer.DISPOSITION, true, Peer.uint(0)));
        early.put("detach", Peer.described(Peer.DETACH, Peer.uint(0)));
        early.put("end", Peer.described(Peer.END));
        early.put("close", Peer.described(Peer.CLOSE));
        early.forEach((name, performative) -> suite.check(name + " before the open closes the connection", Peer.with(Peer::authenticated, peer -> {
            peer.expectOpen();
            UnknownDescribedType value = (UnknownDescribedType) performative;
            peer.send(0, value.getDescriptor(), value.getDescribed(), new byte[0]);
            peer.closed(Peer.ILLEGAL_STATE);
        })));
    }

    private static Symbol[] symbols(String... names) {
        return Arrays.stream(names).map(Peer::symbol).toArray(Symbol[]::new);
    }

    private static void closes(Suite suite) {
        suite.group("close");
        Map<String, ErrorCondition> errors = new LinkedHashMap<>();
        errors.put("no error", null);
        errors.put("an error of the standard", new ErrorCondition("amqp:internal-error", "the client fails"));
        errors.put("an unknown condition", new ErrorCondition("example:unknown", "d"));
        errors.put("info with nested values", new ErrorCondition(Peer.symbol("amqp:internal-error"), null,
                Map.of(Peer.symbol("a"), Peer.nested(10))));
        errors.forEach((name, error) -> suite.check(name + " is answered without an error", Peer.with(Peer::begun, peer -> {
            peer.expectClose().withError(nullValue());
            peer.remoteClose().withErrorCondition(error).now();
            peer.awaitEndOfSocket();
        })));
        suite.check("frames after the close have no answer", Peer.with(Peer::begun, peer -> {
            peer.expectClose().withError(nullValue());
            ByteArrayOutputStream all = new ByteArrayOutputStream();
            all.writeBytes(Peer.encodedFrame(0, 0, Peer.hex("00 53 18 45")));
            all.writeBytes(Peer.encodedFrame(0, 1, Peer.hex("00 53 11 c0 08 04 40 43 52 01 52 01 40")));
            all.writeBytes(Peer.encodedFrame(0, 0, Peer.hex("00 53 18 45")));
            peer.bytes(all.toByteArray());
            peer.awaitEndOfSocket();
        }));
        suite.check("the broker ends a connection whose client does not answer its close", Peer.with(Peer::opened, peer -> {
            peer.expectClose().withError(Peer.error(Peer.ILLEGAL_STATE));
            peer.remoteOpen().now();
            peer.awaitEndOfSocket();
        }));
        suite.check("the broker ignores frames until the client answers its close", Peer.with(Peer::begun, peer -> {
            peer.expectClose().withError(Peer.error(Peer.ILLEGAL_STATE));
            peer.remoteOpen().now();
            peer.await();
            peer.send(1, Peer.BEGIN, null, Peer.uint(0), Peer.uint(1), Peer.uint(1));
            peer.send(0, Peer.FLOW, null, Peer.uint(1), Peer.uint(0), Peer.uint(1), null, null, null, null, null, true);
            peer.send(0, 0x99, "unknown");
            peer.remoteClose().now();
            peer.awaitEndOfSocket();
        }));
        suite.check("an error of another type is refused or ignored, and the socket ends", Peer.with(Peer::opened, peer -> {
            peer.expectClose();
            peer.send(0, Peer.CLOSE, "text");
            peer.await();
            peer.remoteClose().now();
            peer.awaitEndOfSocket();
        }));
    }

    private static void frames(Suite suite) {
        suite.group("frame");
        Map<String, String> malformed = new LinkedHashMap<>();
        malformed.put("a size of 7", "00000007 02 00 0000");
        malformed.put("a size of 0", "00000000 02 00 0000");
        malformed.put("a size above max-frame-size", "00020001 02 00 0000");
        malformed.put("a size of 2 GiB", "7fffffff 02 00 0000");
        malformed.put("a size of 4 GiB", "ffffffff 02 00 0000");
        malformed.put("a data offset of 1", "0000000c 01 00 0000 00531845");
        malformed.put("a data offset behind the frame", "0000000c 04 00 0000 00531845");
        malformed.put("an unknown type", "0000000c 02 02 0000 00531845");
        malformed.put("the type of SASL", "0000000c 02 01 0000 00531845");
        malformed.forEach((name, bytes) -> suite.check(name + " closes the connection with framing-error", Peer.with(Peer::begun, peer -> {
            peer.bytes(Peer.hex(bytes));
            peer.closed(Peer.FRAMING);
        })));
        suite.check("an extended header is skipped", Peer.with(Peer::begun, peer -> {
            peer.expectClose().withError(nullValue());
            peer.bytes(Peer.hex("00000010 03 00 0000 deadbeef 00531845"));
            peer.awaitEndOfSocket();
        }));
        suite.check("empty frames have no answer", Peer.with(Peer::begun, peer -> {
            for (int i = 0; i < 100; i++) {
                peer.remoteEmptyFrame().now();
            }
            peer.sync();
            peer.finish();
        }));
        suite.check("frames in two writes are read as one", Peer.with(Peer::authenticated, peer -> {
            peer.expectOpen();
            peer.remoteOpen().withContainerId("c").splitWrite(true).now();
            peer.await();
            peer.expectBegin();
            peer.remoteBegin().withNextOutgoingId(0).withIncomingWindow(1).withOutgoingWindow(1).splitWrite(true).now();
            peer.await();
            peer.finish();
        }));
        suite.check("a client with the smallest frames gets none above them", Peer.with(
                () -> Peer.opened(open -> open.withMaxFrameSize(512)), Deliveries::receiveLarge));

        suite.group("wrong performative");
        Map<String, byte[]> unknown = new LinkedHashMap<>();
        unknown.put("an unknown code", Peer.hex("00 53 19 45"));
        unknown.put("an unknown code of 8 bytes", Peer.hex("00 80 7fffffffffffffff 45"));
        unknown.put("an unknown symbol", Peer.hex("00 a3 04 61626364 45"));
        unknown.put("a code of the SASL layer", Peer.hex("00 53 41 c0 0d 01 a3 09 414e4f4e594d4f5553"));
        unknown.put("a code of a message section", Peer.hex("00 53 75 a0 01 00"));
        unknown.forEach((name, body) -> suite.check(name + " closes the connection with not-implemented", Peer.with(Peer::begun, peer -> {
            peer.frame(0, 0, body);
            peer.closed(Peer.NOT_IMPLEMENTED);
        })));
        Map<String, byte[]> bodies = new LinkedHashMap<>();
        bodies.put("no descriptor", Peer.hex("45"));
        bodies.put("a descriptor that is text", Peer.hex("00 a1 05 636c6f7365 45"));
        bodies.put("a descriptor that is described", Peer.hex("00 00 53 18 53 18 45"));
        bodies.put("a body that is a map", Peer.hex("00 53 11 c1 01 00"));
        bodies.put("a body that is null", Peer.hex("00 53 11 40"));
        bodies.put("a body that is an array", Peer.hex("00 53 11 e0 02 00 40"));
        bodies.put("a list above the frame", Peer.hex("00 53 11 d0 7fffffff 00000004"));
        bodies.put("a list with a count above its size", Peer.hex("00 53 11 c0 05 ff 40 43 43 43"));
        bodies.put("a list with 2^32 - 1 entries", Peer.hex("00 53 11 d0 00000008 ffffffff 40 43 43 43"));
        bodies.put("a list of size 0", Peer.hex("00 53 11 c0 00 40 43 43 43"));
        bodies.put("an unknown constructor", Peer.hex("00 53 11 c0 05 04 3f 43 43 43"));
        bodies.put("a constructor without data", Peer.hex("00 53 11 c0 03 04 40 52"));
        bodies.put("only a descriptor", Peer.hex("00 53 11"));
        bodies.put("only a constructor", Peer.hex("00"));
        bodies.put("a thousand descriptors", repeated("00 53 11", 1000, ""));
        bodies.put("a boolean of 2 in a field", Peer.hex("00 53 12 c0 0b 03 a1 01 6c 43 56 02 40 40 40 40"));
        bodies.put("lists nested 14000 times in a field", deep(14_000));
        bodies.put("an array of 2^31 nulls in a field", Peer.hex("00 53 11 c0 12 06 40 43 43 43 40 f0 00000005 80000000 40"));
        bodies.put("an array of arrays without end", Peer.hex("00 53 11 c0 10 06 40 43 43 43 40 e0 08 01 e0 06 01 e0 04 01 e0"));
        bodies.put("a map with an odd count", Peer.hex("00 53 11 c0 0c 08 40 43 43 43 40 40 40 c1 02 01 40"));
        bodies.put("text that is not UTF-8", Peer.hex("00 53 12 c0 06 03 a1 02 c328 43 41"));
        bodies.put("a symbol above its frame", Peer.hex("00 53 11 c0 0d 06 40 43 43 43 40 b3 7fffffff 61"));
        bodies.forEach((name, body) -> suite.check(name + " closes the connection", Peer.with(Peer::begun, peer -> {
            peer.frame(0, 0, body);
            peer.closed(Peer.DECODE, Peer.INVALID);
        })));
    }

    /** These bytes repeated, and then others. */
    private static byte[] repeated(String part, int count, String end) {
        return Peer.hex(part.repeat(count) + end);
    }

    /** A begin with lists in lists in a field for capabilities. */
    private static byte[] deep(int depth) {
        ByteBuffer lists = ByteBuffer.allocate(9 * depth);
        for (int left = depth; left > 1; left--) {
            lists.put((byte) 0xd0).putInt(4 + 9 * (left - 1) - 8).putInt(1);
        }
        lists.put((byte) 0x45);
        byte[] field = Arrays.copyOf(lists.array(), lists.position());
        Checks.same(field.length, 9 * (depth - 1) + 1);
        ByteBuffer body = ByteBuffer.allocate(64 + field.length);
        body.put(Peer.hex("00 53 11 d0")).putInt(4 + 5 + field.length).putInt(6).put(Peer.hex("40 43 43 43 40")).put(field);
        return Arrays.copyOf(body.array(), body.position());
    }

    private static void idle(Suite suite) {
        suite.group("idle");
        suite.check("a client with a timeout of a second gets empty frames", Peer.with(
                () -> Peer.opened(open -> open.withIdleTimeOut(1000)), peer -> {
                    peer.expectEmptyFrame();
                    peer.expectEmptyFrame();
                    peer.expectEmptyFrame();
                    peer.await();
                    Checks.same(peer.getEmptyFrameCount(), 3);
                }));
        suite.check("a silent client is closed after the timeout of the broker", Peer.with(() -> Peer.opened(Scenario.STRICT_PORT, open -> {}), peer ->
                peer.closed("amqp:resource-limit-exceeded")));
        suite.check("a client that sends empty frames is not closed", Peer.with(() -> Peer.opened(Scenario.STRICT_PORT, open -> {}), peer -> {
            for (int i = 1; i <= 11; i++) {
                peer.remoteEmptyFrame().later(i * 1000);
            }
            peer.begin(0);
            // The broker closes with an error if the frames above did not count.
            peer.expectClose().withError(nullValue());
            peer.remoteClose().later(11_500);
            peer.awaitEndOfSocket();
        }));
        suite.check("bytes of an unfinished frame count as activity, and the frame is read", Peer.with(Peer::begun, peer -> {
            byte[] close = Peer.encodedFrame(0, 0, Peer.hex("00 53 18 45"));
            peer.expectClose().withError(nullValue());
            for (byte part : close) {
                peer.bytes(new byte[] {part});
            }
            peer.awaitEndOfSocket();
        }));
    }
}
