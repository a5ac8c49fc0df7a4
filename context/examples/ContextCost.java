import java.util.Arrays;
import traceprof.TraceprofContext;

/** Like context_cost.rs, for the Java class: prints lines "WHAT MEAN P50 P99 P999", in nanoseconds per call. */
public final class ContextCost {
    private static final int BATCH = 32, BATCHES = 200_000;

    private interface Call {
        void call(long turn);
    }

    private static void measure(String what, Call call) {
        long[] batches = new long[BATCHES];
        long turn = 1;
        // The first rounds warm up.
        for (int round = 0; round < 3; round++) {
            for (int batch = 0; batch < BATCHES; batch++) {
                long begin = System.nanoTime();
                for (int count = 0; count < BATCH; count++) {
                    call.call(++turn);
                }
                batches[batch] = System.nanoTime() - begin;
            }
        }
        Arrays.sort(batches);
        double sum = 0;
        for (long batch : batches) {
            sum += batch;
        }
        System.out.printf("%s %.1f %.1f %.1f %.1f%n", what, sum / BATCHES / BATCH, at(batches, 500),
                at(batches, 990), at(batches, 999));
    }

    private static double at(long[] batches, int share) {
        return (double) batches[BATCHES / 1000 * share] / BATCH;
    }

    public static void main(String[] arguments) {
        if (!TraceprofContext.isAvailable()) {
            throw new AssertionError("no library");
        }
        int tenant = TraceprofContext.numberTag("tenant");
        // One measurement in a process, so that the compiler knows what the loop calls.
        switch (arguments[0]) {
            case "set" -> measure("java_set", turn -> TraceprofContext.set(turn, 1));
            case "tag" -> measure("java_set_and_tag", turn -> {
                TraceprofContext.set(turn, 1);
                TraceprofContext.setTag(tenant, (int) turn);
            });
            default -> measure("java_span", turn -> TraceprofContext.span(turn, 1).close());
        }
    }
}
