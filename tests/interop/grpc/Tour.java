import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** What RocketMQ's Java client for gRPC offers, with its default settings: `Tour HOST:PORT`. */
public class Tour {
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    static ClientConfiguration configuration;

    static String text(ByteBuffer body) {
        return StandardCharsets.UTF_8.decode(body.duplicate()).toString();
    }

    static Message message(String topic, String body) {
        return PROVIDER.newMessageBuilder().setTopic(topic).setTag("tag").setKeys("key")
            .addProperty("name", "value").setBody(body.getBytes(StandardCharsets.UTF_8)).build();
    }

    static SimpleConsumer consumer(String topic, String group) throws Exception {
        SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder()
            .setClientConfiguration(configuration).setConsumerGroup(group)
            .setAwaitDuration(Duration.ofSeconds(2))
            .setSubscriptionExpressions(
                Collections.singletonMap(topic, FilterExpression.SUB_ALL)).build();
        // the group is there before its messages are
        consumer.receive(1, Duration.ofSeconds(10));
        return consumer;
    }

    static List<String> receive(SimpleConsumer consumer, int count) throws Exception {
        List<String> found = new ArrayList<>();
        for (int tries = 0; tries < 45 && found.size() < count; tries++) {
            for (MessageView message : consumer.receive(32, Duration.ofSeconds(30))) {
                found.add("\"" + text(message.getBody()) + "\"");
                consumer.ack(message);
            }
        }
        return found;
    }

    public static void main(String[] words) throws Exception {
        configuration = ClientConfiguration.newBuilder().setEndpoints(words[0]).build();
        SimpleConsumer consumer = consumer("Java", "java");
        Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration)
            .setTopics("Java", "JavaPush", "JavaTransaction")
            .setTransactionChecker(message -> TransactionResolution.ROLLBACK).build();
        for (int number = 0; number < 3; number++) {
            producer.send(message("Java", String.valueOf(number)));
        }
        System.out.println("{\"what\": \"sent\", \"count\": 3}");
        System.out.println("{\"what\": \"received\", \"bodies\": " + receive(consumer, 3) + "}");

        CompletableFuture<MessageView> pushed = new CompletableFuture<>();
        PushConsumer push = PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration)
            .setConsumerGroup("java-push")
            .setSubscriptionExpressions(
                Collections.singletonMap("JavaPush", FilterExpression.SUB_ALL))
            .setMessageListener(message -> {
                pushed.complete(message);
                return ConsumeResult.SUCCESS;
            }).build();
        producer.send(message("JavaPush", "pushed"));
        MessageView view = pushed.get(90, TimeUnit.SECONDS);
        System.out.println("{\"what\": \"pushed\", \"body\": \"" + text(view.getBody())
            + "\", \"tag\": \"" + view.getTag().get() + "\", \"property\": \""
            + view.getProperties().get("name") + "\"}");

        SimpleConsumer committed = consumer("JavaTransaction", "java-transaction");
        Transaction transaction = producer.beginTransaction();
        producer.send(message("JavaTransaction", "committed"), transaction);
        transaction.commit();
        System.out.println("{\"what\": \"committed\", \"body\": "
            + receive(committed, 1).get(0) + "}");
        System.exit(0);
    }
}
