import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;

/** Checks of the scenario, each reported on one line. */
final class Checks {
    /** What one wait may take. */
    static final Duration PATIENCE = Duration.ofSeconds(60);

    interface Body {
        void run() throws Exception;
    }

    interface Attempt<T> {
        T run() throws Exception;
    }

    /** Words of which one is in the name of a check that is wanted; none: all are. */
    private final List<String> words;
    private int passed;
    private int failed;

    Checks(String... words) {
        this.words = List.of(words);
    }

    void check(String name, Body body) {
        if (!words.isEmpty() && words.stream().noneMatch(name::contains)) {
            return;
        }
        long began = System.nanoTime();
        CompletableFuture<Void> outcome = new CompletableFuture<>();
        Thread thread = new Thread(() -> {
            try {
                body.run();
                outcome.complete(null);
            } catch (Throwable error) {
                outcome.completeExceptionally(error);
            }
        });
        thread.setDaemon(true);
        thread.start();
        try {
            outcome.get(2 * PATIENCE.toSeconds(), TimeUnit.SECONDS);
            passed++;
            System.out.printf("ok     %s (%.1f s)%n", name, (System.nanoTime() - began) / 1e9);
        } catch (Exception error) {
            failed++;
            System.out.println("FAILED " + name);
            (error instanceof ExecutionException ? error.getCause() : error).printStackTrace(System.out);
        }
    }

    void end(String suite) {
        System.out.printf("%s: %d passed%s%n", suite, passed, failed > 0 ? ", " + failed + " failed" : "");
        System.exit(failed > 0 || passed == 0 ? 1 : 0);
    }

    static void holds(boolean condition, String what) {
        if (!condition) {
            throw new AssertionError("expected: " + what);
        }
    }

    static void same(Object got, Object expected) {
        holds(Objects.equals(got, expected), expected + ", got: " + got);
    }

    /** Tries until there is something other than null. */
    static <T> T until(String what, Attempt<T> attempt) throws Exception {
        long deadline = System.nanoTime() + PATIENCE.toNanos();
        while (true) {
            T value = attempt.run();
            if (value != null) {
                return value;
            }
            holds(System.nanoTime() < deadline, what);
            TimeUnit.MILLISECONDS.sleep(10);
        }
    }

    /** {@code node start|stop|kill NAME}. */
    static void node(String... arguments) throws Exception {
        control(Path.of(System.getenv("NODE")), arguments);
    }

    /** {@code cluster start}, {@code cluster node NAME}. */
    static void cluster(String... arguments) throws Exception {
        control(Path.of(System.getenv("NODE")).resolveSibling("cluster"), arguments);
    }

    private static void control(Path program, String... arguments) throws Exception {
        List<String> command = new ArrayList<>(List.of(program.toString()));
        command.addAll(List.of(arguments));
        holds(new ProcessBuilder(command).inheritIO().start().waitFor() == 0, command + " succeeds");
    }
}
