import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.EnumMap;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

/** Runs scenarios by name. A scenario in the file of exceptions must fail, and every other one must pass. */
final class Suite {
    interface Body {
        void run() throws Exception;
    }

    private enum Result {
        PASSED("ok     "),
        KNOWN("known  "),
        FAILED("FAILED ");

        private final String label;

        Result(String label) {
            this.label = label;
        }
    }

    private record Report(Result result, String text, Throwable error) {}

    /** Scenarios that run at a time: many wait for an answer that the broker delays, such as that to a wrong password. */
    private static final int AT_ONCE = 6;

    private final List<String> words;
    private final Body afterwards;
    private final Map<String, String> exceptions = new HashMap<>();
    private final Set<String> names = new HashSet<>();
    private final List<Callable<Report>> scenarios = new ArrayList<>();
    private final Map<Result, Integer> counts = new EnumMap<>(Result.class);
    private String group;

    /** Runs the scenarios whose names contain one of the words, and `afterwards` after each. A line of the file is "NAME # reason". */
    Suite(Path exceptions, Body afterwards, String... words) throws IOException {
        this.words = List.of(words);
        this.afterwards = afterwards;
        for (String line : Files.readAllLines(exceptions)) {
            if (!line.isBlank() && !line.startsWith("#")) {
                String[] parts = line.split(" # ", 2);
                Checks.holds(parts.length == 2, "a reason in the line of exceptions: " + line);
                this.exceptions.put(parts[0], parts[1]);
            }
        }
    }

    /** Names the group of the following scenarios. */
    void group(String group) {
        this.group = group;
    }

    /** Registers a scenario; {@link #end} runs it. */
    void check(String scenario, Body body) {
        String name = group + ": " + scenario;
        if (!names.add(name)) {
            throw new IllegalStateException("two scenarios are named " + name);
        }
        if (words.isEmpty() || words.stream().anyMatch(name::contains)) {
            scenarios.add(() -> run(name, body));
        }
    }

    /** Runs a scenario; returns the report on it. */
    private Report run(String name, Body body) {
        long began = System.nanoTime();
        Throwable error = attempt(body);
        Throwable later = attempt(afterwards);
        String time = String.format(" (%.2f s)", (System.nanoTime() - began) / 1e9);
        if (later != null) {
            return new Report(Result.FAILED, name + ": another connection does not work afterwards", later);
        }
        if (exceptions.containsKey(name)) {
            return error != null
                    ? new Report(Result.KNOWN, name + ": " + exceptions.get(name), null)
                    : new Report(Result.FAILED, name + ": it passes, and is listed in exceptions", null);
        }
        return new Report(error == null ? Result.PASSED : Result.FAILED, name + time, error);
    }

    private void print(Report report) {
        System.out.println(report.result().label + report.text());
        if (report.error() != null) {
            report.error().printStackTrace(System.out);
        }
        counts.merge(report.result(), 1, Integer::sum);
    }

    /** Runs the body in its own thread for a limited time; returns its error. */
    private static Throwable attempt(Body body) {
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
            outcome.get(4 * Peer.PATIENCE, TimeUnit.SECONDS);
            return null;
        } catch (ExecutionException error) {
            return error.getCause();
        } catch (Exception error) {
            return error;
        }
    }

    /** Runs the registered scenarios, several at a time, and ends the program. */
    void end(String suite) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(AT_ONCE);
        for (Future<Report> report : scenarios.stream().map(pool::submit).toList()) {
            print(report.get());
        }
        if (words.isEmpty()) {
            exceptions.keySet().stream().filter(name -> !names.contains(name))
                    .forEach(name -> print(new Report(Result.FAILED, name + ": listed in exceptions, and there is no such scenario", null)));
        }
        int passed = counts.getOrDefault(Result.PASSED, 0);
        int failed = counts.getOrDefault(Result.FAILED, 0);
        System.out.printf("%s: %d passed%s%n", suite, passed, failed > 0 ? ", " + failed + " failed" : "");
        System.exit(failed > 0 || passed == 0 ? 1 : 0);
    }
}
