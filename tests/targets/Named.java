import java.io.IOException;
import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;

/**
 * Threads with names of many kinds, until SIGTERM: as many idle ones as the argument says, others that work, one that
 * is renamed, and a series of threads that start and end. Prints `thread-TID NAME` for each one that stays.
 */
public class Named {
    static final ConcurrentHashMap<String, String> NAMES = new ConcurrentHashMap<>();

    /** A thread whose class has fields of its own. */
    static class Extended extends Thread {
        final String name = "not the name";

        Extended(Runnable work, String given) {
            super(work, given);
        }
    }

    static String tid() {
        try {
            return Files.readSymbolicLink(Paths.get("/proc/thread-self")).getFileName().toString();
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }

    static void sleep(long ms) {
        try {
            Thread.sleep(ms);
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    static void work(long ms) {
        long until = System.nanoTime() + ms * 1_000_000L;
        while (System.nanoTime() < until) {
            Math.sqrt(until);
        }
    }

    static Thread started(Thread thread) {
        thread.setDaemon(true);
        thread.start();
        return thread;
    }

    public static void main(String[] arguments) throws Exception {
        int idle = Integer.parseInt(arguments[0]);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> Runtime.getRuntime().halt(17)));
        String[] names = {
            "größe 世界 \ud83d\ude00", "a name that is far longer than the kernel has room for", "short", "a  b",
        };
        CountDownLatch told = new CountDownLatch(idle + names.length + 2);
        for (int number = 0; number < idle; number++) {
            started(new Thread(null, () -> {
                NAMES.put(tid(), Thread.currentThread().getName());
                told.countDown();
                sleep(1_000_000_000L);
            }, "an idle thread with the number " + number, 128 << 10));
        }
        Runnable worker = () -> {
            NAMES.put(tid(), Thread.currentThread().getName());
            told.countDown();
            while (true) {
                work(1);
                sleep(40);
            }
        };
        for (String name : names) {
            started(new Thread(worker, name));
        }
        started(new Extended(worker, "one of another class"));
        Thread renamed = started(new Thread(worker, "before it was renamed"));
        told.await();
        PrintStream out = new PrintStream(System.out, false, "UTF-8");
        for (String tid : NAMES.keySet()) {
            if (NAMES.get(tid).startsWith("before")) {
                NAMES.put(tid, "after it was renamed");
            }
            out.println("thread-" + tid + " " + NAMES.get(tid));
        }
        out.println("ready");
        out.flush();
        for (int number = 0; ; number++) {
            started(new Thread(() -> {
                work(100);
                sleep(300);
            }, "a thread that ends with the number " + number)).join();
            if (number == 1) {
                renamed.setName("after it was renamed");
            }
        }
    }
}
