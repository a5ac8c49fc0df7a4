import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.lang.instrument.ClassDefinition;
import java.lang.instrument.Instrumentation;
import java.util.function.IntUnaryOperator;

/**
 * The methods of Reuse.java, each of which has one caller, while an agent gives their classes other
 * code all the time. Three threads run them meanwhile: one for each class.
 */
public class Redefine {
    static final Class<?>[] TYPES = {Reuse.A.class, Reuse.B.class, Reuse.C.class};
    static Instrumentation instrumentation;
    static volatile int sink;

    /** What the machine calls first: this is the agent, too. */
    public static void premain(String arguments, Instrumentation given) {
        instrumentation = given;
    }

    static byte[] code(Class<?> type) throws Exception {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        try (InputStream in = type.getResourceAsStream("/" + type.getName() + ".class")) {
            byte[] some = new byte[4096];
            for (int got; (got = in.read(some)) > 0;) {
                bytes.write(some, 0, got);
            }
        }
        return bytes.toByteArray();
    }

    /** Returns code with other factors: each {@code bipush N; imul} has another N. */
    static byte[] changed(byte[] code, int round) {
        byte[] bytes = code.clone();
        for (int i = 0; i + 2 < bytes.length; i++) {
            if (bytes[i] == 0x10 && bytes[i + 2] == 0x68) {
                bytes[i + 1] ^= (byte) (round & 7);
            }
        }
        return bytes;
    }

    static void work(IntUnaryOperator work) {
        for (int n = 0;; n++) {
            sink += work.applyAsInt(n);
        }
    }

    public static void main(String[] arguments) throws Exception {
        IntUnaryOperator[] works = {new Reuse.A(), new Reuse.B(), new Reuse.C()};
        byte[][] codes = new byte[TYPES.length][];
        for (int i = 0; i < TYPES.length; i++) {
            codes[i] = code(TYPES[i]);
            IntUnaryOperator work = works[i];
            Thread thread = new Thread(() -> work(work), "worker " + i);
            thread.setDaemon(true);
            thread.start();
        }
        for (int round = 1;; round++) {
            // From no time at all to enough time for the compilers.
            Thread.sleep(round * 7 % 60);
            int i = round % TYPES.length;
            byte[] bytes = changed(codes[i], round);
            instrumentation.redefineClasses(new ClassDefinition(TYPES[i], bytes));
            if (round % 3 == 0) {
                // The machine frees the earlier methods, as far as they no longer run.
                System.gc();
            }
            if (round == 20) {
                System.out.println("ready");
                System.out.flush();
            }
        }
    }
}
