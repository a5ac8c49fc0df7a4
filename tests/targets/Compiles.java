import java.io.ByteArrayOutputStream;
import java.io.InputStream;

/** Loads one class again and again, so that its method is compiled again and again. Until SIGTERM. */
public class Compiles {
    /** What is compiled. */
    public static class Work implements Runnable {
        static int sum;

        /** Small enough to be inlined at each call. */
        static int mix(int number, int[] table) {
            int at = (number >>> 5) & 63;
            table[at] += number * 31;
            return Integer.rotateLeft(table[at] ^ number, table[(at + 7) & 63] & 31);
        }

        /** Its compiler has much to do: what is inlined is two hundred times as large. */
        static int hot(int number) {
            int[] t = new int[64];
            int r = number;
            r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t);
            r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t);
            r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t);
            r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t);
            r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t);
            r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t);
            r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t);
            r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t);
            r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t);
            r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t);
            r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t);
            r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t);
            r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t);
            r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t);
            r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t);
            r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t);
            r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t);
            r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t);
            r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t);
            r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t);
            r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t);
            r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t);
            r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t);
            r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t);
            r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t);
            r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t);
            r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t);
            r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t);
            r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t);
            r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t);
            r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t);
            r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t);
            r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t);
            r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t);
            r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t);
            r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t);
            r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t);
            r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t);
            r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t);
            r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t); r = mix(r, t);
            return r;
        }

        @Override
        public void run() {
            for (int number = 0; number < 20_000; number++) {
                sum += hot(number);
            }
        }
    }

    /** A loader of its own copy of the class. */
    static class Loader extends ClassLoader {
        Class<?> define(byte[] bytes) {
            return defineClass("Compiles$Work", bytes, 0, bytes.length);
        }
    }

    public static void main(String[] arguments) throws Exception {
        Runtime.getRuntime().addShutdownHook(new Thread(() -> Runtime.getRuntime().halt(17)));
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        try (InputStream file = Compiles.class.getResourceAsStream("Compiles$Work.class")) {
            for (int next = file.read(); next >= 0; next = file.read()) {
                bytes.write(next);
            }
        }
        for (int round = 0; ; round++) {
            Class<?> work = new Loader().define(bytes.toByteArray());
            ((Runnable) work.getConstructor().newInstance()).run();
            if (round == 20) {
                System.out.println("ready");
                System.out.flush();
            }
        }
    }
}
