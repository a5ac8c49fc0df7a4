import java.util.concurrent.atomic.AtomicInteger;

/**
 * Virtual threads with and without names, each kind in a method of its own, which yield all the time,
 * so that each carrier runs all of them. Prints `number-METHOD` for those without a name.
 */
public class Carried {
    static final AtomicInteger STARTED = new AtomicInteger();
    static volatile int sink;

    static int burn(int n) {
        int sum = n;
        for (int i = 0; i < 20000; i++) {
            sum = sum * 31 + (i ^ sum >>> 3);
        }
        return sum;
    }

    static void turn(int n) {
        sink += burn(n);
        Thread.yield();
    }

    static void carried_latin() {
        for (int n = 0;; n++) {
            turn(n);
        }
    }

    static void carried_wide() {
        for (int n = 0;; n++) {
            turn(n);
        }
    }

    static void carried_long() {
        for (int n = 0;; n++) {
            turn(n);
        }
    }

    static void carried_nameless() {
        for (int n = 0;; n++) {
            turn(n);
        }
    }

    /** Lets young objects move, and old ones. */
    static void collect() {
        Object[] kept = new Object[1 << 12];
        for (int n = 0;; n++) {
            kept[n & kept.length - 1] = new byte[n % 300];
            if (n % (1 << 20) == 0) {
                System.gc();
            }
            if (n % 1000 == 0) {
                Thread.yield();
            }
        }
    }

    static void start(String name, Runnable work) {
        startVirtual(() -> {
            if (name != null) {
                Thread.currentThread().setName(name);
            } else {
                System.out.println("number-carried_nameless " + Thread.currentThread().getId());
            }
            STARTED.incrementAndGet();
            work.run();
        });
    }

    /** Java 21 has the method, and older compilers do not. */
    static void startVirtual(Runnable work) {
        try {
            Thread.class.getMethod("startVirtualThread", Runnable.class).invoke(null, work);
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException(e);
        }
    }

    public static void main(String[] arguments) throws Exception {
        Runtime.getRuntime().addShutdownHook(new Thread(() -> Runtime.getRuntime().halt(17)));
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < 50; i++) {
            text.append("name ");
        }
        // The queue of a carrier comes first: those of another thread may wait there without end.
        startVirtual(() -> {
            start("of größe", Carried::carried_latin);
            start("世界 😀", Carried::carried_wide);
            start(text.toString(), Carried::carried_long);
            start(null, Carried::carried_nameless);
        });
        Thread garbage = new Thread(Carried::collect, "garbage");
        garbage.setDaemon(true);
        garbage.start();
        while (STARTED.get() < 4) {
            Thread.sleep(10);
        }
        Thread.sleep(1000);
        System.out.println("ready");
        System.out.flush();
        Thread.sleep(1000000);
    }
}
