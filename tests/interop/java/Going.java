import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.*;
import org.apache.rocketmq.client.consumer.listener.*;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.*;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;

/**
 * Producers and consumers that go on until they are told to end: `Going ADDRESS WHAT...`; a line of tabs a deed.
 *
 * <p>`stop` on standard input ends the producers, once each has its answer, `end` all. What is sent is SENT topic body
 * status, what is consumed GOT group body attempt queue, with milliseconds in front.
 */
public class Going {
  static final int QUEUES = 4;
  static final long PAUSE_MS = Long.getLong("going.pause", 10);
  static final int SEND_TIMEOUT_MS = Integer.getInteger("going.timeout", 3000);
  static String names;
  static volatile boolean sending = true;
  static final List<Thread> producers = new ArrayList<>();

  interface Sending { void number(int n) throws Exception; }

  public static void main(String[] args) throws Exception {
    names = args[0];
    for (String what : Arrays.asList(args).subList(1, args.length)) begin(what);
    line("READY");
    BufferedReader told = new BufferedReader(new InputStreamReader(System.in));
    for (String word = told.readLine(); word != null && !word.equals("end"); word = told.readLine()) {
      if (!word.equals("stop")) continue;
      sending = false;
      for (Thread each : producers) each.join();
      line("STOPPED");
    }
    System.exit(0);
  }

  static void begin(String what) throws Exception {
    switch (what) {
      case "plain": plain(); break;
      case "ordered": ordered(); break;
      case "retried": retried(); break;
      case "delayed": delayed(); break;
      case "timed": timed(); break;
      case "decided": decided(); break;
      case "popped": popped(); break;
      case "cast": cast(); break;
      case "polled": polled(); break;
      default: throw new IllegalArgumentException(what);
    }
  }

  static void plain() throws Exception {
    push("G-plain", "Plain", m -> true);
    DefaultMQProducer producer = started(new DefaultMQProducer("P-plain"));
    going("plain", n -> told(producer.send(message("Plain", "" + n)), "" + n));
  }

  static void popped() throws Exception {
    push("G-popped", "Popped", m -> m.getReconsumeTimes() > 0 || number(m) % 50 != 7);
    DefaultMQProducer producer = started(new DefaultMQProducer("P-popped"));
    going("popped", n -> told(producer.send(message("Popped", "" + n)), "" + n));
  }

  static void cast() throws Exception {
    DefaultMQPushConsumer consumer = consumer("G-cast", "Cast");
    consumer.setMessageModel(MessageModel.BROADCASTING);
    listen(consumer, "G-cast", m -> true);
    DefaultMQProducer producer = started(new DefaultMQProducer("P-cast"));
    going("cast", n -> told(producer.send(message("Cast", "" + n)), "" + n));
  }

  static void polled() throws Exception {
    DefaultLitePullConsumer consumer = new DefaultLitePullConsumer("G-polled");
    consumer.setNamesrvAddr(names);
    consumer.setPollNameServerInterval(1000);
    consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
    consumer.subscribe("Polled", "*");
    consumer.start();
    Thread polling = new Thread(() -> {
      while (true) for (MessageExt message : consumer.poll(1000)) got("G-polled", message);
    }, "polling");
    polling.setDaemon(true);
    polling.start();
    DefaultMQProducer producer = started(new DefaultMQProducer("P-polled"));
    going("polled", n -> told(producer.send(message("Polled", "" + n)), "" + n));
  }

