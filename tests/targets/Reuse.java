import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.util.function.IntUnaryOperator;

/**
 * Classes of throwaway loaders whose methods are compiled and unloaded all the time, so that the
 * machine uses blocks of code again. Each method has one caller: a_1 is called by a_0 alone. Frames
 * have different sizes.
 */
public class Reuse {
    public static class A implements IntUnaryOperator {
        public int applyAsInt(int n) {
            return a_0(n) + 1;
        }

        static int a_0(int n) {
            int v0 = n * 3;
            int sum = n;
            for (int i = 0; i < 2; i++) {
                sum += a_1(sum + i);
            }
            sum ^= v0;
            return sum;
        }

        static int a_1(int n) {
            int v0 = n * 4, v1 = n * 11, v2 = n * 18, v3 = n * 25;
            int v4 = n * 32, v5 = n * 39, v6 = n * 46, v7 = n * 53;
            int v8 = n * 60;
            int sum = n;
            for (int i = 0; i < 2; i++) {
                sum += a_2(sum + i);
            }
            sum ^= v0 + v1 + v2 + v3 + v4 + v5;
            sum ^= v6 + v7 + v8;
            return sum;
        }

        static int a_2(int n) {
            int v0 = n * 5, v1 = n * 12, v2 = n * 19;
            int sum = n;
            for (int i = 0; i < 2; i++) {
                sum += a_3(sum + i);
            }
            sum ^= v0 + v1 + v2;
            return sum;
        }

        static int a_3(int n) {
            int v0 = n * 6, v1 = n * 13, v2 = n * 20, v3 = n * 27;
            int v4 = n * 34, v5 = n * 41, v6 = n * 48, v7 = n * 55;
            int v8 = n * 62, v9 = n * 69, v10 = n * 76, v11 = n * 83;
            int v12 = n * 90, v13 = n * 97;
            int sum = n;
            for (int i = 0; i < 2; i++) {
                sum += a_4(sum + i);
            }
            sum ^= v0 + v1 + v2 + v3 + v4 + v5;
            sum ^= v6 + v7 + v8 + v9 + v10 + v11;
            sum ^= v12 + v13;
            return sum;
        }

        static int a_4(int n) {
            int v0 = n * 7, v1 = n * 14, v2 = n * 21, v3 = n * 28;
            int v4 = n * 35;
            int sum = n;
            for (int i = 0; i < 2; i++) {
                sum += a_5(sum + i);
            }
            sum ^= v0 + v1 + v2 + v3 + v4;
            return sum;
        }

        static int a_5(int n) {
            int v0 = n * 8, v1 = n * 15, v2 = n * 22, v3 = n * 29;
            int v4 = n * 36, v5 = n * 43, v6 = n * 50, v7 = n * 57;
            int v8 = n * 64, v9 = n * 71, v10 = n * 78;
            int sum = n;
            for (int i = 0; i < 2; i++) {
                sum += a_6(sum + i);
            }
            sum ^= v0 + v1 + v2 + v3 + v4 + v5;
            sum ^= v6 + v7 + v8 + v9 + v10;
            return sum;
        }

        static int a_6(int n) {
            int v0 = n * 9, v1 = n * 16;
            int sum = n;
            for (int i = 0; i < 60; i++) {
                sum = sum * 31 + (sum >> 3);
            }
            sum ^= v0 + v1;
            return sum;
        }
    }

    public static class B implements IntUnaryOperator {
        public int applyAsInt(int n) {
            return b_0(n) + 1;
        }

        static int b_0(int n) {
            int v0 = n * 3, v1 = n * 10, v2 = n * 17;
            int sum = n;
            for (int i = 0; i < 2; i++) {
                sum += b_1(sum + i);
            }
            sum ^= v0 + v1 + v2;
            return sum;
        }

        static int b_1(int n) {
            int v0 = n * 4, v1 = n * 11, v2 = n * 18, v3 = n * 25;
            int v4 = n * 32, v5 = n * 39, v6 = n * 46, v7 = n * 53;
            int v8 = n * 60, v9 = n * 67, v10 = n * 74, v11 = n * 81;
            int v12 = n * 88, v13 = n * 95;
            int sum = n;
            for (int i = 0; i < 2; i++) {
                sum += b_2(sum + i);
            }
            sum ^= v0 + v1 + v2 + v3 + v4 + v5;
            sum ^= v6 + v7 + v8 + v9 + v10 + v11;
            sum ^= v12 + v13;
            return sum;
        }

        static int b_2(int n) {
            int v0 = n * 5, v1 = n * 12, v2 = n * 19, v3 = n * 26;
            int v4 = n * 33;
            int sum = n;
            for (int i = 0; i < 2; i++) {
                sum += b_3(sum + i);
            }
            sum ^= v0 + v1 + v2 + v3 + v4;
            return sum;
        }

        static int b_3(int n) {
            int v0 = n * 6, v1 = n * 13, v2 = n * 20, v3 = n * 27;
            int v4 = n * 34, v5 = n * 41, v6 = n * 48, v7 = n * 55;
            int v8 = n * 62, v9 = n * 69, v10 = n * 76;
            int sum = n;
            for (int i = 0; i < 2; i++) {
                sum += b_4(sum + i);
            }
            sum ^= v0 + v1 + v2 + v3 + v4 + v5;
            sum ^= v6 + v7 + v8 + v9 + v10;
            return sum;
        }

        static int b_4(int n) {
            int v0 = n * 7, v1 = n * 14;
            int sum = n;
            for (int i = 0; i < 2; i++) {
                sum += b_5(sum + i);
            }
            sum ^= v0 + v1;
            return sum;
        }

