import baton.v1.ChatMessage;
import baton.v1.Conversation;
import baton.v1.GenerateRequest;
import baton.v1.GenerationServiceGrpc;
import baton.v1.SamplingParameters;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.StatusRuntimeException;
import io.grpc.TlsChannelCredentials;
import io.grpc.stub.MetadataUtils;
import java.io.File;
import java.util.concurrent.TimeUnit;

/** Streams an answer from Baton: java Client 127.0.0.1:8001 'What is 12 + 30?' */
public class Client {
    public static void main(String[] arguments) throws Exception {
        String authority = System.getenv("BATON_CA"), key = System.getenv("BATON_KEY");
        ManagedChannel channel = Grpc.newChannelBuilder(arguments[0], authority == null
            ? InsecureChannelCredentials.create()
            : TlsChannelCredentials.newBuilder().trustManager(new File(authority)).build()).build();
        Metadata metadata = new Metadata();
        metadata.put(Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER), "Bearer " + key);
        var stub = GenerationServiceGrpc.newBlockingStub(channel)
            .withInterceptors(MetadataUtils.newAttachHeadersInterceptor(metadata))
            .withDeadlineAfter(60, TimeUnit.SECONDS);
        var turn = ChatMessage.newBuilder().setRole("user").setContent(arguments[1]);
        var request = GenerateRequest.newBuilder()
            .setConversation(Conversation.newBuilder().addMessages(turn))
            .setSampling(SamplingParameters.newBuilder().setTemperature(0).setMaxTokenCount(256));
        try {
            stub.generate(request.build()).forEachRemaining(part -> {
                System.out.print(part.getText());
                if (part.hasFinished()) {
                    System.err.printf("%n%d tokens%n", part.getFinished().getUsage().getCompletionTokenCount());
                }
            });
        } catch (StatusRuntimeException error) {
            System.err.println(error.getStatus());
            System.exit(1);
        } finally {
            channel.shutdownNow();
        }
    }
}
