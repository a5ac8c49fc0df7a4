import java.io.ByteArrayOutputStream;
import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.lang.reflect.Method;
import java.math.BigInteger;
import java.security.MessageDigest;
import java.util.*;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import java.util.zip.CRC32;
import java.util.zip.GZIPOutputStream;

/**
 * Two threads with seventeen kinds of work: all kinds of code that a machine generates. An argument
 * is the number of milliseconds after which it exits.
 */
public class JavaMix {
    interface Shape {
        double area(int n);
    }

    static class Half implements Shape {
        public double area(int n) {
            return n * 1.5;
        }
    }

    static class Sine implements Shape {
        public double area(int n) {
            return Math.sin(n);
        }
    }

    static class Power implements Shape {
        public double area(int n) {
            return n % 7 == 0 ? Math.pow(n, 1.1) : n;
        }
    }

    static class Root implements Shape {
        public double area(int n) {
            return Math.sqrt(n);
        }
    }

    static final Object LOCK = new Object();
    static final MethodHandle HANDLE = handle();
    static volatile Object sink;
    static int shared;

    static MethodHandle handle() {
        try {
            MethodType type = MethodType.methodType(int.class, int.class);
            return MethodHandles.lookup().findStatic(JavaMix.class, "target", type);
        } catch (ReflectiveOperationException error) {
            throw new RuntimeException(error);
        }
    }

    static int recursion(int n) {
        return n <= 1 ? 1 : recursion(n - 1) + (n % 3 == 0 ? recursion(n - 2) / 2 : 0);
    }

    static double shapes() {
        Shape[] all = {new Half(), new Sine(), new Power(), new Root()};
        double total = 0;
        for (int i = 0; i < 20000; i++) {
            total += all[i & 3].area(i);
        }
        return total;
    }

    static String strings() {
        StringBuilder builder = new StringBuilder();
        for (int i = 0; i < 2000; i++) {
            builder.append(i).append(',');
        }
        String text = builder.toString();
        int found = 0;
        for (int i = 0; i < 200; i++) {
            found += text.indexOf("199" + i) + text.indexOf(",1999,");
            found += text.toUpperCase().hashCode();
        }
        return text + found;
    }

    static int regex() {
        Pattern pattern = Pattern.compile("(\\d+)-([a-z]+)(?:x|y)*");
        int length = 0;
        for (int i = 0; i < 500; i++) {
            Matcher matcher = pattern.matcher("abc " + i + "-foo" + "xyxy" + i);
            if (matcher.find()) {
                length += matcher.group(2).length();
            }
        }
        return length;
    }

    static long streams() {
        List<Long> thirds = IntStream.range(0, 20000).boxed().filter(i -> i % 3 == 0)
                .map(i -> i * 2L).collect(Collectors.toList());
        return thirds.stream().mapToLong(x -> x).sum();
    }

    static int exceptions() {
        int length = 0;
        for (int i = 0; i < 300; i++) {
            try {
                thrower(i % 12);
            } catch (IllegalStateException error) {
                length += error.getMessage().length();
            }
        }
        return length;
    }

    static void thrower(int depth) {
        if (depth == 0) {
            throw new IllegalStateException("depth");
        }
        try {
            thrower(depth - 1);
        } finally {
            sink = depth;
        }
    }

    static int digests() throws Exception {
        MessageDigest sha = MessageDigest.getInstance("SHA-256");
        MessageDigest md5 = MessageDigest.getInstance("MD5");
        byte[] bytes = new byte[20000];
        for (int i = 0; i < 5; i++) {
            sha.update(bytes);
            md5.update(bytes);
        }
        return sha.digest()[0] + md5.digest()[0];
    }

    static long checksums() {
        CRC32 sum = new CRC32();
        byte[] bytes = new byte[50000];
        for (int i = 0; i < 10; i++) {
            sum.update(bytes, 0, bytes.length);
        }
        return sum.getValue();
    }

    static int compression() throws Exception {
        ByteArrayOutputStream output = new ByteArrayOutputStream();
        GZIPOutputStream gzip = new GZIPOutputStream(output);
        byte[] bytes = new byte[30000];
        new Random(1).nextBytes(bytes);
        gzip.write(bytes);
        gzip.close();
        return output.size();
    }

