import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.StringReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;

/** Answers each line of its input, a properties file in Base64 of UTF-16: the pairs in it, or "!". */
public class JavaProperties {
    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String text = new String(Base64.getDecoder().decode(line), StandardCharsets.UTF_16BE);
            StringBuilder answer = new StringBuilder("=");
            try {
                Properties properties = new Properties();
                properties.load(new StringReader(text));
                for (Map.Entry<Object, Object> pair : new TreeMap<>(properties).entrySet()) {
                    answer.append(' ').append(encoded(pair.getKey())).append(':').append(encoded(pair.getValue()));
                }
            } catch (IllegalArgumentException error) {
                answer = new StringBuilder("!");
            }
            System.out.println(answer);
        }
    }

    private static String encoded(Object text) {
        byte[] bytes = new byte[2 * ((String) text).length()];
        // Halves of characters, too, which no charset encodes.
        ByteBuffer.wrap(bytes).asCharBuffer().put((String) text);
        return Base64.getEncoder().encodeToString(bytes);
    }
}
