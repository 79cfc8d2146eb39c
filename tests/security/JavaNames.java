import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.security.cert.CertificateFactory;
import java.security.cert.X509Certificate;
import java.util.Base64;
import javax.security.auth.x500.X500Principal;
import org.apache.kafka.common.security.ssl.SslPrincipalMapper;

/** Answers each line of its input: what Java and Kafka make of a name, a certificate, or rules and a name. */
public class JavaNames {
    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ", -1);
            String answer;
            try {
                answer = "=" + encoded(answer(words));
            } catch (Exception | StackOverflowError error) {
                answer = "!" + encoded(String.valueOf(error));
            }
            System.out.println(answer);
        }
    }

    private static String answer(String[] words) throws Exception {
        byte[] data = Base64.getDecoder().decode(words[1]);
        if (words[0].equals("name")) {
            return new X500Principal(data).getName();
        }
        if (words[0].equals("certificate")) {
            X509Certificate certificate = (X509Certificate) CertificateFactory.getInstance("X.509")
                .generateCertificate(new ByteArrayInputStream(data));
            return certificate.getSubjectX500Principal().getName();
        }
        String rules = new String(data, StandardCharsets.UTF_8);
        String name = new String(Base64.getDecoder().decode(words[2]), StandardCharsets.UTF_8);
        return SslPrincipalMapper.fromRules(rules).getName(name);
    }

    private static String encoded(String text) {
        return Base64.getEncoder().encodeToString(text.getBytes(StandardCharsets.UTF_8));
    }
}
