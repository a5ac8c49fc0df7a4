// Threads that publish spans with TraceprofContext.java. Each writes its spans to the log, the only
// argument, before it sets them. Until SIGTERM.
import java.io.FileOutputStream;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import traceprof.TraceprofContext;

public final class Spans {
    private static final String[] ROUTES = {"/checkout", "/cart", "/search"};
    private static final int TENANT = TraceprofContext.numberTag("tenant");
    private static final int ROUTE = TraceprofContext.textTag("route");
    private static volatile boolean isOver;
    private static volatile int sink;

    /** Works for some 20 ms of CPU time, however long that takes beside other work. */
    private static void burn() {
        int x = sink;
        for (int round = 0; round < 8000; round++) {
            for (int turn = 0; turn < 2000; turn++) {
                x = x * 31 + turn;
            }
        }
        sink = x;
    }

    private static void request(FileOutputStream log, Random random, int number) throws Exception {
        String route = ROUTES[number % ROUTES.length];
        int tenant = 1 + number % 50;
        long span = random.nextLong() | 1;
        String name = Thread.currentThread().getName();
        String line = String.format("%x %x 0 %s %s %d%n", span, span, name, route, tenant);
        log.write(line.getBytes());
        try (TraceprofContext.Span request = TraceprofContext.span(span, span)) {
            TraceprofContext.setTag(TENANT, tenant);
            TraceprofContext.setTag(ROUTE, route);
            burn();
        }
    }

    public static void main(String[] arguments) throws Exception {
        FileOutputStream log = new FileOutputStream(arguments[0], true);
        CountDownLatch served = new CountDownLatch(4);
        Thread[] threads = new Thread[2];
        for (int i = 0; i < threads.length; i++) {
            Random random = new Random(i);
            threads[i] = new Thread(() -> {
                try {
                    for (int number = 0; !isOver; number++) {
                        request(log, random, number);
                        served.countDown();
                    }
                } catch (Exception impossible) {
                    throw new AssertionError(impossible);
                }
            }, "server-" + i);
            threads[i].start();
        }
        served.await();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            isOver = true;
            Runtime.getRuntime().halt(TraceprofContext.isAvailable() ? 17 : 1);
        }));
        System.out.println("ready");
    }
}
