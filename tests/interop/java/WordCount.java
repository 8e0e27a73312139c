import java.nio.file.Files;
import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.serialization.*;
import org.apache.kafka.streams.*;
import org.apache.kafka.streams.kstream.*;

/**
 * The topology of Apache Kafka's WordCountDemo, exactly once, until every word is counted. Then more lines come, and an
 * instance without local state counts on: what it has, it has from its changelog topic, which is compacted.
 */
public class WordCount {
    private static final long SECONDS_MAX = 120;

    public static void main(String[] arguments) throws Exception {
        String servers = arguments[0], run = arguments[1];
        String input = "plaintext-input-" + run, output = "wordcount-output-" + run;
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", servers))) {
            NewTopic counts = new NewTopic(output, Optional.of(1), Optional.empty());
            counts.configs(Map.of("cleanup.policy", "compact"));
            admin.createTopics(List.of(new NewTopic(input, Optional.of(2), Optional.empty()), counts)).all().get();
        }
        Map<String, Long> expected = new TreeMap<>();
        for (int round = 1; round <= 2; round++) {
            publish(servers, input, expected);
            Map<String, Long> counted = count(servers, input, output, run, expected);
            if (!counted.equals(expected)) {
                System.out.println("FAIL round " + round + ": " + counted + " instead of " + expected);
                System.exit(1);
            }
        }
        System.out.println("OK " + expected.size() + " words counted twice");
        System.exit(0);
    }

    private static void publish(String servers, String topic, Map<String, Long> expected) throws Exception {
        Map<String, Object> settings = Map.of("bootstrap.servers", servers, "acks", "all");
        try (Producer<String, String> producer =
                new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            for (int line = 0; line < 50; line++) {
                String text = "all streams lead to kafka line" + line % 5;
                producer.send(new ProducerRecord<>(topic, "k" + line, text)).get();
                for (String word : text.split(" ")) {
                    expected.merge(word, 1L, Long::sum);
                }
            }
        }
    }

    private static Map<String, Long> count(
            String servers, String input, String output, String run, Map<String, Long> expected) throws Exception {
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "wordcount-" + run);
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, servers);
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 200);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, Files.createTempDirectory("state").toString());
        settings.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        settings.put(ConsumerConfig.SESSION_TIMEOUT_MS_CONFIG, 8_000); // an instance that closes stays a member so long
        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream(input)
            .flatMapValues(text -> Arrays.asList(text.split(" ")))
            .groupBy((key, word) -> word)
            .count()
            .toStream()
            .to(output, Produced.with(Serdes.String(), Serdes.Long()));
        Map<String, Object> reading = Map.of("bootstrap.servers", servers, "group.id", "reader-" + UUID.randomUUID(),
            "auto.offset.reset", "earliest", "isolation.level", "read_committed");
        Map<String, Long> counted = new TreeMap<>();
        try (KafkaStreams streams = new KafkaStreams(builder.build(), settings);
             Consumer<String, Long> consumer =
                new KafkaConsumer<>(reading, new StringDeserializer(), new LongDeserializer())) {
            streams.start();
            consumer.subscribe(List.of(output));
            long until = System.nanoTime() + SECONDS_MAX * 1_000_000_000L;
            while (!counted.equals(expected) && System.nanoTime() < until) {
                consumer.poll(Duration.ofMillis(200)).forEach(record -> counted.put(record.key(), record.value()));
            }
        }
        return counted;
    }
}
