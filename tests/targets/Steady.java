// Threads that compute, compete for a lock, make garbage and get compiled meanwhile, until SIGTERM.
// Each checks its results.
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;

public class Steady {
    static volatile boolean stop;
    static final AtomicInteger wrong = new AtomicInteger();
    static final Object lock = new Object();
    static int shared;

    static int fibonacci(int n) {
        return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
    }

    static void work() {
        if (fibonacci(16) != 987) wrong.incrementAndGet();
        List<String> words = new ArrayList<>();
        for (int i = 0; i < 2000; i++) words.add(String.valueOf(i * 7919 % 10007));
        Collections.sort(words);
        if (!words.get(0).equals("0")) wrong.incrementAndGet();
        try {
            words.get(words.size());
            wrong.incrementAndGet();
        } catch (IndexOutOfBoundsException expected) {
            synchronized (lock) {
                shared++;
            }
        }
        // Compiled code detects this null through a fault.
        String none = shared < 0 ? "" : null;
        try {
            wrong.addAndGet(1 + none.length());
        } catch (NullPointerException expected) {
            synchronized (lock) {
                shared--;
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        Thread[] threads = new Thread[2];
        for (int i = 0; i < threads.length; i++) {
            threads[i] = new Thread(() -> {
                while (!stop) work();
            }, "steady-" + i);
            threads[i].start();
        }
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            stop = true;
            try {
                for (Thread thread : threads) thread.join();
            } catch (InterruptedException impossible) {
                wrong.incrementAndGet();
            }
            System.out.println("wrong " + wrong);
            System.out.flush();
            Runtime.getRuntime().halt(17);
        }));
        System.out.println("ready");
    }
}
