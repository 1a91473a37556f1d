import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.util.Base64;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Collectors;

/** The HTTP API of the node: JMS has no operations to declare objects. */
final class Broker {
    private static final HttpClient HTTP = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
    private static final AtomicInteger NUMBERS = new AtomicInteger();

    private Broker() {}

    /** A name that this run has not used. */
    static String fresh(String prefix) {
        return prefix + "-" + NUMBERS.getAndIncrement();
    }

    /** Declares a queue of this type; returns its name. */
    static String queue(String kind, Map<String, Object> arguments) throws Exception {
        String name = fresh(kind);
        String more = arguments.entrySet().stream()
                .map(entry -> ",\"" + entry.getKey() + "\":" + json(entry.getValue()))
                .collect(Collectors.joining());
        call("PUT", "queues/%2F/" + name, "{\"durable\":true,\"arguments\":{\"x-queue-type\":\"" + kind + "\"" + more + "}}");
        return name;
    }

    static String queue(String kind) throws Exception {
        return queue(kind, Map.of());
    }

    private static String json(Object value) {
        return value instanceof String ? "\"" + value + "\"" : value.toString();
    }

    static void bind(String exchange, String queue, String key) throws Exception {
        call("POST", "bindings/%2F/e/" + exchange + "/q/" + queue, "{\"routing_key\":\"" + key + "\"}");
    }

    static void delete(String queue) throws Exception {
        call("DELETE", "queues/%2F/" + queue, "");
    }

    /** Messages that a queue has ready, by taking a look at them, which counts even where statistics are late. */
    static int ready(String queue) throws Exception {
        String body = call("POST", "queues/%2F/" + queue + "/get",
                "{\"count\":1000,\"ackmode\":\"ack_requeue_true\",\"encoding\":\"auto\"}");
        return body.split("\"payload_bytes\"", -1).length - 1;
    }

    private static String call(String method, String path, String body) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create("http://127.0.0.1:15672/api/" + path))
                .header("Authorization", "Basic " + Base64.getEncoder().encodeToString("guest:guest".getBytes()))
                .header("Content-Type", "application/json")
                .method(method, BodyPublishers.ofString(body))
                .build();
        HttpResponse<String> response = HTTP.send(request, HttpResponse.BodyHandlers.ofString());
        Checks.holds(response.statusCode() < 300, method + " " + path + ": " + response.statusCode() + " " + response.body());
        return response.body();
    }
}
