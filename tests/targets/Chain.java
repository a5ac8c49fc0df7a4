// One chain of calls in compiled code, until SIGTERM or for a given number of times.
public class Chain {
    static volatile long sink;

    static long leafChain(long n) {
        long sum = n;
        for (int i = 0; i < 60; i++) sum = sum * 31 + i;
        return sum;
    }

    static long parentChain(long n) {
        return leafChain(n) + 1;
    }

    static void rootChain() {
        for (int i = 0; i < 1000; i++) sink += parentChain(i);
    }

    public static void main(String[] arguments) {
        Runtime.getRuntime().addShutdownHook(new Thread(() -> Runtime.getRuntime().halt(17)));
        for (int i = 0; i < 2000; i++) rootChain();
        System.out.println("ready");
        System.out.flush();
        long rounds = arguments.length > 0 ? Long.parseLong(arguments[0]) : Long.MAX_VALUE;
        for (long round = 0; round < rounds; round++) rootChain();
    }
}
