import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.function.Predicate;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** As Going.java of the other protocol: `Going HOST:PORT WHAT...`, the same words, the same lines. */
public class Going {
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    static final long PAUSE_MS = Long.getLong("going.pause", 10);
    static final List<Thread> PRODUCERS = new ArrayList<>();
    static ClientConfiguration configuration;
    static volatile boolean sending = true;

    interface Sending { void number(int n) throws Exception; }

    public static void main(String[] words) throws Exception {
        configuration = ClientConfiguration.newBuilder().setEndpoints(words[0]).enableSsl(false).build();
        for (String what : Arrays.asList(words).subList(1, words.length)) begin(what);
        line("READY");
        BufferedReader told = new BufferedReader(new InputStreamReader(System.in));
        for (String word = told.readLine(); word != null && !word.equals("end"); word = told.readLine()) {
            if (!word.equals("stop")) continue;
            sending = false;
            for (Thread each : PRODUCERS) each.join();
            line("STOPPED");
        }
        Runtime.getRuntime().halt(0);
    }

    static void begin(String what) throws Exception {
        switch (what) {
            case "plain":
                push("G-plain", "Plain", m -> true);
                sends("plain", "Plain", (n, message) -> message);
                break;
            case "popped":
                receive("G-popped", "Popped");
                sends("popped", "Popped", (n, message) -> message);
                break;
            case "ordered":
                push("G-ordered", "Ordered", m -> true);
                sends("ordered", "Ordered", (n, message) -> message.setMessageGroup("g" + n % 4));
                break;
            case "retried":
                push("G-retried", "Retried",
                    m -> number(m) % 10 == 3 ? m.getDeliveryAttempt() > 1 : number(m) % 10 != 6);
                sends("retried", "Retried", (n, message) -> message);
                break;
            case "timed":
                push("G-timed", "Timed", m -> true);
                sends("timed", "Timed", (n, message) ->
                    message.setDeliveryTimestamp(System.currentTimeMillis() + 2000 + n % 20 * 1000));
                break;
            case "decided":
                decided();
                break;
            default:
                throw new IllegalArgumentException(what);
        }
    }

    interface Made { MessageBuilder of(int n, MessageBuilder message); }

    static void sends(String what, String topic, Made made) throws Exception {
        Producer producer = producer(topic);
        boolean again = what.equals("ordered");
        going(what, n -> {
            for (boolean sent = false; !sent; sent = sent || !again || !sending)
                try {
                    producer.send(made.of(n, message(topic, n)).build());
                    line("SENT", topic, "" + n, "SEND_OK", "", "");
                    sent = true;
                } catch (Exception error) {
                    failed(what, n, error);
                    Thread.sleep(100);
                }
        });
    }

    static void decided() throws Exception {
        push("G-decided", "Decided", m -> true);
        Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics("Decided")
            .setTransactionChecker(message -> {
                line("ASKED", body(message));
                return number(message) % 4 == 2 ? TransactionResolution.ROLLBACK : TransactionResolution.COMMIT;
            }).build();
        going("decided", n -> {
            Transaction transaction = producer.beginTransaction();
            producer.send(message("Decided", n).build(), transaction);
            line("SENT", "Decided", "" + n, "SEND_OK", "", "");
            if (n % 4 < 2) transaction.commit();
            if (n % 4 == 2) transaction.rollback();
        });
    }

    static void receive(String group, String topic) throws Exception {
        SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration)
            .setConsumerGroup(group).setAwaitDuration(Duration.ofSeconds(5))
            .setSubscriptionExpressions(Collections.singletonMap(topic, FilterExpression.SUB_ALL)).build();
        Thread thread = new Thread(() -> {
            while (true)
                try {
                    for (MessageView message : consumer.receive(32, Duration.ofSeconds(15))) {
                        got(group, message);
                        if (message.getDeliveryAttempt() == 1 && number(message) % 50 == 7) continue;
                        try {
                            consumer.ack(message);
                            line("ACKED", group, body(message));
                        } catch (Exception error) {
                            failed("ack", number(message), error);
                        }
                    }
                } catch (Exception error) {
                    failed("receive", 0, error);
                    try { Thread.sleep(100); } catch (InterruptedException ended) { return; }
                }
        }, "receiving");
        thread.setDaemon(true);
        thread.start();
    }

    static void push(String group, String topic, Predicate<MessageView> taken) throws Exception {
        PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup(group)
            .setSubscriptionExpressions(Collections.singletonMap(topic, FilterExpression.SUB_ALL))
            .setMessageListener(message -> {
                got(group, message);
                return taken.test(message) ? ConsumeResult.SUCCESS : ConsumeResult.FAILURE;
            }).build();
    }

    static Producer producer(String topic) throws Exception {
        return PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic).build();
    }

    static void going(String what, Sending send) {
        Thread thread = new Thread(() -> {
            for (int n = 0; sending; n++)
                try {
                    send.number(n);
                    Thread.sleep(PAUSE_MS);
                } catch (Exception error) {
                    failed(what, n, error);
                    try { Thread.sleep(100); } catch (InterruptedException ended) { return; }
                }
        }, "going-" + what);
        PRODUCERS.add(thread);
        thread.start();
    }

    static MessageBuilder message(String topic, int n) {
        return PROVIDER.newMessageBuilder().setTopic(topic).setTag("TagA").setKeys("" + n)
            .setBody(("" + n).getBytes(StandardCharsets.UTF_8));
    }

    static String body(MessageView message) { return StandardCharsets.UTF_8.decode(message.getBody().duplicate()).toString(); }

    static int number(MessageView message) { return Integer.parseInt(body(message)); }

    static void got(String group, MessageView message) {
        line("GOT", group, body(message), "" + (message.getDeliveryAttempt() - 1), "", "");
    }

    static void failed(String what, int n, Exception error) {
        line("FAILED", what, "" + n, ("" + error).replace('\n', ' '));
    }

    static synchronized void line(String... words) {
        System.out.println(System.currentTimeMillis() + "\t" + String.join("\t", words));
        System.out.flush();
    }
}
