import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.lang.reflect.Constructor;

/**
 * Loads class after class, runs each for a while, and unloads it before the next one takes its
 * memory. All are copies of Churned0000 with other numbers in their names. The method that calls a
 * class ends with the last digit of its number.
 */
public class Churn {
    static class Loader extends ClassLoader {
        Loader() {
            super(Churn.class.getClassLoader());
        }

        Class<?> define(String name, byte[] bytes) {
            return defineClass(name, bytes, 0, bytes.length);
        }
    }

    static byte[] template() throws IOException {
        ByteArrayOutputStream all = new ByteArrayOutputStream();
        try (InputStream in = Churn.class.getResourceAsStream("Churned0000.class")) {
            for (int next = in.read(); next >= 0; next = in.read()) {
                all.write(next);
            }
        }
        return all.toByteArray();
    }

    /** Replaces the number behind each d. */
    static byte[] numbered(byte[] template, String number) {
        byte[] bytes = template.clone();
        for (int i = 1; i + 4 <= bytes.length; i++) {
            boolean isNumber = bytes[i - 1] == 'd';
            for (int k = 0; k < 4; k++) {
                isNumber &= bytes[i + k] == '0';
            }
            for (int k = 0; isNumber && k < 4; k++) {
                bytes[i + k] = (byte) number.charAt(k);
            }
        }
        return bytes;
    }

    static void stub_0(Runnable work) {
        work.run();
    }

    static void stub_1(Runnable work) {
        work.run();
    }

    static void stub_2(Runnable work) {
        work.run();
    }

    static void stub_3(Runnable work) {
        work.run();
    }

    static void stub_4(Runnable work) {
        work.run();
    }

    static void stub_5(Runnable work) {
        work.run();
    }

    static void stub_6(Runnable work) {
        work.run();
    }

    static void stub_7(Runnable work) {
        work.run();
    }

    static void stub_8(Runnable work) {
        work.run();
    }

    static void stub_9(Runnable work) {
        work.run();
    }

    static void run(int digit, Runnable work) {
        switch (digit) {
            case 0:
                stub_0(work);
                break;
            case 1:
                stub_1(work);
                break;
            case 2:
                stub_2(work);
                break;
            case 3:
                stub_3(work);
                break;
            case 4:
                stub_4(work);
                break;
            case 5:
                stub_5(work);
                break;
            case 6:
                stub_6(work);
                break;
            case 7:
                stub_7(work);
                break;
            case 8:
                stub_8(work);
                break;
            case 9:
                stub_9(work);
                break;
            default:
                throw new IllegalArgumentException();
        }
    }

    static void turn(byte[] template, int i) throws Exception {
        String number = String.format("%04d", i);
        Class<?> type = new Loader().define("Churned" + number, numbered(template, number));
        Constructor<?> constructor = type.getDeclaredConstructor();
        constructor.setAccessible(true);
        run(i % 10, (Runnable) constructor.newInstance());
    }

    public static void main(String[] arguments) throws Exception {
        byte[] template = template();
        System.out.println("ready");
        System.out.flush();
        for (int i = 1; i < 10000; i++) {
            turn(template, i);
            System.gc();
        }
    }
}

class Churned0000 implements Runnable {
    static long sink;

    public void run() {
        long end = System.nanoTime() + 80_000_000;
        while (System.nanoTime() < end) {
            called0000(2000);
        }
    }

    static void called0000(int n) {
        int sum = 0;
        for (int i = 0; i < n; i++) {
            sum += i * 31 ^ sum >>> 3;
            if ((i & 63) == 0) {
                sum += shared0000(i);
            }
        }
        sink += sum;
    }

    static int shared0000(int n) {
        int sum = n;
        for (int i = 0; i < 8; i++) {
            sum = sum * 17 + i;
        }
        return sum;
    }
}
