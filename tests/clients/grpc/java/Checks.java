import baton.v1.*;
import com.google.protobuf.UnknownFieldSet;
import com.google.rpc.BadRequest;
import io.grpc.*;
import io.grpc.protobuf.StatusProto;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.MetadataUtils;
import java.io.*;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.AtomicReference;
import java.util.stream.*;

/** Twenty checks of baton.v1 from Java: java Checks NAME ...; a line of JSON for each. See ../python/checks.py. */
public class Checks {
    private static final String SERVICE = "baton.v1.GenerationService";
    private static final String ADDRESS = System.getenv("BATON_GRPC"), MODEL = System.getenv("BATON_MODEL");
    private static final String QUESTION = "What is 12 + 30?", ANSWER = "12 + 30 = 42";
    private static final String SUM = "{\"type\":\"object\",\"properties\":{\"answer\":{\"type\":\"integer\"}},"
        + "\"required\":[\"answer\"],\"additionalProperties\":false}";
    private static final String WEATHER = "{\"type\":\"object\",\"properties\":{\"city\":{\"enum\":[\"Paris\",\"Oslo\"]}},"
        + "\"required\":[\"city\"],\"additionalProperties\":false}";
    private static final ManagedChannel CHANNEL = Grpc.newChannelBuilder(ADDRESS, InsecureChannelCredentials.create()).build();
    private static final GenerationServiceGrpc.GenerationServiceBlockingStub STUB = GenerationServiceGrpc.newBlockingStub(CHANNEL);
    private static final Map<String, Callable<Void>> CHECKS = new HashMap<>();

    /** A check may throw anything. */
    private interface Check {
        void run() throws Exception;
    }

    private static void check(String name, Check body) {
        CHECKS.put(name, () -> {
            body.run();
            return null;
        });
    }

