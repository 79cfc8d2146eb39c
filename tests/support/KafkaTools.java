import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's tools one after the other: a line asks for one, with what it reads, its class and its
 * arguments, each in base64; a line answers with its exit code, its stdout and its stderr.
 *
 * What a tool wants done at the end of its process is done when it ends.
 */
class KafkaTools {
    private static ByteArrayOutputStream out = new ByteArrayOutputStream();
    private static ByteArrayOutputStream err = new ByteArrayOutputStream();
    private static InputStream in = InputStream.nullInputStream();
    private static final List<Runnable> atEnd = new ArrayList<>();
    private static Integer code;

    /** No tool catches it. */
    private static class Ended extends Error {
    }

    private static void end(int status) {
        if (code == null) {
            code = status;
        }
        throw new Ended();
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader asked = new BufferedReader(new InputStreamReader(System.in));
        PrintStream answers = System.out;
        // Once: Scala and log4j keep the streams that they have found first.
        System.setOut(new PrintStream(new OutputStream() {
            @Override public void write(int each) { out.write(each); }
            @Override public void write(byte[] all, int from, int count) { out.write(all, from, count); }
        }, true));
        System.setErr(new PrintStream(new OutputStream() {
            @Override public void write(int each) { err.write(each); }
            @Override public void write(byte[] all, int from, int count) { err.write(all, from, count); }
        }, true));
        System.setIn(new InputStream() {
            @Override public int read() throws java.io.IOException { return in.read(); }
            @Override public int read(byte[] into, int at, int max) throws java.io.IOException {
                return in.read(into, at, max);
            }
        });
        Exit.setExitProcedure((status, message) -> end(status));
        Exit.setHaltProcedure((status, message) -> end(status));
        Exit.setShutdownHookAdder((name, work) -> atEnd.add(work));
        for (String line; (line = asked.readLine()) != null; ) {
            String[] words = line.split(" ", -1);
            for (int i = 0; i < words.length; i++) {
                words[i] = new String(Base64.getDecoder().decode(words[i]), "UTF-8");
            }
            in = new ByteArrayInputStream(words[0].getBytes("UTF-8"));
            out = new ByteArrayOutputStream();
            err = new ByteArrayOutputStream();
            run(words[1], java.util.Arrays.copyOfRange(words, 2, words.length));
            answers.println(code + " " + encoded(out) + " " + encoded(err));
            answers.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private static String encoded(ByteArrayOutputStream said) {
        return Base64.getEncoder().encodeToString(said.toByteArray());
    }

    private static void run(String name, String[] arguments) throws Exception {
        code = null;
        try {
            Class.forName(name).getMethod("main", String[].class).invoke(null, (Object) arguments);
            code = code == null ? 0 : code;
        } catch (InvocationTargetException thrown) {
            if (!(thrown.getCause() instanceof Ended)) {
                System.err.print("Exception in thread \"main\" ");
                thrown.getCause().printStackTrace();
                code = code == null ? 1 : code;
            }
        }
        List<Runnable> work = List.copyOf(atEnd);
        atEnd.clear();
        work.forEach(Runnable::run);
    }
}
