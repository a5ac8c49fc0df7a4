package traceprof;

import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.lang.reflect.Field;
import java.nio.Buffer;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.ConcurrentHashMap;

/**
 * Publishes the span of each thread to the traceprof profiler.
 *
 * <pre>{@code
 * static final int ROUTE = TraceprofContext.textTag("route");
 *
 * try (var span = TraceprofContext.span(spanId, rootSpanId)) {
 *     TraceprofContext.setTag(ROUTE, "/checkout");
 *     ...
 * }
 * }</pre>
 *
 * Each sample that a profiler takes of the thread then carries the span, the root span and the tags. Without a
 * profiler, an update is a few stores. Java 8 and later.
 *
 * <p>The stores go into the thread's 64 bytes of a table that the C library keeps. Build {@code
 * traceprof_context_jni.c} as described there, and put {@code libtraceprof_context_jni.so} on {@code
 * java.library.path}. Without the library every call does nothing, and {@link #isAvailable} returns false. Java 24
 * and later need {@code --enable-native-access=ALL-UNNAMED}, or print a warning to standard error.
 *
 * <p>Virtual threads: a context belongs to a platform thread. A virtual thread moves from one platform thread to
 * another whenever it blocks, and no code can move its context along. So on a virtual thread every call does
 * nothing, and no sample carries another task's span.
 */
public final class TraceprofContext {
    /** Accesses to the bytes of a buffer at an offset: a load, two stores with release order, and an exchange. */
    private static final MethodHandle LOAD_LONG, STORE_LONG, STORE_INT, EXCHANGE_LONG;

    static {
        MethodHandle[] accesses = accesses();
        LOAD_LONG = accesses[0];
        STORE_LONG = accesses[1];
        STORE_INT = accesses[2];
        EXCHANGE_LONG = accesses[3];
    }

    /** Offsets in the 64 bytes. */
    private static final int SPAN = 0, ROOT_SPAN = 8, CHECKSUM = 16, TAGS = 24;
    private static final int TAG_COUNT = 10;
    private static final long KNUTH = 0x9E3779B97F4A7C15L;
    /** Maximum number of texts whose ids are cached here. The library knows all texts. */
    private static final int TEXTS_MAX = 4096;

    private static final boolean IS_LOADED = LOAD_LONG != null && loadLibrary();
    private static final MethodHandle IS_VIRTUAL = isVirtualMethod();
    private static final ConcurrentHashMap<String, Integer> TEXTS = new ConcurrentHashMap<>();
    private static final ThreadLocal<ByteBuffer> CONTEXT =
            ThreadLocal.withInitial(TraceprofContext::register);

    private TraceprofContext() {}

    /** Sets the span on which the calling thread works from now on. The tags stay as they are. */
    public static void set(long span, long rootSpan) {
        ByteBuffer context = CONTEXT.get();
        if (context == null) {
            return;
        }
        begin(context, span, rootSpan);
        finish(context, span, rootSpan);
    }

    /** Sets a tag whose values are numbers, by its index; -1 does nothing. 0 means no value. */
    public static void setTag(int tag, int value) {
        ByteBuffer context = CONTEXT.get();
        if (context == null || tag < 0 || tag >= TAG_COUNT) {
            return;
        }
        long span = load(context, SPAN);
        long rootSpan = load(context, ROOT_SPAN);
        store(context, CHECKSUM, 0L);
        store(context, TAGS + 4 * tag, value);
        finish(context, span, rootSpan);
    }

    /** Sets a tag whose values are texts, by its index; -1 does nothing. */
    public static void setTag(int tag, String text) {
        setTag(tag, text(text));
    }

    /** Clears the span and all tags of the calling thread. */
    public static void clear() {
        ByteBuffer context = CONTEXT.get();
        if (context == null) {
            return;
        }
        store(context, CHECKSUM, 0L);
        store(context, SPAN, 0L);
        store(context, ROOT_SPAN, 0L);
        for (int tag = 0; tag < TAG_COUNT; tag++) {
            store(context, TAGS + 4 * tag, 0);
        }
    }

    /** Sets a span on the calling thread. Closing it restores the previous context. */
    public static Span span(long span, long rootSpan) {
        Span before = new Span(CONTEXT.get());
        set(span, rootSpan);
        return before;
    }

    /**
     * Returns the index of the tag with this name, whose values are numbers. Returns -1 if the name is empty or longer
     * than 56 bytes, if its values are texts, or if ten other names are registered.
     */
    public static int numberTag(String name) {
        return IS_LOADED ? tag0(utf8(name), false) : -1;
    }

