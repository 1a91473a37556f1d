import static org.hamcrest.Matchers.nullValue;

import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.qpid.protonj2.test.driver.ProtonTestClientOptions;

/** AMQP 1.0 over WebSocket, where frames of both layers need not agree. */
final class WebSockets {
    private static final int PORT = 15678;

    private WebSockets() {}

    private static Peer connected(boolean isFragmented) throws Exception {
        ProtonTestClientOptions options = new ProtonTestClientOptions();
        options.setUseWebSockets(true);
        options.setWebSocketPath("/ws");
        options.setFragmentWrites(isFragmented);
        Peer peer = new Peer(options);
        peer.connect(Peer.HOST, PORT);
        return peer;
    }

    private static Peer begun(boolean isFragmented) throws Exception {
        Peer peer = connected(isFragmented);
        peer.triggerClientSaslPlainConnect("guest", "guest");
        peer.await();
        peer.expectOpen();
        peer.remoteOpen().withContainerId("hostile").now();
        peer.await();
        peer.begin(0);
        return peer;
    }

    static void register(Suite suite) {
        suite.group("websocket");
        for (boolean isFragmented : new boolean[] {false, true}) {
            String how = isFragmented ? "in two fragments for each write" : "in one frame for each write";
            suite.check("messages are exchanged " + how, Peer.with(() -> begun(isFragmented), peer -> {
                String queue = Peer.queue();
                peer.sender(0, queue);
                for (int id = 0; id < 20; id++) {
                    peer.publish(0, id);
                }
                peer.receiver(1, queue);
                for (int id = 0; id < 20; id++) {
                    peer.expectMessage(id).accept();
                }
                peer.credit(1, 0, 20);
                peer.await();
                peer.finish();
                Peer.holds(queue);
            }));
        }
        suite.check("a header in frames of one byte is accepted", Peer.with(() -> connected(false), peer -> {
            peer.expectSASLHeader();
            peer.expectSaslMechanisms();
            for (byte part : Peer.hex("414d5150 03 010000")) {
                peer.bytes(new byte[] {part});
            }
            peer.await();
        }));
        suite.check("a message in frames of one byte arrives", Peer.with(() -> begun(false), peer -> {
            String queue = Peer.queue();
            peer.sender(0, queue);
            byte[] performative = Peer.hex("00 53 14 c0 06 03 43 43 a0 01 61");
            byte[] payload = Peer.text("message 0");
            byte[] body = Arrays.copyOf(performative, performative.length + payload.length);
            System.arraycopy(payload, 0, body, performative.length, payload.length);
            peer.expectAccepted(0);
            for (byte part : Peer.encodedFrame(0, 0, body)) {
                peer.bytes(new byte[] {part});
            }
            peer.await();
            peer.finish();
            Peer.holds(queue, 0);
        }));
        Map<String, String> malformed = new LinkedHashMap<>();
        malformed.put("a size of 7", "00000007 02 00 0000");
        malformed.put("a size above max-frame-size", "00020001 02 00 0000");
        malformed.put("an unknown type", "0000000c 02 02 0000 00531845");
        malformed.forEach((name, bytes) -> suite.check("a frame with " + name + " closes the connection", Peer.with(() -> begun(false), peer -> {
            peer.bytes(Peer.hex(bytes));
            peer.closed(Peer.FRAMING);
        })));
        suite.check("a handle that is not attached ends the session", Peer.with(() -> begun(false), peer -> {
            peer.message(0, 0).now();
            peer.ended("amqp:session:unattached-handle");
        }));
        suite.check("without the SASL layer the broker answers with the SASL header and ends", Peer.with(() -> connected(false), peer -> {
            peer.expectSASLHeader();
            peer.remoteAMQPHeader().now();
            peer.awaitEndOfSocket();
        }));
        suite.check("a wrong PLAIN response fails, and the socket ends", Peer.with(() -> connected(false), peer -> {
            peer.expectSASLHeader();
            peer.expectSaslMechanisms();
            peer.remoteSASLHeader().now();
            peer.await();
            peer.expectSaslOutcome().withCode((byte) 1);
            peer.remoteSaslInit().withMechanism("PLAIN").withInitialResponse(new byte[] {0, 1, 0, 2}).now();
            peer.awaitEndOfSocket();
        }));
        suite.check("a client that leaves within a frame leaves nothing", Peer.with(() -> begun(true), peer -> {
            String queue = Peer.queue();
            peer.sender(0, queue);
            peer.publish(0, 0);
            peer.bytes(Peer.hex("00000020 02 00 0000 00 53 14 c0"));
            peer.close();
            Peer.holds(queue, 0);
        }));
        suite.check("a close is answered, and the socket ends", Peer.with(() -> begun(true), peer -> {
            peer.expectClose().withError(nullValue());
            peer.remoteClose().now();
            peer.awaitEndOfSocket();
        }));
    }
}
