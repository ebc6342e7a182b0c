import java.time.Duration;
import java.util.Map;
import java.util.Set;

import org.apache.kafka.streams.tests.SmokeTestDriver;

/**
 * Runs the driver of Kafka Streams' smoke test with a size and a time of our choosing:
 * arguments are bootstrap servers, number of keys, records of each key, and seconds.
 */
public class SmokeDriver {
    public static void main(String[] arguments) {
        String servers = arguments[0];
        int keys = Integer.parseInt(arguments[1]);
        int records = Integer.parseInt(arguments[2]);
        Duration time = Duration.ofSeconds(Long.parseLong(arguments[3]));
        Map<String, Set<Integer>> sent = SmokeTestDriver.generate(servers, keys, records, time);
        SmokeTestDriver.verify(servers, sent, records, true);
    }
}