    static {
        check("models", () -> {
            Model model = STUB.listModels(ListModelsRequest.getDefaultInstance()).getModels(0);
            expect(model.getName(), MODEL);
            expect(model.getMaxContextTokenCount() > 0, true);
        });
        check("conversation", () -> expect(text(generate(ask(64))), ANSWER));
        check("text", () -> {
            var request = ask(8).setText("What is");
            request.getSamplingBuilder().setIgnoreEos(true);
            expect(end(generate(request)).getUsage().getCompletionTokenCount(), 8);
        });
        check("tokens", () -> {
            var ids = STUB.tokenize(TokenizeRequest.newBuilder().setText("What is").build()).getTokenIdsList();
            var given = ask(8).setTokens(TokenSequence.newBuilder().addAllTokenIds(ids));
            expect(text(generate(given)), text(generate(ask(8).setText("What is"))));
        });
        check("stream", () -> expect(generate(endless(48)).size() > 8, true));
        check("usage", () -> {
            var parts = generate(ask(64));
            expect(end(parts).getUsage().getCompletionTokenCount(), tokens(parts));
            expect(end(parts).getUsage().getPromptTokenCount() > 0, true);
            expect(end(parts).getReason(), FinishReason.FINISH_REASON_STOP);
            expect(end(parts).getPlacement().getDecodeNodeId().isEmpty(), false);
        });
        check("logprobs", () -> {
            var request = ask(64);
            request.getSamplingBuilder().setTopLogprobCount(2);
            var parts = generate(request);
            var entries = parts.stream().flatMap(part -> part.getLogprobsList().stream()).collect(Collectors.toList());
            expect(entries.size(), end(parts).getUsage().getCompletionTokenCount());
            expect(entries.stream().allMatch(entry -> entry.getAlternativesCount() == 2), true);
            expect(entries.stream().limit(entries.size() - 1).map(TokenLogprob::getText).collect(Collectors.joining()), ANSWER);
        });
        check("stop", () -> {
            var parts = generate(ask(64).addStop("="));
            expect(text(parts) + end(parts).getStop(), "12 + 30 =");
            expect(end(parts).getUsage().getCompletionTokenCount(), tokens(parts));
        });
        check("structured", () -> {
            var request = ask(300);
            request.getSamplingBuilder().setStructuredOutput(StructuredOutput.newBuilder().setJsonSchema(SUM));
            expect(text(generate(request)).matches("\\{\"answer\":-?\\d+\\}"), true);
        });
        check("tools", () -> {
            ToolCall called = call();
            expect(called.getName(), "get_weather");
            expect(called.getArguments().matches("\\{\"city\": ?\"(Paris|Oslo)\".*\\}"), true);
        });
        check("loop", () -> {
            ToolCall called = call();
            var conversation = Conversation.newBuilder().addMessages(turn("user", QUESTION))
                .addMessages(turn("assistant", "").addToolCalls(called))
                .addMessages(turn("tool", "sunny").setToolCallId(called.getId()));
            var parts = generate(ask(64).setConversation(conversation));
            expect(end(parts).getUsage().getCompletionTokenCount() > 0, true);
            expect(parts.stream().mapToInt(GenerateResponse::getToolCallsCount).sum(), 0);
        });
        check("errors", () -> {
            var request = ask(64);
            request.getSamplingBuilder().setTemperature(-1);
            expect(failure(() -> generate(request)), "INVALID_ARGUMENT INVALID_FIELD sampling.temperature");
            expect(failure(() -> generate(ask(64).setModel("gpt"))).startsWith("NOT_FOUND MODEL_NOT_FOUND"), true);
        });
        check("deadline", () -> {
            long started = System.nanoTime();
            var soon = STUB.withDeadlineAfter(300, TimeUnit.MILLISECONDS);
            expect(failure(() -> read(soon, endless(3000))), "DEADLINE_EXCEEDED");
            expect(System.nanoTime() - started < 3_000_000_000L, true);
        });
        check("cancel", () -> {
            var context = Context.current().withCancellation();
            var parts = context.call(() -> STUB.generate(endless(3000).build()));
            for (int i = 0; i < 4; i++) {
                parts.next();
            }
            context.cancel(null);
            expect(failure(() -> parts.forEachRemaining(part -> {})), "CANCELLED");
        });
        check("streams", () -> {
            ExecutorService pool = Executors.newFixedThreadPool(50);
            for (var each : pool.invokeAll(Collections.nCopies(50, () -> text(generate(ask(16)))))) {
                expect(each.get(), ANSWER);
            }
            pool.shutdown();
        });
        check("health", () -> {
            String told = bare("grpc.health.v1.Health/Check", "\n" + (char) SERVICE.length() + SERVICE);
            expect(told, "\b\u0001"); // SERVING
        });
        check("reflection", () -> {
            String told = bare("grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", ":\0");
            expect(told.contains(SERVICE), true);
        });
        check("tls_key", () -> {
            var authority = TlsChannelCredentials.newBuilder().trustManager(new File(System.getenv("BATON_CA"))).build();
            ManagedChannel secure = Grpc.newChannelBuilder(System.getenv("BATON_GRPC_TLS"), authority).build();
            var other = GenerationServiceGrpc.newBlockingStub(secure);
            var known = other.withInterceptors(sending("authorization", "Bearer " + System.getenv("BATON_KEY")));
            expect(text(read(known, ask(64))), ANSWER);
            expect(failure(() -> read(other, ask(64))), "UNAUTHENTICATED INVALID_API_KEY");
            secure.shutdownNow();
        });
        check("keepalive", () -> { // ten seconds are the least that grpc-java allows
            ManagedChannel channel = Grpc.newChannelBuilder(ADDRESS, InsecureChannelCredentials.create())
                .keepAliveTime(10, TimeUnit.SECONDS).keepAliveWithoutCalls(true).build();
            var other = GenerationServiceGrpc.newBlockingStub(channel);
            expect(text(read(other, ask(64))), ANSWER);
            Thread.sleep(12_000);
            expect(text(read(other, ask(64))), ANSWER);
            channel.shutdownNow();
        });
        check("request_id", () -> {
            var headers = new AtomicReference<Metadata>();
            var named = STUB.withInterceptors(sending("x-request-id", "java-1"),
                MetadataUtils.newCaptureMetadataInterceptor(headers, new AtomicReference<>()));
            expect(end(read(named, ask(64))).getRequestId(), "java-1");
            expect(headers.get().get(name("x-request-id")), "java-1");
        });
    }

    private static GenerateRequest.Builder ask(int limit) {
        return GenerateRequest.newBuilder().setModel(MODEL)
            .setConversation(Conversation.newBuilder().addMessages(turn("user", QUESTION)))
            .setSampling(SamplingParameters.newBuilder().setTemperature(0).setMaxTokenCount(limit));
    }

    private static GenerateRequest.Builder endless(int limit) {
        var request = ask(limit);
        request.getSamplingBuilder().setIgnoreEos(true);
        return request;
    }

    private static ChatMessage.Builder turn(String role, String content) {
        return ChatMessage.newBuilder().setRole(role).setContent(content);
    }

