import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.common.utils.internals.Exit;

/**
 * Runs the main classes of Kafka's command-line tools one after the other in one process.
 *
 * In, a line for each: class, standard input and arguments, each in hexadecimal, with spaces between.
 * Out, for each: a line "STATUS OUT ERR", the exit status and the lengths of what was printed, and then the bytes of
 * both. The status is 124 for a tool that did not end in time.
 *
 * Hooks that a tool leaves to be run when the process ends are run when the tool has ended. For that the package
 * java.lang has to be open to this class.
 */
public final class ToolBox {
    private static final long PATIENCE_MS = 60_000;
    private static final int NOT_ENDED = -1;
    private static final int OUT_OF_TIME = 124;

    /** What takes the place of the end of the process. */
    private static final class Ended extends Error {
    }

    /** Output that is kept until the tool has said that it ends. */
    private static final class Kept extends OutputStream {
        private final ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        private volatile boolean closed;

        @Override
        public synchronized void write(int b) {
            if (!closed) {
                bytes.write(b);
            }
        }

        @Override
        public synchronized void write(byte[] b, int from, int length) {
            if (!closed) {
                bytes.write(b, from, length);
            }
        }

        synchronized byte[] taken() {
            return bytes.toByteArray();
        }
    }

    public static void main(String[] unused) throws Exception {
        PrintStream own = System.out;
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        String line;
        while ((line = in.readLine()) != null) {
            List<byte[]> words = new ArrayList<>();
            for (String word : line.split(" ", -1)) {
                words.add(HexFormat.of().parseHex(word));
            }
            String[] arguments = new String[words.size() - 2];
            for (int at = 0; at < arguments.length; at++) {
                arguments[at] = new String(words.get(at + 2), StandardCharsets.UTF_8);
            }
            run(own, new String(words.get(0), StandardCharsets.UTF_8), words.get(1), arguments);
        }
        System.exit(0);
    }

    @SuppressWarnings("unchecked")
    private static Map<Thread, Thread> hooksOfTheProcess() throws ReflectiveOperationException {
        Field hooks = Class.forName("java.lang.ApplicationShutdownHooks").getDeclaredField("hooks");
        hooks.setAccessible(true);
        return (Map<Thread, Thread>) hooks.get(null);
    }

    private static void run(PrintStream own, String type, byte[] input, String[] arguments) throws Exception {
        Kept out = new Kept();
        Kept err = new Kept();
        AtomicInteger status = new AtomicInteger(NOT_ENDED);
        List<Runnable> hooks = new CopyOnWriteArrayList<>();
        System.setIn(new ByteArrayInputStream(input));
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
        Exit.Procedure end = (code, message) -> {
            // A process ends with the first; what catches this error and goes on is not heard.
            if (status.compareAndSet(NOT_ENDED, code)) {
                out.closed = true;
                err.closed = true;
            }
            throw new Ended();
        };
        Exit.setExitProcedure(end);
        Exit.setHaltProcedure(end);
        Exit.setShutdownHookAdder((name, hook) -> hooks.add(hook));
        Map<Thread, Thread> kept = hooksOfTheProcess();
        Set<Thread> before = new HashSet<>(kept.keySet());
        Thread thread = new Thread(() -> {
            try {
                Class.forName(type).getMethod("main", String[].class).invoke(null, (Object) arguments);
            } catch (InvocationTargetException error) {
                if (!(error.getCause() instanceof Ended)) {
                    error.getCause().printStackTrace();
                    status.compareAndSet(NOT_ENDED, 1);
                }
            } catch (ReflectiveOperationException error) {
                error.printStackTrace();
                status.compareAndSet(NOT_ENDED, 1);
            }
        });
        thread.setDaemon(true);
        thread.start();
        thread.join(PATIENCE_MS);
        if (thread.isAlive()) {
            status.compareAndSet(NOT_ENDED, OUT_OF_TIME);
            thread.interrupt();
        }
        out.closed = false;
        err.closed = false;
        for (Thread hook : List.copyOf(kept.keySet())) {
            // The tools name theirs so; those of libraries are for the end of the process.
            if (!before.contains(hook) && hook.getName().endsWith("shutdown-hook")) {
                kept.remove(hook);
                hooks.add(hook);
            }
        }
        for (Runnable hook : hooks) {
            Thread last = new Thread(() -> {
                try {
                    hook.run();
                } catch (Ended ended) {
                    // It has ended already.
                }
            });
            last.setDaemon(true);
            last.start();
            last.join(5_000);
        }
        System.out.flush();
        System.err.flush();
        status.compareAndSet(NOT_ENDED, 0);
        byte[] printed = out.taken();
        byte[] complained = err.taken();
        own.print(status.get() + " " + printed.length + " " + complained.length + "\n");
        own.write(printed);
        own.write(complained);
        own.flush();
    }
}
