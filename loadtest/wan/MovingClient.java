import java.io.FileReader;
import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.serialization.*;

/**
 * Kafka's own client for Java, as loadtest.wan.moving_client has the others: publishes until its input ends, and reads
 * on for a while. Arguments: settings of both, topic, records per second, seconds to read on. Each line: what, when by
 * the monotonic clock in ns, value; for "region" the host of the broker that leads.
 */
public class MovingClient {
  static volatile boolean publishing = true, reading = true;

  static void say(String what, String value) {
    String line = what + " " + System.nanoTime() + " " + value;
    synchronized (System.out) { System.out.println(line); }
  }

  static Properties settings(String file, String... more) throws Exception {
    Properties found = new Properties();
    try (FileReader reader = new FileReader(file)) { found.load(reader); }
    for (int i = 0; i < more.length; i += 2) found.put(more[i], more[i + 1]);
    return found;
  }

  static void read(String file, String topic) throws Exception {
    Properties wanted = settings(file, "enable.auto.commit", "false", "fetch.max.wait.ms", "100");
    try (var reader = new KafkaConsumer<>(wanted, new StringDeserializer(), new StringDeserializer())) {
      TopicPartition place = new TopicPartition(topic, 0);
      reader.assign(List.of(place));
      reader.seek(place, 0);
      while (reading) for (var record : reader.poll(Duration.ofMillis(100))) say("read", record.value());
    }
  }

  static void look(KafkaProducer<String, String> producer, String topic) {
    String known = "";
    while (publishing) {
      try {
        Thread.sleep(250);
        String host = producer.partitionsFor(topic).get(0).leader().host();
        if (!host.equals(known)) say("region", host);
        known = host;
      } catch (KafkaException nobody) { // it is cut off: the next look finds it elsewhere
      } catch (InterruptedException never) { return; }
    }
  }

  public static void main(String[] words) throws Exception {
    String file = words[0], topic = words[1];
    double rate = Double.parseDouble(words[2]);
    Thread ends = new Thread(() -> { try { while (System.in.read() >= 0) {} } catch (Exception ended) {} publishing = false; });
    ends.setDaemon(true);
    ends.start();
    Thread reads = new Thread(() -> { try { read(file, topic); } catch (Exception e) { e.printStackTrace(); System.exit(1); } });
    reads.start();
    Properties wanted = settings(file, "acks", "all", "enable.idempotence", "true", "linger.ms", "5", "max.block.ms", "60000");
    try (var producer = new KafkaProducer<>(wanted, new StringSerializer(), new StringSerializer())) {
      Thread looks = new Thread(() -> look(producer, topic));
      looks.setDaemon(true);
      looks.start();
      long began = System.nanoTime();
      for (long number = 0; publishing; number++) {
        long ahead = began + (long) (number * 1e9 / rate) - System.nanoTime();
        if (ahead > 0) Thread.sleep(ahead / 1_000_000, (int) (ahead % 1_000_000));
        String value = "Java " + number;
        producer.send(new ProducerRecord<>(topic, 0, null, value), (done, error) -> say(error == null ? "acked" : "failed", value));
      }
    }
    Thread.sleep((long) (Double.parseDouble(words[3]) * 1000));
    reading = false;
    reads.join();
  }
}
