import static org.hamcrest.Matchers.allOf;
import static org.hamcrest.Matchers.equalTo;
import static org.hamcrest.Matchers.hasItemInArray;
import static org.hamcrest.Matchers.nullValue;

import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;
import org.apache.qpid.protonj2.test.driver.codec.primitives.Binary;
import org.apache.qpid.protonj2.test.driver.codec.primitives.UnknownDescribedType;
import org.apache.qpid.protonj2.test.driver.codec.primitives.UnsignedLong;
import org.apache.qpid.protonj2.test.driver.codec.security.SaslCode;
import org.hamcrest.Matcher;

/** Protocol headers (part 2, 2.2) and the SASL layer (part 5, 5.3). */
final class Handshakes {
    private static final byte[] AMQP = Peer.hex("414d5150 00 010000");
    private static final byte[] SASL = Peer.hex("414d5150 03 010000");
    private static final long MECHANISMS = 0x40;
    private static final long INIT = 0x41;
    private static final long CHALLENGE = 0x42;
    private static final long RESPONSE = 0x43;
    private static final long OUTCOME = 0x44;

    private Handshakes() {}

    static void register(Suite suite) {
        suite.group("header");
        suite.check("without the SASL layer the broker answers with the SASL header and ends", Peer.with(Peer::connected, peer -> {
            peer.expectSASLHeader();
            peer.remoteAMQPHeader().now();
            peer.awaitEndOfSocket();
        }));
        Map<String, String> headers = new LinkedHashMap<>();
        headers.put("a second SASL header", "414d5150 03 010000");
        headers.put("another version", "414d5150 00 010100");
        headers.put("a TLS header", "414d5150 02 010000");
        headers.put("an unknown protocol id", "414d5150 07 010000");
        headers.put("an HTTP request", "474554202f20485454502f312e310d0a");
        headers.put("a frame of the AMQP layer", "0000000802000000");
        headers.forEach((name, bytes) -> suite.check(name + " after the login is answered with the AMQP header",
                Peer.with(Handshakes::loggedIn, peer -> {
                    peer.expectAMQPHeader();
                    peer.bytes(Peer.hex(bytes));
                    peer.awaitEndOfSocket();
                })));
        suite.check("a header in single bytes is accepted", Peer.with(Peer::connected, peer -> {
            peer.expectSASLHeader();
            peer.expectSaslMechanisms();
            for (byte part : SASL) {
                peer.bytes(new byte[] {part});
            }
            peer.await();
        }));

        suite.group("sasl");
        suite.check("PLAIN and ANONYMOUS are offered, and ANONYMOUS logs in", Peer.with(Peer::connected, peer -> {
            peer.expectSASLHeader();
            peer.expectSaslMechanisms().withSaslServerMechanisms(Handshakes.hasItems("PLAIN", "ANONYMOUS"));
            peer.remoteSASLHeader().now();
            peer.await();
            peer.expectSaslOutcome().withCode(SaslCode.OK);
            peer.remoteSaslInit().withMechanism("ANONYMOUS").now();
            peer.await();
            peer.expectAMQPHeader();
            peer.expectOpen();
            peer.remoteAMQPHeader().now();
            peer.remoteOpen().now();
            peer.await();
            peer.finish();
        }));
        suite.check("a login, an open and a begin in one write are answered in order", Peer.with(Peer::connected, Handshakes::pipelined));
        refusals(suite);
        wrongFrames(suite);
        aborts(suite);
    }

    private static Matcher<?> hasItems(String... names) {
        List<Matcher<? super Object[]>> all = new ArrayList<>();
        for (String name : names) {
            all.add(hasItemInArray((Object) Peer.symbol(name)));
        }
        return allOf(all);
    }

    /** A peer whose login was accepted, before the second header. */
    private static Peer loggedIn() throws Exception {
        Peer peer = offered();
        peer.expectSaslOutcome().withCode(SaslCode.OK);
        peer.remoteSaslInit().withMechanism("PLAIN").withInitialResponse(plain("guest", "guest")).now();
        peer.await();
        return peer;
    }

    /** A peer that knows the mechanisms. */
    private static Peer offered() throws Exception {
        Peer peer = Peer.connected();
        peer.expectSASLHeader();
        peer.expectSaslMechanisms();
        peer.remoteSASLHeader().now();
        peer.await();
        return peer;
    }

    private static byte[] plain(String user, String password) {
        return ("\0" + user + "\0" + password).getBytes(StandardCharsets.UTF_8);
    }

    private static void pipelined(Peer peer) throws Exception {
        peer.expectSASLHeader();
        peer.expectSaslMechanisms();
        peer.expectSaslOutcome().withCode(SaslCode.OK);
        peer.expectAMQPHeader();
        peer.expectOpen();
        peer.expectClose().withError(nullValue());
        ByteArrayOutputStream all = new ByteArrayOutputStream();
        all.writeBytes(SASL);
        // sasl-init with PLAIN and the response of guest; an open with a container id; a close.
        byte[] response = plain("guest", "guest");
        byte[] init = Peer.hex("00 53 41 c0 16 02 a3 05 504c41494e a0 0c 00 6775657374 00 6775657374");
        Checks.same(response.length, 12);
        all.writeBytes(Peer.encodedFrame(1, 0, init));
        all.writeBytes(AMQP);
        all.writeBytes(Peer.encodedFrame(0, 0, Peer.hex("00 53 10 c0 04 01 a1 01 63")));
        all.writeBytes(Peer.encodedFrame(0, 0, Peer.hex("00 53 18 45")));
        peer.bytes(all.toByteArray());
        peer.awaitEndOfSocket();
    }

