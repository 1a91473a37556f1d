import java.nio.file.Path;
import java.util.Arrays;

/** Qpid ProtonJ2's test driver and engine against Posthorn, mostly with frames that the standard forbids. */
final class Scenario {
    /** The port of a node with a heartbeat of 5 seconds and an alarm that blocks publishers. */
    static final int STRICT_PORT = 5673;

    private Scenario() {}

    /** The first argument is the file of exceptions; words of names of scenarios follow. */
    public static void main(String[] arguments) throws Exception {
        String[] words = Arrays.copyOfRange(arguments, 1, arguments.length);
        Suite suite = new Suite(Path.of(arguments[0]), Peer::probe, words);
        Handshakes.register(suite);
        Connections.register(suite);
        Sessions.register(suite);
        Links.register(suite);
        Transfers.register(suite);
        Deliveries.register(suite);
        Transactions.register(suite);
        WebSockets.register(suite);
        Engines.register(suite);
        Walks.register(suite);
        suite.end("protonj2");
    }
}
