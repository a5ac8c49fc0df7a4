import java.io.ByteArrayOutputStream;
import java.io.InputStream;

/**
 * Compiled code that the machine throws away all the time, while it runs: its classes get
 * subclasses, its receivers other types, its branches are taken after all, and it throws implicit
 * exceptions. Each method has one caller: d_1 is called by d_0 alone. Copies of the classes, of
 * throwaway loaders, begin anew.
 */
public class Deopts {
    /** What a copy does in one turn. */
    public interface Work {
        int d_0(int n, int phase);
    }

    public static class Base {
        int step(int n) {
            return n * 31 ^ n >> 5;
        }
    }

    public static class First extends Base {
        @Override
        int step(int n) {
            return n * 17 + 3;
        }
    }

    public static class Second extends Base {
        @Override
        int step(int n) {
            return (n ^ n << 3) - 1;
        }
    }

    public static class Third extends Base {
        @Override
        int step(int n) {
            return n + (n >>> 7) * 5;
        }
    }

    public static class Chain implements Work {
        static final int[] ROOM = new int[16];
        static final String[] TEXTS = {"a", "bb", null, "dddd"};
        static final Object[] ANY = {"text", 7, 8L, 'c'};
        Base base = new Base();

        /** Loads a class in each phase: code that relies on a single type is no longer right. */
        static Base of(int phase) {
            switch (phase) {
                case 0:
                    return new Base();
                case 1:
                    return new First();
                case 2:
                    return new Second();
                default:
                    return new Third();
            }
        }

        /** Compiled while its loop runs, and left for the interpreter within it. */
        public int d_0(int n, int phase) {
            base = of(phase);
            int sum = n;
            for (int i = 0; i < 3000; i++) {
                sum += d_1(sum + i, i > 1500 ? phase : 0);
            }
            return sum;
        }

        int d_1(int n, int phase) {
            int v0 = n * 3, v1 = n * 5, v2 = n * 7;
            int sum = d_2(n, phase);
            return sum ^ v0 + v1 - v2;
        }

        int d_2(int n, int phase) {
            try {
                return d_3(n, phase) + 1;
            } catch (RuntimeException error) {
                return n;
            }
        }

        int d_3(int n, int phase) {
            int v0 = n * 9, v1 = n * 11, v2 = n * 13, v3 = n * 15, v4 = n * 17;
            int sum = 0;
            for (int i = 0; i < 4; i++) {
                sum += d_4(n + i, phase);
            }
            return sum ^ v0 + v1 + v2 + v3 + v4;
        }

        int d_4(int n, int phase) {
            int sum = base.step(n);
            if (phase > 0 && (n & 63) == 0) {
                sum += d_5(n, phase);
            }
            return sum;
        }

        /** Traps of each kind: a null, a bound, a divisor, a cast. */
        int d_5(int n, int phase) {
            switch (phase) {
                case 1:
                    return TEXTS[n >> 6 & 3].length();
                case 2:
                    return ROOM[n >> 6 & 31];
                case 3:
                    return n / (n >> 6 & 3);
                default:
                    return ((Integer) ANY[n >> 6 & 3]).intValue();
            }
        }
    }

    static class Throwaway extends ClassLoader {
        Throwaway() {
            super(Deopts.class.getClassLoader());
        }

        @Override
        protected Class<?> loadClass(String name, boolean resolve) throws ClassNotFoundException {
            boolean isCopied = name.startsWith("Deopts$") && !name.equals("Deopts$Work");
            if (!isCopied) {
                return super.loadClass(name, resolve);
            }
            Class<?> known = findLoadedClass(name);
            return known != null ? known : define(name);
        }

        Class<?> define(String name) throws ClassNotFoundException {
            ByteArrayOutputStream bytes = new ByteArrayOutputStream();
            try (InputStream in = Deopts.class.getResourceAsStream("/" + name + ".class")) {
                byte[] some = new byte[4096];
                for (int got; (got = in.read(some)) > 0;) {
                    bytes.write(some, 0, got);
                }
            } catch (java.io.IOException error) {
                throw new ClassNotFoundException(name, error);
            }
            return defineClass(name, bytes.toByteArray(), 0, bytes.size());
        }
    }

    static volatile int sink;

    static void work() {
        try {
            for (;;) {
                Class<?> type = new Throwaway().loadClass("Deopts$Chain");
                Work work = (Work) type.getDeclaredConstructor().newInstance();
                for (int phase = 0; phase < 5; phase++) {
                    turns(work, phase);
                }
            }
        } catch (ReflectiveOperationException error) {
            error.printStackTrace();
            System.exit(1);
        }
    }

    static void turns(Work work, int phase) {
        long end = System.nanoTime() + 60_000_000;
        for (int n = 0; System.nanoTime() < end; n++) {
            sink += work.d_0(n, phase);
        }
    }

    public static void main(String[] arguments) throws Exception {
        for (int i = 0; i < 2; i++) {
            Thread thread = new Thread(Deopts::work, "worker " + i);
            thread.setDaemon(true);
            thread.start();
        }
        Thread.sleep(500);
        System.out.println("ready");
        System.out.flush();
        Thread.sleep(Long.MAX_VALUE);
    }
}
