/**
 * Calls through native code, which calls Java again, twice. Exceptions leave native frames, are
 * caught in them and are thrown by them. Each method has one caller. The argument is the library.
 */
public class Natives {
    static volatile int sink;

    /** Calls n_1. */
    static native int through_0(int n);

    /** Calls n_3. */
    native int through_1(int n);

    static int n_0(int n) {
        try {
            return through_0(n) + 1;
        } catch (IllegalStateException error) {
            return error.getMessage().length();
        } catch (UnsupportedOperationException error) {
            return n;
        }
    }

    static int n_1(int n) {
        int v0 = n * 3, v1 = n * 5, v2 = n * 7;
        return n_2(n) ^ v0 + v1 + v2;
    }

    static int n_2(int n) {
        return new Natives().through_1(n) * 3;
    }

    int n_3(int n) {
        int sum = 0;
        for (int i = 0; i < 4; i++) {
            sum += n_4(n + i);
        }
        return sum;
    }

    static int n_4(int n) {
        double sum = n;
        for (int i = 0; i < 30; i++) {
            sum += Math.sqrt(sum + i);
        }
        if (n % 13 == 0) {
            throw new IllegalStateException("of " + n);
        }
        return (int) sum;
    }

    static void turn(int n) {
        sink += n_0(n);
    }

    public static void main(String[] arguments) {
        System.load(arguments[0]);
        System.out.println("ready");
        System.out.flush();
        for (int n = 0;; n++) {
            turn(n);
        }
    }
}
