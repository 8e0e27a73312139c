import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.acl.*;
import org.apache.kafka.common.config.*;
import org.apache.kafka.common.resource.*;
import org.apache.kafka.common.serialization.*;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;

/** Kafka's own client for Java against a region: every call prints a line; the first word is OK or FAIL. */
public class KafkaClients {
  static void step(String name, Callable<Object> work) {
    try { System.out.println("OK   " + name + ": " + work.call()); }
    catch (Throwable t) { failed = true; Throwable c = t.getCause() != null ? t.getCause() : t; System.out.println("FAIL " + name + ": " + c); }
  }
  static boolean failed = false;
  static void expect(boolean holds, String text) { if (!holds) throw new IllegalStateException(text); }
  public static void main(String[] a) throws Exception {
    String boot = a[0], topic = "java-" + a[1];
    Properties p = new Properties(); p.put("bootstrap.servers", boot); p.put("default.api.timeout.ms","20000"); p.put("request.timeout.ms","10000"); p.put("delivery.timeout.ms","30000");
    try (Admin admin = Admin.create(p)) {
      step("describeCluster", () -> admin.describeCluster().nodes().get().size());
      step("features", () -> admin.describeFeatures().featureMetadata().get().finalizedFeatures());
      step("createTopics", () -> { admin.createTopics(List.of(new NewTopic(topic, 6, (short)3), new NewTopic(topic+"-out", 6, (short)3))).all().get(); return ""; });
      step("createPartitions", () -> { admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(12))).all().get(); return ""; });
      step("listTopics", () -> admin.listTopics().names().get().size());
      step("describeTopics", () -> admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size());
      ConfigResource r = new ConfigResource(ConfigResource.Type.TOPIC, topic);
      step("describeConfigs", () -> admin.describeConfigs(List.of(r)).all().get().get(r).entries().size());
      step("describeConfigs broker", () -> admin.describeConfigs(List.of(new ConfigResource(ConfigResource.Type.BROKER, "1001"))).all().get().size());
      step("incrementalAlterConfigs", () -> { admin.incrementalAlterConfigs(Map.of(r, List.of(new AlterConfigOp(new ConfigEntry("retention.ms","3600000"), AlterConfigOp.OpType.SET)))).all().get(); return ""; });
      step("describeLogDirs", () -> admin.describeLogDirs(List.of(1001)).allDescriptions().get().get(1001).size());
      step("listPartitionReassignments", () -> admin.listPartitionReassignments().reassignments().get().size());
      step("describeAcls", () -> admin.describeAcls(AclBindingFilter.ANY).values().get().size());
      step("describeClientQuotas", () -> admin.describeClientQuotas(org.apache.kafka.common.quota.ClientQuotaFilter.all()).entities().get().size());
      step("describeUserScramCredentials", () -> admin.describeUserScramCredentials().all().get().size());
    }
    for (String codec : List.of("none","gzip","snappy","lz4","zstd")) step("produce " + codec, () -> {
      Properties q = new Properties(); q.putAll(p); q.put("compression.type", codec); q.put("acks","all");
      try (KafkaProducer<String,String> producer = new KafkaProducer<>(q, new StringSerializer(), new StringSerializer())) {
        List<Future<RecordMetadata>> fs = new ArrayList<>();
        for (int i = 0; i < 1000; i++) fs.add(producer.send(new ProducerRecord<>(topic, "k" + i, codec + i)));
        for (var f : fs) f.get(20, TimeUnit.SECONDS);
        return fs.size(); } });
    for (String assignor : List.of("org.apache.kafka.clients.consumer.RangeAssignor","org.apache.kafka.clients.consumer.CooperativeStickyAssignor")) step("group " + assignor.replaceAll(".*\\.",""), () -> {
      Properties q = new Properties(); q.putAll(p); q.put("group.id","g-" + topic + assignor.length()); q.put("auto.offset.reset","earliest"); q.put("partition.assignment.strategy", assignor);
      int n = 0; long until = System.currentTimeMillis() + 30000; Set<String> keys = new HashSet<>();
      try (KafkaConsumer<String,String> c1 = new KafkaConsumer<>(q, new StringDeserializer(), new StringDeserializer()); KafkaConsumer<String,String> c2 = new KafkaConsumer<>(q, new StringDeserializer(), new StringDeserializer())) {
        c1.subscribe(List.of(topic)); c2.subscribe(List.of(topic));
        while (keys.size() < 5000 && System.currentTimeMillis() < until) { for (var c : List.of(c1, c2)) for (var rec : c.poll(Duration.ofMillis(100))) keys.add(rec.value()); }
        c1.commitSync(); c2.commitSync(); 
        expect(keys.size() == 5000 && c1.assignment().size() + c2.assignment().size() == 12, keys.size() + " of 5000");
        return keys.size() + " of 5000, c1 " + c1.assignment().size() + " c2 " + c2.assignment().size(); } });
    step("transactions", () -> {
      Properties q = new Properties(); q.putAll(p); q.put("transactional.id","tx-" + topic);
      try (KafkaProducer<String,String> producer = new KafkaProducer<>(q, new StringSerializer(), new StringSerializer())) {
        producer.initTransactions();
        for (int t = 0; t < 10; t++) { producer.beginTransaction(); for (int i = 0; i < 10; i++) producer.send(new ProducerRecord<>(topic + "-out", "k" + i, t + "/" + i));
          producer.sendOffsetsToTransaction(Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(t)), new ConsumerGroupMetadata("g-tx"));
          if (t % 2 == 0) producer.commitTransaction(); else producer.abortTransaction(); } }
      Properties q2 = new Properties(); q2.putAll(p); q2.put("group.id","r-" + topic); q2.put("auto.offset.reset","earliest"); q2.put("isolation.level","read_committed");
      int n = 0; long until = System.currentTimeMillis() + 8000;
      try (KafkaConsumer<String,String> c = new KafkaConsumer<>(q2, new StringDeserializer(), new StringDeserializer())) { c.subscribe(List.of(topic + "-out")); while (System.currentTimeMillis() < until && n < 50) n += c.poll(Duration.ofMillis(200)).count(); n += c.poll(Duration.ofMillis(1000)).count(); }
      expect(n == 50, n + " of 50 committed");
      return n + " of 50 committed"; });
    try (Admin admin = Admin.create(p)) {
      step("listConsumerGroups", () -> admin.listConsumerGroups().all().get().size());
      step("describeConsumerGroups", () -> admin.describeConsumerGroups(List.of("r-" + topic)).all().get().get("r-" + topic).state());
      step("listConsumerGroupOffsets", () -> admin.listConsumerGroupOffsets("g-tx").partitionsToOffsetAndMetadata().get());
      step("listOffsets", () -> admin.listOffsets(Map.of(new TopicPartition(topic,0), OffsetSpec.latest())).all().get().size());
      step("listOffsets maxTimestamp", () -> admin.listOffsets(Map.of(new TopicPartition(topic,0), OffsetSpec.maxTimestamp())).all().get().size());
      step("describeProducers", () -> admin.describeProducers(List.of(new TopicPartition(topic,0))).all().get().size());
      step("listTransactions", () -> admin.listTransactions().all().get().size());
      step("describeTransactions", () -> admin.describeTransactions(List.of("tx-" + topic)).all().get().values().iterator().next().state());
      step("alterConsumerGroupOffsets", () -> { admin.alterConsumerGroupOffsets("r-" + topic, Map.of(new TopicPartition(topic + "-out",0), new OffsetAndMetadata(0))).all().get(); return ""; });
      step("deleteConsumerGroupOffsets", () -> { admin.deleteConsumerGroupOffsets("g-tx", Set.of(new TopicPartition(topic,0))).all().get(); return ""; });
      step("deleteRecords", () -> admin.deleteRecords(Map.of(new TopicPartition(topic,0), RecordsToDelete.beforeOffset(5))).all().get());
      step("deleteConsumerGroups", () -> { admin.deleteConsumerGroups(List.of("r-" + topic)).all().get(); return ""; });
      step("deleteTopics", () -> { admin.deleteTopics(List.of(topic, topic + "-out")).all().get(); return ""; });
    }
    System.exit(failed ? 1 : 0);
  }
}
