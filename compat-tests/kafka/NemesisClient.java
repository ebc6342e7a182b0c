import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Kafka's own producer and consumer on one topic, told what to do and telling what they see, a line each.
 *
 * Arguments: bootstrap servers, topic, number of partitions.
 * In: "WRITE PARTITION VALUE" sends a record. The end of the input ends the program once all is answered.
 * Out: "a WRITE OFFSET" acknowledged; "e WRITE REASON" given up; "r PARTITION OFFSET:EPOCH:VALUE..." read, values
 * without their padding; "o PARTITION OFFSET" out of range; "x REASON" the consumer has ended.
 */
public final class NemesisClient {
    private static final PrintStream OUT = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    private static volatile boolean stopping;

    private static synchronized void say(String line) {
        OUT.println(line);
        OUT.flush();
    }

    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0];
        String topic = arguments[1];
        int partitions = Integer.parseInt(arguments[2]);
        Thread reading = new Thread(() -> read(bootstrap, topic, partitions));
        reading.start();
        write(bootstrap, topic);
        stopping = true;
        reading.join();
    }

    private static Properties shared(String bootstrap) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("reconnect.backoff.ms", "20");
        properties.put("reconnect.backoff.max.ms", "200");
        properties.put("metadata.max.age.ms", "2000");
        properties.put("request.timeout.ms", "2000");
        return properties;
    }

    private static void write(String bootstrap, String topic) throws Exception {
        Properties properties = shared(bootstrap);
        properties.put("linger.ms", "2");
        properties.put("delivery.timeout.ms", "120000");
        properties.put("max.block.ms", "120000");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(properties, new StringSerializer(), new StringSerializer())) {
            String line;
            while ((line = in.readLine()) != null) {
                String[] parts = line.split(" ", 3);
                String write = parts[0];
                ProducerRecord<String, String> record =
                        new ProducerRecord<>(topic, Integer.parseInt(parts[1]), null, parts[2]);
                producer.send(record, (metadata, error) ->
                        say(error == null ? "a " + write + " " + metadata.offset() : "e " + write + " " + error));
            }
            producer.flush();
        }
    }

    private static void read(String bootstrap, String topic, int partitions) {
        Properties properties = shared(bootstrap);
        properties.put("auto.offset.reset", "none");
        properties.put("enable.auto.commit", "false");
        properties.put("fetch.max.wait.ms", "200");
        properties.put("default.api.timeout.ms", "5000");
        List<TopicPartition> all = new ArrayList<>();
        for (int partition = 0; partition < partitions; partition++) {
            all.add(new TopicPartition(topic, partition));
        }
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(properties, new StringDeserializer(), new StringDeserializer())) {
            consumer.assign(all);
            for (TopicPartition partition : all) {
                consumer.seek(partition, 0);
            }
            while (!stopping) {
                try {
                    say(consumer.poll(Duration.ofMillis(200)));
                } catch (OffsetOutOfRangeException error) {
                    for (Map.Entry<TopicPartition, Long> entry : error.offsetOutOfRangePartitions().entrySet()) {
                        say("o " + entry.getKey().partition() + " " + entry.getValue());
                    }
                    Thread.sleep(200);
                }
            }
        } catch (Exception error) {
            say("x " + error);
        }
    }

    private static void say(ConsumerRecords<String, String> records) {
        for (TopicPartition partition : records.partitions()) {
            StringBuilder line = new StringBuilder("r ").append(partition.partition());
            for (ConsumerRecord<String, String> record : records.records(partition)) {
                String value = record.value();
                line.append(' ').append(record.offset())
                        .append(':').append(record.leaderEpoch().orElse(-1))
                        .append(':').append(value, 0, value.lastIndexOf('/') + 1);
            }
            say(line.toString());
        }
    }
}