    /** Logins that the broker refuses with an outcome before it ends the connection. */
    private static void refusals(Suite suite) {
        record Login(String mechanism, byte[] response) {}
        Map<String, Login> logins = new LinkedHashMap<>();
        logins.put("a mechanism that is not offered", new Login("SCRAM-SHA-256", plain("guest", "guest")));
        logins.put("a mechanism in lower case", new Login("plain", plain("guest", "guest")));
        logins.put("an empty mechanism", new Login("", plain("guest", "guest")));
        logins.put("a mechanism of 200 bytes", new Login("P".repeat(200), plain("guest", "guest")));
        logins.put("EXTERNAL without TLS", new Login("EXTERNAL", new byte[0]));
        logins.put("a wrong password", new Login("PLAIN", plain("guest", "wrong")));
        logins.put("an unknown user", new Login("PLAIN", plain("nobody", "guest")));
        logins.put("a PLAIN response without separators", new Login("PLAIN", "guest".getBytes(StandardCharsets.UTF_8)));
        logins.put("a PLAIN response of separators", new Login("PLAIN", new byte[] {0, 0, 0, 0, 0}));
        logins.put("a PLAIN response that is not UTF-8", new Login("PLAIN", new byte[] {0, (byte) 0xff, (byte) 0xfe, 0, (byte) 0x80}));
        logins.put("an empty PLAIN response", new Login("PLAIN", new byte[0]));
        logins.put("a password of 6000 bytes", new Login("PLAIN", plain("guest", "x".repeat(6000))));
        logins.forEach((name, login) -> suite.check(name + " fails with the outcome auth", Peer.with(Handshakes::offered, peer -> {
            peer.expectSaslOutcome().withCode(SaslCode.AUTH);
            peer.remoteSaslInit().withMechanism(login.mechanism()).withInitialResponse(login.response()).now();
            peer.awaitEndOfSocket();
        })));
    }

    /** Frames that the SASL layer does not allow end the connection; there is no frame to say why (5.3.2). */
    private static void wrongFrames(Suite suite) {
        Map<String, Consumer<Peer>> frames = new LinkedHashMap<>();
        frames.put("a response before the init", peer -> sasl(peer, RESPONSE, new Binary(new byte[0])));
        frames.put("mechanisms of the client", peer -> sasl(peer, MECHANISMS, Peer.symbol("PLAIN")));
        frames.put("a challenge of the client", peer -> sasl(peer, CHALLENGE, new Binary(new byte[] {1})));
        frames.put("an outcome of the client", peer -> sasl(peer, OUTCOME, Peer.ubyte(0)));
        frames.put("an init without a mechanism", peer -> sasl(peer, INIT));
        frames.put("an init whose mechanism is text", peer -> sasl(peer, INIT, "PLAIN", new Binary(plain("guest", "guest"))));
        frames.put("an init with too many fields", peer -> sasl(peer, INIT, Peer.symbol("ANONYMOUS"), null, null, "more"));
        frames.put("an unknown performative", peer -> sasl(peer, 0x4f, Peer.symbol("PLAIN")));
        frames.put("an open", peer -> peer.send(0, Peer.OPEN, "hostile"));
        frames.put("an init in a frame of the AMQP layer", peer -> peer.send(0, INIT, Peer.symbol("ANONYMOUS")));
        frames.put("a frame above the limit", peer -> sasl(peer, INIT, Peer.symbol("PLAIN"), new Binary(new byte[9000])));
        frames.put("a frame that ends early", peer -> peer.frame(1, 0, Peer.hex("00 53 41 c0 20 02 a3 05 504c41494e")));
        frames.put("a frame with a size of 4", peer -> peer.bytes(Peer.hex("00000004 02 01 0000")));
        frames.put("an empty frame", peer -> peer.frame(1, 0, new byte[0]));
        frames.forEach((name, send) -> suite.check(name + " in the SASL layer ends the connection", Peer.with(Handshakes::offered, peer -> {
            send.accept(peer);
            peer.awaitEndOfSocket();
        })));
        suite.check("a second init ends the connection", Peer.with(Handshakes::offered, peer -> {
            peer.expectSaslOutcome().withCode(equalTo(SaslCode.OK.getValue()));
            peer.expectAMQPHeader();
            peer.remoteSaslInit().withMechanism("ANONYMOUS").now();
            peer.remoteSaslInit().withMechanism("ANONYMOUS").now();
            peer.awaitEndOfSocket();
        }));
    }

    private static void sasl(Peer peer, long code, Object... fields) {
        peer.getDriver().sendSaslFrame(0, new UnknownDescribedType(UnsignedLong.valueOf(code), Arrays.asList(fields)));
    }

    /** Clients that leave in the middle of the login. The suite connects again afterwards. */
    private static void aborts(Suite suite) {
        suite.check("the client leaves after half a header", Peer.with(Peer::connected, peer -> peer.bytes(Peer.hex("414d5150"))));
        suite.check("the client leaves after the mechanisms", Peer.with(Handshakes::offered, peer -> {}));
        suite.check("the client leaves within the init",
                Peer.with(Handshakes::offered, peer -> peer.bytes(Peer.hex("00000040 02 01 0000 00 53 41 c0"))));
        suite.check("the client leaves after the login", Peer.with(Handshakes::loggedIn, peer -> {}));
    }
}
