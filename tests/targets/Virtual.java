import java.lang.reflect.Method;

/**
 * Virtual threads that yield at the end of chains of calls, each method of which has one caller.
 * They work on their way back, while the frames below are still frozen.
 */
public class Virtual {
    static volatile int sink;

    static int burn(int n) {
        int sum = n;
        for (int i = 0; i < 400; i++) {
            sum = sum * 31 + (i ^ sum >>> 3);
        }
        return sum;
    }

    static int turn(int n) {
        return chain_0(n) + 1;
    }

    static int chain_0(int n) {
        return chain_1(n) * 3 + burn(n);
    }

    static int chain_1(int n) {
        int sum = chain_2(n);
        for (int i = 0; i < 20; i++) {
            sum += burn(sum);
        }
        return sum;
    }

    static int chain_2(int n) {
        return (int) Math.sqrt(chain_3(n)) + burn(n);
    }

    static int chain_3(int n) {
        int sum = chain_4(n);
        for (int i = 0; i < 20; i++) {
            sum += burn(sum);
        }
        return sum;
    }

    static int chain_4(int n) {
        int sum = n;
        if (n % 3 == 0) {
            Thread.yield();
        } else if (n % 101 == 0) {
            try {
                Thread.sleep(1);
            } catch (InterruptedException error) {
                throw new IllegalStateException(error);
            }
        }
        for (int i = 0; i < 20; i++) {
            sum += burn(sum);
        }
        return sum;
    }

    public static void main(String[] arguments) throws Exception {
        Method start = Thread.class.getMethod("startVirtualThread", Runnable.class);
        Runnable work = () -> {
            for (int n = 0;; n++) {
                sink += turn(n);
            }
        };
        for (int i = 0; i < 8; i++) {
            start.invoke(null, work);
        }
        // By then most code is compiled.
        Thread.sleep(2500);
        System.out.println("ready");
        System.out.flush();
        Thread.sleep(1000000);
    }
}