    private static ToolCall call() {
        var tool = Tool.newBuilder().setName("get_weather").setDescription("Tells the weather.").setParameters(WEATHER);
        var conversation = Conversation.newBuilder().addMessages(turn("user", QUESTION)).addTools(tool)
            .setToolChoice(ToolChoice.newBuilder().setName("get_weather"));
        var parts = generate(ask(300).setConversation(conversation));
        var deltas = parts.stream().flatMap(part -> part.getToolCallsList().stream()).collect(Collectors.toList());
        expect(end(parts).getReason(), FinishReason.FINISH_REASON_TOOL_CALLS);
        return ToolCall.newBuilder().setId(deltas.get(0).getId()).setName(deltas.get(0).getName())
            .setArguments(deltas.stream().map(ToolCallDelta::getArguments).collect(Collectors.joining())).build();
    }

    private static List<GenerateResponse> generate(GenerateRequest.Builder request) {
        return read(STUB, request);
    }

    private static List<GenerateResponse> read(
        GenerationServiceGrpc.GenerationServiceBlockingStub stub, GenerateRequest.Builder request) {
        List<GenerateResponse> parts = new ArrayList<>();
        stub.generate(request.build()).forEachRemaining(parts::add);
        return parts;
    }

    private static String text(List<GenerateResponse> parts) {
        return parts.stream().map(GenerateResponse::getText).collect(Collectors.joining());
    }

    private static int tokens(List<GenerateResponse> parts) {
        return parts.stream().mapToInt(GenerateResponse::getTokenIdsCount).sum();
    }

    private static GenerationEnd end(List<GenerateResponse> parts) {
        return parts.get(parts.size() - 1).getFinished();
    }

    /** Calls a method by its name alone, bytes in, bytes out: health and reflection need no generated code. */
    private static String bare(String method, String request) {
        var bytes = new MethodDescriptor.Marshaller<String>() {
            public InputStream stream(String text) {
                return new ByteArrayInputStream(text.getBytes(StandardCharsets.ISO_8859_1));
            }

            public String parse(InputStream stream) {
                try {
                    return new String(stream.readAllBytes(), StandardCharsets.ISO_8859_1);
                } catch (IOException error) {
                    throw new UncheckedIOException(error);
                }
            }
        };
        var descriptor = MethodDescriptor.<String, String>newBuilder(bytes, bytes).setFullMethodName(method)
            .setType(MethodDescriptor.MethodType.SERVER_STREAMING).build();
        return ClientCalls.blockingServerStreamingCall(CHANNEL, descriptor, CallOptions.DEFAULT, request).next();
    }

    private static Metadata.Key<String> name(String header) {
        return Metadata.Key.of(header, Metadata.ASCII_STRING_MARSHALLER);
    }

    private static ClientInterceptor sending(String header, String value) {
        Metadata metadata = new Metadata();
        metadata.put(name(header), value);
        return MetadataUtils.newAttachHeadersInterceptor(metadata);
    }

    /** Returns the code of a call that fails, and the reason and the field of its details. */
    private static String failure(Runnable call) throws Exception {
        try {
            call.run();
        } catch (StatusRuntimeException error) {
            String words = error.getStatus().getCode().name();
            var details = StatusProto.fromThrowable(error).getDetailsList();
            for (var detail : details) {
                if (detail.getTypeUrl().endsWith("ErrorInfo")) { // Debian's com.google.rpc is older than it
                    var fields = UnknownFieldSet.parseFrom(detail.getValue());
                    words += " " + fields.getField(1).getLengthDelimitedList().get(0).toStringUtf8();
                } else if (detail.is(BadRequest.class)) {
                    words += " " + detail.unpack(BadRequest.class).getFieldViolations(0).getField();
                }
            }
            return words;
        }
        throw new IllegalStateException("it was not refused");
    }

    private static void expect(Object actual, Object expected) {
        if (!actual.equals(expected)) {
            throw new IllegalStateException("expected " + expected + ", got " + actual);
        }
    }

    public static void main(String[] names) {
        for (String name : names) {
            long started = System.nanoTime();
            String wrong = "";
            try {
                CHECKS.get(name).call();
            } catch (Throwable error) {
                wrong = error.toString().replaceAll("[\"\\\\\\s]+", " ");
            }
            double seconds = (System.nanoTime() - started) / 1e9;
            System.out.printf(Locale.ROOT, "{\"feature\": \"%s\", \"error\": \"%s\", \"seconds\": %.2f}%n", name, wrong, seconds);
        }
        CHANNEL.shutdownNow();
        System.exit(0);
    }
}