    static int sorting() {
        List<String> list = new ArrayList<>();
        Random random = new Random(3);
        for (int i = 0; i < 3000; i++) {
            list.add(Integer.toString(random.nextInt()));
        }
        Collections.sort(list, (a, b) -> a.compareTo(b));
        list.sort(Comparator.comparing(String::length).thenComparing(Comparator.reverseOrder()));
        return list.size();
    }

    public static int target(int a) {
        return a * 3;
    }

    static int reflection() throws Exception {
        Method method = JavaMix.class.getMethod("target", int.class);
        int sum = 0;
        for (int i = 0; i < 3000; i++) {
            sum += (Integer) method.invoke(null, i);
        }
        return sum;
    }

    static int handles() throws Throwable {
        MethodHandle twice = MethodHandles.filterReturnValue(HANDLE, HANDLE);
        int sum = 0;
        for (int i = 0; i < 3000; i++) {
            sum += (int) twice.invokeExact(i) + (int) HANDLE.invoke((Object) i);
        }
        return sum;
    }

    static int monitors() {
        for (int i = 0; i < 3000; i++) {
            synchronized (LOCK) {
                shared++;
            }
        }
        return shared;
    }

    static int numbers() {
        BigInteger product = BigInteger.ONE;
        for (int i = 1; i < 400; i++) {
            product = product.multiply(BigInteger.valueOf(i)).add(BigInteger.TEN);
        }
        BigInteger modulus = BigInteger.ONE.shiftLeft(200).add(BigInteger.ONE);
        return product.modPow(BigInteger.valueOf(65537), modulus).bitLength();
    }

    static int maps() {
        TreeMap<Integer, String> tree = new TreeMap<>();
        for (int i = 0; i < 3000; i++) {
            tree.put((i * 7919) % 5000, "x");
        }
        int sum = 0;
        for (Map.Entry<Integer, String> entry : tree.entrySet()) {
            sum += entry.getKey();
        }
        HashMap<Long, Long> hashed = new HashMap<>();
        for (long i = 0; i < 5000; i++) {
            hashed.merge(i % 100, i, Long::sum);
        }
        return sum + hashed.size();
    }

    static int arrays() {
        int[] one = new int[5000];
        for (int k = 0; k < 20; k++) {
            Arrays.fill(one, k);
            int[] other = one.clone();
            System.arraycopy(one, 1, other, 0, 4000);
            sink = Arrays.copyOf(other, 3000);
            if (!Arrays.equals(one, other)) {
                shared++;
            }
        }
        return one[3];
    }

    static int casts() {
        Object[] all = {1, "x", 2L, 'c', new ArrayList<Integer>(), 3.0};
        int sum = 0;
        for (int i = 0; i < 20000; i++) {
            Object it = all[i % 6];
            sum += it instanceof Comparable ? 1 : 0;
            sum += it instanceof List ? 2 : 0;
            sum += it instanceof java.io.Serializable ? 3 : 0;
        }
        return sum;
    }

    static Object one(int kind) throws Throwable {
        switch (kind % 17) {
            case 0: return shapes();
            case 1: return recursion(22);
            case 2: return strings();
            case 3: return regex();
            case 4: return streams();
            case 5: return exceptions();
            case 6: return digests();
            case 7: return checksums();
            case 8: return compression();
            case 9: return sorting();
            case 10: return reflection();
            case 11: return handles();
            case 12: return monitors();
            case 13: return numbers();
            case 14: return maps();
            case 15: return arrays();
            default: return casts();
        }
    }

    static void work(int first) {
        for (int kind = first;; kind++) {
            try {
                sink = one(kind);
            } catch (Throwable error) {
                error.printStackTrace();
                System.exit(1);
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        ExecutorService executor = Executors.newFixedThreadPool(2);
        for (int thread = 0; thread < 2; thread++) {
            int first = thread;
            executor.submit(() -> work(first));
        }
        System.out.println("ready");
        Thread.sleep(arguments.length > 0 ? Long.parseLong(arguments[0]) : Long.MAX_VALUE);
        System.exit(0);
    }
}
