import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.HttpURLConnection;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URL;
import java.util.concurrent.Executors;

/** A server of HTTP, and two threads that send it requests. Each method has one caller. */
public class Serves {
    static volatile int sink;

    static void s_0(HttpExchange exchange) throws IOException {
        byte[] answer = s_1(exchange.getRequestURI().getQuery()).getBytes("UTF-8");
        exchange.sendResponseHeaders(200, answer.length);
        try (OutputStream body = exchange.getResponseBody()) {
            body.write(answer);
        }
    }

    static String s_1(String query) {
        int number = Integer.parseInt(query);
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < 1000; i++) {
            text.append(s_2(number + i)).append(' ');
        }
        return text.toString();
    }

    static int s_2(int n) {
        int sum = n;
        for (int i = 0; i < 40; i++) {
            sum = sum * 31 + s_3(i);
        }
        return sum;
    }

    static int s_3(int n) {
        return n * n ^ n >> 3;
    }

    static void ask(int port) {
        try {
            for (int n = 0;; n++) {
                URL url = new URL("http://127.0.0.1:" + port + "/?" + n % 1000);
                HttpURLConnection connection = (HttpURLConnection) url.openConnection();
                try (InputStream answer = connection.getInputStream()) {
                    for (int next = answer.read(); next >= 0; next = answer.read()) {
                        sink += next;
                    }
                }
            }
        } catch (IOException error) {
            error.printStackTrace();
            System.exit(1);
        }
    }

    public static void main(String[] arguments) throws Exception {
        // Without it, each answer takes 40 ms.
        System.setProperty("sun.net.httpserver.nodelay", "true");
        InetAddress here = InetAddress.getByName("127.0.0.1");
        HttpServer server = HttpServer.create(new InetSocketAddress(here, 0), 0);
        server.createContext("/", Serves::s_0);
        server.setExecutor(Executors.newFixedThreadPool(3));
        server.start();
        for (int i = 0; i < 2; i++) {
            Thread thread = new Thread(() -> ask(server.getAddress().getPort()), "client " + i);
            thread.setDaemon(true);
            thread.start();
        }
        Thread.sleep(300);
        System.out.println("ready");
        System.out.flush();
    }
}