    /** Like {@link #numberTag}, for a tag whose values are texts. */
    public static int textTag(String name) {
        return IS_LOADED ? tag0(utf8(name), true) : -1;
    }

    /**
     * Returns a text's id as the value of a tag, and keeps the text for the life of the process. Returns 0 for null and
     * if there is no room.
     */
    public static int text(String text) {
        if (text == null) {
            return 0;
        }
        Integer known = TEXTS.get(text);
        if (known != null) {
            return known;
        }
        int id = IS_LOADED ? text0(utf8(text)) : 0;
        if (TEXTS.size() < TEXTS_MAX) {
            TEXTS.put(text, id);
        }
        return id;
    }

    /** Returns whether a profiler can read what the calling thread sets. */
    public static boolean isAvailable() {
        return IS_LOADED && !isVirtual() && isAvailable0();
    }

    /** Returns the checksum of a span id and a root span id; never 0. */
    public static long checksum(long span, long rootSpan) {
        long sum = (span * KNUTH) ^ (Long.rotateLeft(rootSpan, 32) * KNUTH);
        return sum == 0 ? -1L : sum;
    }

    /** The context of a thread from before a span, which {@link #close} restores. */
    public static final class Span implements AutoCloseable {
        private final boolean isSet;
        private final long span, rootSpan;
        private final long[] tags = new long[TAG_COUNT / 2];

        private Span(ByteBuffer context) {
            isSet = context != null && load(context, CHECKSUM) != 0;
            if (!isSet) {
                span = rootSpan = 0;
                return;
            }
            span = load(context, SPAN);
            rootSpan = load(context, ROOT_SPAN);
            for (int pair = 0; pair < tags.length; pair++) {
                tags[pair] = load(context, TAGS + 8 * pair);
            }
        }

        /** Restores the previous context. Call it on the thread that began the span. */
        @Override
        public void close() {
            if (!isSet) {
                clear();
                return;
            }
            ByteBuffer context = CONTEXT.get();
            if (context == null) {
                return;
            }
            begin(context, span, rootSpan);
            for (int pair = 0; pair < tags.length; pair++) {
                store(context, TAGS + 8 * pair, tags[pair]);
            }
            finish(context, span, rootSpan);
        }
    }

    /** Marks the context as changing, and sets its ids. The caller then sets the tags, if any, and calls finish. */
    private static void begin(ByteBuffer context, long span, long rootSpan) {
        // Release, like the fields: a reader that sees a field sees the mark that was set before it.
        store(context, CHECKSUM, 0L);
        store(context, SPAN, span);
        store(context, ROOT_SPAN, rootSpan);
    }

    /** Marks the context as complete, by an exchange: it is visible before anything that the thread does next. */
    private static void finish(ByteBuffer context, long span, long rootSpan) {
        exchange(context, CHECKSUM, checksum(span, rootSpan));
    }

    /** Returns the thread's context, or null for a thread that publishes nothing. */
    private static ByteBuffer register() {
        ByteBuffer context = IS_LOADED && !isVirtual() ? here0() : null;
        return context != null ? context.order(ByteOrder.nativeOrder()) : null;
    }

    private static long load(ByteBuffer context, int offset) {
        try {
            return (long) LOAD_LONG.invokeExact(context, offset);
        } catch (Throwable impossible) {
            throw new AssertionError(impossible);
        }
    }

    private static void store(ByteBuffer context, int offset, long value) {
        try {
            STORE_LONG.invokeExact(context, offset, value);
        } catch (Throwable impossible) {
            throw new AssertionError(impossible);
        }
    }

    private static void store(ByteBuffer context, int offset, int value) {
        try {
            STORE_INT.invokeExact(context, offset, value);
        } catch (Throwable impossible) {
            throw new AssertionError(impossible);
        }
    }

    private static void exchange(ByteBuffer context, int offset, long value) {
        try {
            long before = (long) EXCHANGE_LONG.invokeExact(context, offset, value);
        } catch (Throwable impossible) {
            throw new AssertionError(impossible);
        }
    }

    /** Returns the four accesses, by {@code VarHandle} (Java 9) or {@code Unsafe}; nulls if there is neither. */
    private static MethodHandle[] accesses() {
        try {
            return byVarHandles();
        } catch (ReflectiveOperationException | RuntimeException before9) {
            try {
                return byUnsafe();
            } catch (ReflectiveOperationException | RuntimeException none) {
                return new MethodHandle[4];
            }
        }
    }