        static int b_5(int n) {
            int v0 = n * 8;
            int sum = n;
            for (int i = 0; i < 2; i++) {
                sum += b_6(sum + i);
            }
            sum ^= v0;
            return sum;
        }

        static int b_6(int n) {
            int v0 = n * 9, v1 = n * 16, v2 = n * 23, v3 = n * 30;
            int v4 = n * 37, v5 = n * 44, v6 = n * 51, v7 = n * 58;
            int v8 = n * 65;
            int sum = n;
            for (int i = 0; i < 60; i++) {
                sum = sum * 31 + (sum >> 3);
            }
            sum ^= v0 + v1 + v2 + v3 + v4 + v5;
            sum ^= v6 + v7 + v8;
            return sum;
        }
    }

    public static class C implements IntUnaryOperator {
        public int applyAsInt(int n) {
            return c_0(n) + 1;
        }

        static int c_0(int n) {
            int v0 = n * 3, v1 = n * 10, v2 = n * 17, v3 = n * 24;
            int v4 = n * 31, v5 = n * 38, v6 = n * 45, v7 = n * 52;
            int v8 = n * 59, v9 = n * 66, v10 = n * 73;
            int sum = n;
            for (int i = 0; i < 2; i++) {
                sum += c_1(sum + i);
            }
            sum ^= v0 + v1 + v2 + v3 + v4 + v5;
            sum ^= v6 + v7 + v8 + v9 + v10;
            return sum;
        }

        static int c_1(int n) {
            int v0 = n * 4, v1 = n * 11;
            int sum = n;
            for (int i = 0; i < 2; i++) {
                sum += c_2(sum + i);
            }
            sum ^= v0 + v1;
            return sum;
        }

        static int c_2(int n) {
            int v0 = n * 5;
            int sum = n;
            for (int i = 0; i < 2; i++) {
                sum += c_3(sum + i);
            }
            sum ^= v0;
            return sum;
        }

        static int c_3(int n) {
            int v0 = n * 6, v1 = n * 13, v2 = n * 20, v3 = n * 27;
            int v4 = n * 34, v5 = n * 41, v6 = n * 48, v7 = n * 55;
            int v8 = n * 62;
            int sum = n;
            for (int i = 0; i < 2; i++) {
                sum += c_4(sum + i);
            }
            sum ^= v0 + v1 + v2 + v3 + v4 + v5;
            sum ^= v6 + v7 + v8;
            return sum;
        }

        static int c_4(int n) {
            int v0 = n * 7, v1 = n * 14, v2 = n * 21;
            int sum = n;
            for (int i = 0; i < 2; i++) {
                sum += c_5(sum + i);
            }
            sum ^= v0 + v1 + v2;
            return sum;
        }

        static int c_5(int n) {
            int v0 = n * 8, v1 = n * 15, v2 = n * 22, v3 = n * 29;
            int v4 = n * 36, v5 = n * 43, v6 = n * 50, v7 = n * 57;
            int v8 = n * 64, v9 = n * 71, v10 = n * 78, v11 = n * 85;
            int v12 = n * 92, v13 = n * 99;
            int sum = n;
            for (int i = 0; i < 2; i++) {
                sum += c_6(sum + i);
            }
            sum ^= v0 + v1 + v2 + v3 + v4 + v5;
            sum ^= v6 + v7 + v8 + v9 + v10 + v11;
            sum ^= v12 + v13;
            return sum;
        }

        static int c_6(int n) {
            int v0 = n * 9, v1 = n * 16, v2 = n * 23, v3 = n * 30;
            int v4 = n * 37;
            int sum = n;
            for (int i = 0; i < 60; i++) {
                sum = sum * 31 + (sum >> 3);
            }
            sum ^= v0 + v1 + v2 + v3 + v4;
            return sum;
        }
    }

    static volatile int sink;

    static class Throwaway extends ClassLoader {
        Class<?> define(String name) throws Exception {
            ByteArrayOutputStream bytes = new ByteArrayOutputStream();
            String file = name.replace('.', '/') + ".class";
            try (InputStream in = Reuse.class.getClassLoader().getResourceAsStream(file)) {
                byte[] some = new byte[4096];
                for (int got; (got = in.read(some)) > 0;) {
                    bytes.write(some, 0, got);
                }
            }
            return defineClass(name, bytes.toByteArray(), 0, bytes.size());
        }
    }

    static void work(IntUnaryOperator work, long ms) {
        long end = System.nanoTime() + ms * 1000000;
        while (System.nanoTime() < end) {
            for (int i = 0; i < 20; i++) {
                sink += work.applyAsInt(i);
            }
        }
    }

    static IntUnaryOperator load(int number) throws Exception {
        String name = new String[] {"Reuse$A", "Reuse$B", "Reuse$C"}[number % 3];
        Class<?> loaded = new Throwaway().define(name);
        return (IntUnaryOperator) loaded.getDeclaredConstructor().newInstance();
    }

    /** With an argument, so many classes are kept, and their code alone is freed and made again. */
    public static void main(String[] arguments) throws Exception {
        int kept = arguments.length == 0 ? 0 : Integer.parseInt(arguments[0]);
        IntUnaryOperator[] works = new IntUnaryOperator[kept];
        for (int number = 0; number < kept; number++) {
            works[number] = load(number);
        }
        for (int number = 0;; number++) {
            if (number == 6) {
                System.out.println("ready");
            }
            IntUnaryOperator work = kept == 0 ? load(number) : works[number * 7 % kept];
            work(work, 20 + number * 7 % 30);
            if (kept == 0 || number % 8 == 0) {
                work = null;
                System.gc();
            }
        }
    }
}
