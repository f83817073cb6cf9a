import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.*;
import org.apache.rocketmq.client.consumer.*;
import org.apache.rocketmq.client.consumer.listener.*;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.*;

/** Scenarios of a producer and a push consumer; each prints one line a message that was consumed. */
public class Scenario {
  static final String TOPIC = "T";

  public static void main(String[] args) throws Exception {
    DefaultMQProducer producer = new DefaultMQProducer("PG");
    producer.setNamesrvAddr(args[1]);
    producer.setSendMsgTimeout(60_000);
    producer.start();
    switch (args[0]) {
      case "sql": sql(producer, args[1]); break;
      case "timer": timer(producer, args[1]); break;
      case "pop": pop(producer, args[1]); break;
      default: throw new IllegalArgumentException(args[0]);
    }
    System.exit(0);
  }

  static void sql(DefaultMQProducer producer, String names) throws Exception {
    for (int n = 0; n < 20; n++) {
      Message message = message("" + n);
      message.putUserProperty("price", "" + n);
      if (n % 2 == 0) message.putUserProperty("region", "EU");
      producer.send(message);
    }
    CountDownLatch got = new CountDownLatch(3);
    DefaultMQPushConsumer consumer = consumer(names, got, "");
    consumer.subscribe(TOPIC, MessageSelector.bySql("price BETWEEN 10 AND 15 AND region = 'EU'"));
    consumer.start();
    got.await(120, TimeUnit.SECONDS);
    Thread.sleep(500);
    consumer.shutdown();
    try {
      DefaultMQPushConsumer wrong = consumer(names, got, "");
      wrong.setConsumerGroup("WRONG");
      wrong.subscribe(TOPIC, MessageSelector.bySql("price LIKE 3"));
      wrong.start();
      System.out.println("STARTED");
    } catch (Exception error) {
      System.out.println("REFUSED " + error.getMessage().replace('\n', ' '));
    }
  }

  static void timer(DefaultMQProducer producer, String names) throws Exception {
    producer.send(message("plain"));
    CountDownLatch got = new CountDownLatch(3);
    DefaultMQPushConsumer consumer = consumer(names, got, "");
    // one queue and one thread: what comes first was put first
    consumer.setConsumeThreadMin(1);
    consumer.setConsumeThreadMax(1);
    consumer.subscribe(TOPIC, "*");
    consumer.start();
    for (int n = 0; n < 5000 && got.getCount() > 2; n++) Thread.sleep(20);
    long now = System.currentTimeMillis();
    for (int delay : new int[] {3400, 2200}) {
      Message message = message("due " + (now + delay));
      MessageAccessor.putProperty(message, "TIMER_DELIVER_MS", "" + (now + delay));
      System.out.println("SENT " + producer.send(message, new MessageQueue(TOPIC, "broker-a", 0)).getSendStatus());
    }
    got.await(100, TimeUnit.SECONDS);
    consumer.shutdown();
  }

  static void pop(DefaultMQProducer producer, String names) throws Exception {
    for (int n = 0; n < 20; n++) producer.send(message("m" + n));
    CountDownLatch got = new CountDownLatch(22);
    DefaultMQPushConsumer consumer = consumer(names, got, "m7");
    consumer.getClass().getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
    consumer.subscribe(TOPIC, "*");
    consumer.start();
    Thread.sleep(4000);
    producer.send(message("late"));
    got.await(180, TimeUnit.SECONDS);
    Thread.sleep(1500);
    consumer.shutdown();
  }

  static Message message(String body) {
    return new Message(TOPIC, "TagA", body, body.getBytes(StandardCharsets.UTF_8));
  }

  /** A consumer that prints what it gets and fails once on one body. */
  static DefaultMQPushConsumer consumer(String names, CountDownLatch got, String failing) {
    DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("CG");
    consumer.setNamesrvAddr(names);
    consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
    consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
      for (MessageExt m : messages) {
        String body = new String(m.getBody(), StandardCharsets.UTF_8);
        String where = m.getProperty("POP_CK") == null ? "PULLED" : "POPPED";
        System.out.println("GOT\t" + body + "\t" + m.getReconsumeTimes() + "\t" + where + "\t" + System.currentTimeMillis());
        got.countDown();
        if (body.equals(failing) && m.getReconsumeTimes() == 0) return ConsumeConcurrentlyStatus.RECONSUME_LATER;
      }
      return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
    });
    return consumer;
  }
}