    private static MethodHandle[] byVarHandles() throws ReflectiveOperationException {
        return new MethodHandle[] {
            byVarHandle(long[].class, "GET"),
            byVarHandle(long[].class, "SET_RELEASE"),
            byVarHandle(int[].class, "SET_RELEASE"),
            byVarHandle(long[].class, "GET_AND_SET"),
        };
    }

    private static MethodHandle byVarHandle(Class<?> view, String mode) throws ReflectiveOperationException {
        Class<?> modes = Class.forName("java.lang.invoke.VarHandle$AccessMode");
        Object handle = MethodHandles.class
                .getMethod("byteBufferViewVarHandle", Class.class, ByteOrder.class)
                .invoke(null, view, ByteOrder.nativeOrder());
        Object chosen = modes.getMethod("valueOf", String.class).invoke(null, mode);
        return (MethodHandle) Class.forName("java.lang.invoke.VarHandle")
                .getMethod("toMethodHandle", modes)
                .invoke(handle, chosen);
    }

    private static MethodHandle[] byUnsafe() throws ReflectiveOperationException {
        Class<?> type = Class.forName("sun.misc.Unsafe");
        Field only = type.getDeclaredField("theUnsafe");
        only.setAccessible(true);
        Object unsafe = only.get(null);
        Object field = type.getMethod("objectFieldOffset", Field.class)
                .invoke(unsafe, Buffer.class.getDeclaredField("address"));
        MethodHandle load = access(unsafe, "getLong", long.class);
        // The address of a buffer's bytes, plus an offset: (ByteBuffer, int)long.
        MethodHandle start = MethodHandles.insertArguments(load, 1, (long) field)
                .asType(MethodType.methodType(long.class, ByteBuffer.class));
        MethodHandle sum = MethodHandles.lookup()
                .findStatic(TraceprofContext.class, "sum", MethodType.methodType(long.class, long.class, int.class));
        MethodHandle address = MethodHandles.filterArguments(sum, 0, start);
        MethodHandle[] accesses = {
            load,
            access(unsafe, "putOrderedLong", void.class, long.class),
            access(unsafe, "putOrderedInt", void.class, int.class),
            access(unsafe, "getAndSetLong", long.class, long.class),
        };
        for (int index = 0; index < accesses.length; index++) {
            MethodHandle anywhere = MethodHandles.insertArguments(accesses[index], 0, (Object) null);
            accesses[index] = collected(anywhere, address);
        }
        return accesses;
    }

    /** Returns a method of {@code Unsafe} that takes an object, an offset in it, and perhaps a value. */
    private static MethodHandle access(Object unsafe, String name, Class<?> result, Class<?>... value)
            throws ReflectiveOperationException {
        MethodType type = MethodType.methodType(result, Object.class, long.class).appendParameterTypes(value);
        return MethodHandles.publicLookup().findVirtual(unsafe.getClass(), name, type).bindTo(unsafe);
    }

    /** Returns an access that takes a buffer and an offset instead of an address. */
    private static MethodHandle collected(MethodHandle access, MethodHandle address) {
        MethodHandle withBuffer = MethodHandles.dropArguments(access, 1, ByteBuffer.class, int.class);
        return MethodHandles.foldArguments(withBuffer, address);
    }

    private static long sum(long start, int offset) {
        return start + offset;
    }

    private static byte[] utf8(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static boolean isVirtual() {
        try {
            return IS_VIRTUAL != null && (boolean) IS_VIRTUAL.invokeExact(Thread.currentThread());
        } catch (Throwable impossible) {
            return false;
        }
    }

    /** Returns {@code Thread.isVirtual}, which exists since Java 21, or null. */
    private static MethodHandle isVirtualMethod() {
        try {
            return MethodHandles.publicLookup()
                    .findVirtual(Thread.class, "isVirtual", MethodType.methodType(boolean.class));
        } catch (ReflectiveOperationException before21) {
            return null;
        }
    }

    private static boolean loadLibrary() {
        try {
            System.loadLibrary("traceprof_context_jni");
            return true;
        } catch (UnsatisfiedLinkError missing) {
            return false;
        }
    }

    /** Returns the 64 bytes of the calling platform thread, which are valid as long as it lives. */
    private static native ByteBuffer here0();

    private static native boolean isAvailable0();

    private static native int tag0(byte[] name, boolean isText);

    private static native int text0(byte[] text);
}
