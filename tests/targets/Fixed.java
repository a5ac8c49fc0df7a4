import java.lang.management.ManagementFactory;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;

/**
 * Does a fixed amount of work when it is told to, and prints what time that took.
 *
 * <p>{@code Fixed ROUNDS DEPTH}: the work is done below so many calls. It begins after a line on
 * standard input, with code that is warm.
 */
public class Fixed {
    static final String TEXT = text();
    static volatile int sink;

    static String text() {
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < 2000; i++) {
            text.append("word").append(i * 7919 % 503).append(' ');
        }
        return text.toString();
    }

    static int countWords(String text) {
        Map<String, Integer> counts = new HashMap<>();
        for (String word : text.split(" ")) {
            counts.merge(word, 1, Integer::sum);
        }
        String[] words = counts.keySet().toArray(new String[0]);
        Arrays.sort(words, (one, other) -> counts.get(other) - counts.get(one));
        return words.length;
    }

    static int fibonacci(int n) {
        return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
    }

    static int work(int rounds) {
        int sum = 0;
        for (int i = 0; i < rounds; i++) {
            sum += fibonacci(15) + countWords(TEXT);
        }
        return sum;
    }

    static int below(int depth, int rounds) {
        return depth > 0 ? below(depth - 1, rounds) + 1 : work(rounds);
    }

    public static void main(String[] arguments) throws Exception {
        int rounds = Integer.parseInt(arguments[0]);
        int depth = Integer.parseInt(arguments[1]);
        for (int i = 0; i < 200; i++) {
            sink += below(depth, rounds / 200 + 1);
        }
        System.in.read();
        long start = System.nanoTime();
        long startCpu = cpuTime();
        sink += below(depth, rounds);
        System.out.println("elapsed_ms " + (System.nanoTime() - start) / 1e6);
        System.out.println("cpu_ms " + (cpuTime() - startCpu) / 1e6);
    }

    /** The time of this thread, handlers included. */
    static long cpuTime() {
        return ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime();
    }
}
