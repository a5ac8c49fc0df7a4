import java.util.function.IntUnaryOperator;

/** Chains of calls in which each method has one caller: first_1 is called by first_0 alone. */
public class Single {
    interface Step {
        int second_1(int n);
    }

    static class One implements Step {
        public int second_1(int n) {
            return second_2(n) + 1;
        }

        int second_2(int n) {
            int sum = n;
            for (int i = 0; i < 40; i++) {
                sum = sum * 31 + second_3(i);
            }
            return sum;
        }

        static int second_3(int n) {
            return n * n ^ n >> 3;
        }
    }

    static final Step STEP = new One();
    static final IntUnaryOperator LAMBDA = n -> third_1(n);
    static volatile int sink;

    static int first_0(int n) {
        return first_1(n) + 1;
    }

    static int first_1(int n) {
        int sum = 0;
        for (int i = 0; i < 10; i++) {
            sum += first_2(n + i);
        }
        return sum;
    }

    static int first_2(int n) {
        return first_3(n) * 3 + (n & 1);
    }

    static int first_3(int n) {
        double sum = n;
        for (int i = 0; i < 20; i++) {
            sum += Math.sqrt(sum + i);
        }
        return (int) sum;
    }

    static int second_0(int n) {
        return STEP.second_1(n) * 2;
    }

    static int third_0(int n) {
        return LAMBDA.applyAsInt(n) + 7;
    }

    static int third_1(int n) {
        try {
            return third_2(n);
        } catch (IllegalStateException error) {
            return error.getMessage().length();
        }
    }

    static int third_2(int n) {
        StringBuilder text = third_3(n);
        if (text.length() > 60 && n % 8 == 0) {
            throw new IllegalStateException(text.toString());
        }
        return text.indexOf("9") + text.length();
    }

    static StringBuilder third_3(int n) {
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < 20; i++) {
            text.append(n + i).append(',');
        }
        return text;
    }

    static void turn(int n) {
        sink += first_0(n);
        sink += second_0(n);
        sink += third_0(n);
    }

    public static void main(String[] arguments) {
        System.out.println("ready");
        System.out.flush();
        for (int n = 0;; n++) {
            turn(n);
        }
    }
}
