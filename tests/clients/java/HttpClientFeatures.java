import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.SubmissionPublisher;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

/** Java's own HTTP client, as it is made by default: it offers HTTP/2 by an upgrade. See python/features.py. */
public class HttpClientFeatures {
    private static final String URL = System.getenv("BATON_URL");
    private static final String MODEL = System.getenv("BATON_MODEL");
    private static final String ANSWER = "12 + 30 = 42";
    private static final HttpClient CLIENT = HttpClient.newHttpClient();

    public static void main(String[] names) {
        Map<String, Callable<String>> features = new LinkedHashMap<>();
        features.put("create", HttpClientFeatures::create);
        features.put("stream", HttpClientFeatures::stream);
        features.put("batch", HttpClientFeatures::batch);
        features.put("models", HttpClientFeatures::models);
        features.put("chunked", HttpClientFeatures::chunked);
        features.put("errors", HttpClientFeatures::errors);
        features.put("http1", HttpClientFeatures::http1);
        for (String name : names.length > 0 ? List.of(names) : List.copyOf(features.keySet())) {
            long started = System.nanoTime();
            String told;
            try {
                told = "\"note\": " + quoted(features.get(name).call());
            } catch (Exception error) {
                told = "\"error\": " + quoted(error.toString());
            }
            double seconds = Math.round((System.nanoTime() - started) / 1e7) / 100.0;
            System.out.println("{\"feature\": " + quoted(name) + ", " + told + ", \"seconds\": " + seconds + "}");
        }
        System.exit(0);
    }

    private static String create() throws Exception {
        HttpResponse<String> answer = CLIENT.send(chat(", \"max_tokens\": 64"), HttpResponse.BodyHandlers.ofString());
        expect(answer.statusCode() == 200 && answer.body().contains(ANSWER), answer.statusCode() + " " + answer.body());
        return answer.version().toString();
    }

    private static String stream() throws Exception {
        HttpRequest request = chat(", \"max_tokens\": 64, \"stream\": true");
        List<String> lines = CLIENT.send(request, HttpResponse.BodyHandlers.ofLines()).body().collect(Collectors.toList());
        expect(lines.size() > 6 && lines.contains("data: [DONE]"), "lines " + lines);
        return "";
    }

    private static String batch() throws Exception {
        List<CompletableFuture<HttpResponse<String>>> answers = IntStream.range(0, 8)
            .mapToObj(i -> CLIENT.sendAsync(chat(", \"max_tokens\": 64"), HttpResponse.BodyHandlers.ofString()))
            .collect(Collectors.toList());
        for (CompletableFuture<HttpResponse<String>> answer : answers) {
            expect(answer.get().body().contains(ANSWER), answer.get().statusCode() + " " + answer.get().body());
        }
        return "";
    }

    private static String models() throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create(URL + "/v1/models")).build();
        HttpResponse<String> answer = CLIENT.send(request, HttpResponse.BodyHandlers.ofString());
        expect(answer.statusCode() == 200 && answer.body().contains(MODEL), answer.statusCode() + " " + answer.body());
        return "";
    }

    /** A body without a length, as Spring's client sends it, in pieces that come one after the other. */
    private static String chunked() throws Exception {
        byte[] body = body(", \"max_tokens\": 64").getBytes(StandardCharsets.UTF_8);
        SubmissionPublisher<ByteBuffer> pieces = new SubmissionPublisher<>();
        HttpRequest request = HttpRequest.newBuilder(URI.create(URL + "/v1/chat/completions"))
            .header("content-type", "application/json")
            .timeout(Duration.ofSeconds(60))
            .POST(HttpRequest.BodyPublishers.fromPublisher(pieces))
            .build();
        CompletableFuture<HttpResponse<String>> sent = CLIENT.sendAsync(request, HttpResponse.BodyHandlers.ofString());
        while (pieces.getNumberOfSubscribers() == 0) {
            Thread.sleep(1);
        }
        for (int start = 0; start < body.length; start += 7) {
            pieces.submit(ByteBuffer.wrap(body, start, Math.min(7, body.length - start)));
            Thread.sleep(1);
        }
        pieces.close();
        HttpResponse<String> answer = sent.get();
        expect(answer.body().contains(ANSWER), answer.statusCode() + " " + answer.body());
        return "";
    }

    private static String errors() throws Exception {
        HttpResponse<String> answer = CLIENT.send(chat(", \"temperature\": -1"), HttpResponse.BodyHandlers.ofString());
        expect(answer.statusCode() == 400 && answer.body().contains("temperature"), answer.statusCode() + " " + answer.body());
        return "";
    }

    private static String http1() throws Exception {
        HttpClient client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
        HttpResponse<String> answer = client.send(chat(", \"max_tokens\": 64"), HttpResponse.BodyHandlers.ofString());
        expect(answer.body().contains(ANSWER), answer.statusCode() + " " + answer.body());
        return "";
    }

    private static HttpRequest chat(String fields) {
        return HttpRequest.newBuilder(URI.create(URL + "/v1/chat/completions"))
            .header("content-type", "application/json")
            .timeout(Duration.ofSeconds(60))
            .POST(HttpRequest.BodyPublishers.ofString(body(fields)))
            .build();
    }

    private static String body(String fields) {
        String turn = "{\"role\": \"user\", \"content\": \"What is 12 + 30?\"}";
        String first = fields.contains("temperature") ? "" : ", \"temperature\": 0";
        return "{\"model\": " + quoted(MODEL) + ", \"messages\": [" + turn + "]" + first + fields + "}";
    }

    private static void expect(boolean isRight, String seen) {
        if (!isRight) {
            throw new IllegalStateException(seen);
        }
    }

    private static String quoted(String text) {
        String escaped = text.replace("\\", "\\\\").replace("\"", "\\\"").replaceAll("\\s+", " ");
        return "\"" + escaped.substring(0, Math.min(400, escaped.length())) + "\"";
    }
}
