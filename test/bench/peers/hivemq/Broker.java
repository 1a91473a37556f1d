import com.hivemq.embedded.EmbeddedExtension;
import com.hivemq.embedded.EmbeddedHiveMQ;
import com.hivemq.extension.sdk.api.ExtensionMain;
import com.hivemq.extension.sdk.api.auth.SimpleAuthenticator;
import com.hivemq.extension.sdk.api.parameter.ExtensionStartInput;
import com.hivemq.extension.sdk.api.parameter.ExtensionStartOutput;
import com.hivemq.extension.sdk.api.parameter.ExtensionStopInput;
import com.hivemq.extension.sdk.api.parameter.ExtensionStopOutput;
import com.hivemq.extension.sdk.api.services.Services;
import java.nio.file.Path;

/** HiveMQ's community edition as a program: Broker CONFIGURATION_DIRECTORY DATA_DIRECTORY EXTENSIONS_DIRECTORY; everybody may log in. */
public final class Broker {
    private static final class LetIn implements ExtensionMain {
        @Override
        public void extensionStart(ExtensionStartInput input, ExtensionStartOutput output) {
            SimpleAuthenticator authenticator = (in, out) -> out.authenticateSuccessfully();
            Services.securityRegistry().setAuthenticatorProvider(in -> authenticator);
        }

        @Override
        public void extensionStop(ExtensionStopInput input, ExtensionStopOutput output) {}
    }

    public static void main(String[] arguments) {
        EmbeddedExtension letIn = EmbeddedExtension.builder()
                .withId("let-in").withName("let in").withVersion("0").withAuthor("posthorn")
                .withPriority(0).withStartPriority(1000).withExtensionMain(new LetIn()).build();
        EmbeddedHiveMQ.builder()
                .withConfigurationFolder(Path.of(arguments[0]))
                .withDataFolder(Path.of(arguments[1]))
                .withExtensionsFolder(Path.of(arguments[2]))
                .withEmbeddedExtension(letIn)
                .build().start().join();
    }
}
