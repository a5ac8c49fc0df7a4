import java.util.concurrent.CountDownLatch;
import traceprof.TraceprofContext;

/** Sets contexts with the class and waits for the test to read them: see languages.rs. */
public final class Published {
    private static void check(boolean condition, String claim) {
        if (!condition) {
            throw new AssertionError(claim);
        }
    }

    public static void main(String[] arguments) throws Exception {
        check(TraceprofContext.isAvailable(), "available");
        check(TraceprofContext.checksum(1, 2) == 0x60a381937f4a7c15L, "the checksum");
        check(TraceprofContext.checksum(0, 0) == -1L, "the checksum of nothing");
        int tenant = TraceprofContext.numberTag("tenant"), route = TraceprofContext.textTag("route");
        check(tenant >= 0 && route >= 0 && TraceprofContext.textTag("tenant") == -1, "tags");
        for (int turn = 0; turn < 50; turn++) {
            Thread thread = new Thread(() -> TraceprofContext.set(0xDEAD, 0xDEAD));
            thread.start();
            thread.join();
        }
        CountDownLatch isSet = new CountDownLatch(1), isOver = new CountDownLatch(1);
        Thread other = new Thread(() -> {
            TraceprofContext.set(0x1235, 0x99);
            isSet.countDown();
            try {
                isOver.await();
            } catch (InterruptedException impossible) {
                throw new AssertionError(impossible);
            }
        });
        try (var outer = TraceprofContext.span(0x1234, 0x99)) {
            TraceprofContext.setTag(tenant, 42);
            TraceprofContext.setTag(route, "/checkout");
            try (var inner = TraceprofContext.span(0x5fb397be34d26b51L, 0x99)) {
                TraceprofContext.setTag(tenant, 43);
            }
            other.start();
            isSet.await();
            onVirtualThread();
            System.out.println("ready");
            System.in.read();
        }
        isOver.countDown();
        other.join();
        System.out.println("well");
    }

    /** If Java has virtual threads, checks that they do not change the contexts of their carriers. */
    private static void onVirtualThread() throws Exception {
        var start = java.util.Arrays.stream(Thread.class.getMethods())
                .filter(method -> method.getName().equals("startVirtualThread")).findFirst();
        if (start.isEmpty()) {
            return;
        }
        Runnable work = () -> {
            TraceprofContext.set(0xBAD, 0xBAD);
            System.out.println("virtual " + TraceprofContext.isAvailable());
        };
        ((Thread) start.get().invoke(null, work)).join();
    }
}