  /** One after the other in each queue: sent until one was answered. */
  static void ordered() throws Exception {
    DefaultMQPushConsumer consumer = consumer("G-ordered", "Ordered");
    consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
      for (MessageExt message : messages) got("G-ordered", message);
      return ConsumeOrderlyStatus.SUCCESS;
    });
    consumer.start();
    DefaultMQProducer producer = started(new DefaultMQProducer("P-ordered"));
    MessageQueueSelector byNumber = (queues, message, number) -> {
      for (MessageQueue queue : queues) if (queue.getQueueId() == (int) number % QUEUES) return queue;
      throw new IllegalStateException("no queue " + number);
    };
    going("ordered", n -> {
      for (boolean sent = false; !sent; )
        try {
          SendResult result = producer.send(message("Ordered", "" + n), byNumber, n);
          told(result, "" + n);
          sent = result.getSendStatus() == SendStatus.SEND_OK || !sending;
          if (!sent) Thread.sleep(100);
        } catch (Exception error) {
          failed("Ordered", "" + n, error);
          Thread.sleep(100);
        }
    });
  }

  /** Of ten one fails once, and one always. */
  static void retried() throws Exception {
    DefaultMQPushConsumer consumer = consumer("G-retried", "Retried");
    consumer.setMaxReconsumeTimes(2);
    listen(consumer, "G-retried", m -> number(m) % 10 == 3 ? m.getReconsumeTimes() > 0 : number(m) % 10 != 6);
    push("G-dead", "%DLQ%G-retried", m -> true);
    DefaultMQProducer producer = started(new DefaultMQProducer("P-retried"));
    going("retried", n -> told(producer.send(message("Retried", "" + n)), "" + n));
  }

  static void delayed() throws Exception {
    push("G-delayed", "Delayed", m -> true);
    DefaultMQProducer producer = started(new DefaultMQProducer("P-delayed"));
    going("delayed", n -> {
      Message message = message("Delayed", "" + n);
      message.setDelayTimeLevel(1 + n % 3);
      told(producer.send(message), "" + n);
    });
  }

  static void timed() throws Exception {
    push("G-timed", "Timed", m -> true);
    DefaultMQProducer producer = started(new DefaultMQProducer("P-timed"));
    going("timed", n -> {
      Message message = message("Timed", "" + n);
      MessageAccessor.putProperty(message, "TIMER_DELIVER_MS", "" + (System.currentTimeMillis() + 2000 + n % 20 * 1000));
      told(producer.send(message), "" + n);
    });
  }

  /** Of four two are committed, one rolled back, and of one the broker has to ask. */
  static void decided() throws Exception {
    push("G-decided", "Decided", m -> true);
    TransactionMQProducer producer = new TransactionMQProducer("P-decided");
    producer.setTransactionListener(new TransactionListener() {
      public LocalTransactionState executeLocalTransaction(Message message, Object n) {
        switch ((int) n % 4) {
          case 2: return LocalTransactionState.ROLLBACK_MESSAGE;
          case 3: return LocalTransactionState.UNKNOW;
          default: return LocalTransactionState.COMMIT_MESSAGE;
        }
      }
      public LocalTransactionState checkLocalTransaction(MessageExt message) {
        line("ASKED", body(message));
        return number(message) % 4 == 2 ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.COMMIT_MESSAGE;
      }
    });
    started(producer);
    going("decided", n -> told(producer.sendMessageInTransaction(message("Decided", "" + n), n), "" + n));
  }

  static void going(String what, Sending send) {
    Thread thread = new Thread(() -> {
      for (int n = 0; sending; n++)
        try {
          send.number(n);
          Thread.sleep(PAUSE_MS);
        } catch (Exception error) {
          failed(what, "" + n, error);
          try { Thread.sleep(100); } catch (InterruptedException ended) { return; }
        }
    }, "going-" + what);
    producers.add(thread);
    thread.start();
  }

  static <P extends DefaultMQProducer> P started(P producer) throws Exception {
    producer.setNamesrvAddr(names);
    producer.setPollNameServerInterval(1000);
    producer.setSendMsgTimeout(SEND_TIMEOUT_MS);
    producer.start();
    return producer;
  }

  static DefaultMQPushConsumer consumer(String group, String topic) throws Exception {
    DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
    consumer.setNamesrvAddr(names);
    consumer.setPollNameServerInterval(1000);
    consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
    consumer.setInstanceName(group);
    if (group.equals("G-popped"))
      consumer.getClass().getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
    consumer.subscribe(topic, "*");
    return consumer;
  }

  static DefaultMQPushConsumer push(String group, String topic, java.util.function.Predicate<MessageExt> taken) throws Exception {
    DefaultMQPushConsumer consumer = consumer(group, topic);
    listen(consumer, group, taken);
    return consumer;
  }

  static void listen(DefaultMQPushConsumer consumer, String group, java.util.function.Predicate<MessageExt> taken) throws Exception {
    consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
      boolean all = true;
      for (MessageExt message : messages) {
        got(group, message);
        all &= taken.test(message);
      }
      if (all) return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
      context.setDelayLevelWhenNextConsume(1);
      return ConsumeConcurrentlyStatus.RECONSUME_LATER;
    });
    consumer.start();
  }

  static Message message(String topic, String body) { return new Message(topic, "TagA", body, body.getBytes(StandardCharsets.UTF_8)); }

  static String body(MessageExt message) { return new String(message.getBody(), StandardCharsets.UTF_8); }

  static int number(MessageExt message) { return Integer.parseInt(body(message)); }

  static void told(SendResult result, String body) {
    String state = result instanceof TransactionSendResult ? "" + ((TransactionSendResult) result).getLocalTransactionState() : "";
    line("SENT", result.getMessageQueue().getTopic(), body, "" + result.getSendStatus(), "" + result.getQueueOffset(), state);
  }

  static void got(String group, MessageExt message) {
    line("GOT", group, body(message), "" + message.getReconsumeTimes(), "" + message.getQueueId(), "" + message.getQueueOffset());
  }

  static void failed(String what, String body, Exception error) { line("FAILED", what, body, ("" + error).replace('\n', ' ')); }

  static synchronized void line(String... words) {
    System.out.println(System.currentTimeMillis() + "\t" + String.join("\t", words));
    System.out.flush();
  }
}
