import java.io.IOException;
import java.net.ServerSocket;
import java.util.concurrent.locks.LockSupport;
import java.util.function.IntUnaryOperator;

/** Threads that do nothing in different ways, and compiled methods that call each other. */
public class Machine {
    /** The class of a monitor. */
    static class Lock {}

    /** A virtual thread that initialises a class stays on its carrier. */
    static class Pinned {
        static {
            sleep();
        }
    }

    static volatile long parkNanos = 1;
    static int sum;

    static int leaf(int number) {
        if (number % 500 == 0) {
            LockSupport.parkNanos(parkNanos);
        }
        return number & 7;
    }

    static int inlined(int number) {
        int result = number * 3;
        result += leaf(number);
        return result;
    }

    static int middle(int number, IntUnaryOperator step) {
        int before = number;
        int result = step.applyAsInt(number)
            + before;
        return result;
    }

    static void loop() {
        IntUnaryOperator step = it -> {
            int one = it;
            return inlined(one) + 1;
        };
        for (int number = 0; ; number++) {
            sum += middle(number, step);
        }
    }

    static void sleep() {
        try {
            Thread.sleep(1_000_000_000L);
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    /** Reads what never comes: the native code of the machine's library waits. */
    static void read() {
        try (ServerSocket nobody = new ServerSocket(0)) {
            nobody.accept();
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }

    static void hold(Lock lock, Runnable then) {
        synchronized (lock) {
            then.run();
        }
    }

    static void await(Lock lock) {
        synchronized (lock) {
            try {
                lock.wait();
            } catch (InterruptedException error) {
                throw new IllegalStateException(error);
            }
        }
    }

    static void start(String name, Runnable work) {
        Thread thread = new Thread(work, name);
        thread.setDaemon(true);
        thread.start();
    }

    /** Starts a virtual thread if this version has them. */
    static void startVirtual(String name, Runnable work) throws ReflectiveOperationException {
        Object builder;
        try {
            builder = Thread.class.getMethod("ofVirtual").invoke(null);
        } catch (NoSuchMethodException older) {
            return;
        }
        Class<?> type = Class.forName("java.lang.Thread$Builder$OfVirtual");
        builder = type.getMethod("name", String.class).invoke(builder, name);
        type.getMethod("start", Runnable.class).invoke(builder, work);
    }

    public static void main(String[] arguments) throws Exception {
        Runtime.getRuntime().addShutdownHook(new Thread(() -> Runtime.getRuntime().halt(17)));
        Lock held = new Lock();
        Lock free = new Lock();
        start("the worker of größe 世界 \ud83d\ude00 with a long name", Machine::loop);
        start("the holder of a lock", () -> hold(held, Machine::sleep));
        Thread.sleep(100);
        start("blocked", () -> hold(held, () -> {}));
        start("waiting", () -> await(free));
        start("parked", LockSupport::park);
        start("parked for a lock", () -> LockSupport.park(free));
        start("reading", Machine::read);
        start("sleeping", Machine::sleep);
        start("", Machine::sleep);
        startVirtual("virtual worker", () -> new Pinned());
        Thread.sleep(Integer.parseInt(arguments[0]));
        parkNanos = Long.MAX_VALUE;
        Thread.sleep(300);
        System.out.println("ready");
        System.out.flush();
        sleep();
    }
}
