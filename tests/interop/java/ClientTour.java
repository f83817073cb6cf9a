import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.acl.common.*;
import org.apache.rocketmq.client.consumer.*;
import org.apache.rocketmq.client.consumer.listener.*;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.*;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;

/** What RocketMQ's client offers, once each; a line of tabs tells what was sent (SENT) and consumed (GOT, by whom). */
public class ClientTour {
  static final int PATIENCE_MS = 60_000;
  static String names;
  static DefaultMQProducer producer;
  /** what is still to come, over all scenarios; only waited for, the lines tell what came */
  static CountDownLatch left;

  interface Taken { boolean by(MessageExt message) throws Exception; }

  public static void main(String[] args) throws Exception {
    names = args[1];
    if (args[0].equals("tour")) tour(); else keys(args);
    System.exit(0);
  }

  static void tour() throws Exception {
    left = new CountDownLatch(13 + 2 * 4 + 11 + 8 + 2 + 2 + 3 + 1);
    producer = started(new DefaultMQProducer("PG"));
    DefaultMQPushConsumer one = push("one", "CG-share", "Send", MessageModel.CLUSTERING, m -> true);
    untilShared(4, one);
    DefaultMQPushConsumer two = push("two", "CG-share", "Send", MessageModel.CLUSTERING, m -> true);
    untilShared(2, one, two);
    for (String who : new String[] {"one", "two"}) push(who, "CG-cast", "Cast", MessageModel.BROADCASTING, m -> true);
    push("one", "CG-delay", "Delay", MessageModel.CLUSTERING, m -> true);
    push("one", "CG-transaction", "Transaction", MessageModel.CLUSTERING, m -> true);
    DefaultMQPushConsumer retry = push("one", "CG-retry", "Retry", MessageModel.CLUSTERING, m -> !body(m).equals("fails"));
    retry.setMaxReconsumeTimes(1);
    retry.setAwaitTerminationMillisWhenShutdown(PATIENCE_MS);
    orderly();
    replies();
    DefaultLitePullConsumer pull = pull();
    send();
    for (int n = 0; n < 4; n++) told("cast", producer.send(message("Cast", "c" + n)));
    MessageQueueSelector byNumber = (queues, message, number) -> queues.get((int) number % queues.size());
    for (int n = 0; n < 10; n++) told("orderly", producer.send(message("Orderly", n % 2 + "-" + n / 2), byNumber, n % 2));
    for (int level = 1; level <= 2; level++) {
      Message message = message("Delay", "level " + level);
      message.setDelayTimeLevel(level);
      told("delay", producer.send(message));
    }
    for (String body : new String[] {"fails", "holds"}) told("retry", producer.send(message("Retry", body)));
    transactions();
    line("REPLIED", new String(producer.request(message("Request", "question"), PATIENCE_MS).getBody(), StandardCharsets.UTF_8));
    for (int n = 0; n < 8; n++) told("pull", producer.send(message("Pull", "p" + n)));
    for (long end = System.currentTimeMillis() + 2 * PATIENCE_MS; left.getCount() > 0 && System.currentTimeMillis() < end; )
      for (MessageExt message : pull.poll(100)) got("lite", message);
    Thread.sleep(300);
    // what failed is given back after it was consumed
    retry.shutdown();
  }

  /** What is sent while a queue goes from one consumer to the other may come to both. */
  static void untilShared(int each, DefaultMQPushConsumer... consumers) throws Exception {
    for (long end = System.currentTimeMillis() + PATIENCE_MS; System.currentTimeMillis() < end; Thread.sleep(50))
      if (Arrays.stream(consumers).allMatch(consumer -> queues(consumer) == each)) return;
    throw new IllegalStateException("the queues are not shared");
  }

  static long queues(DefaultMQPushConsumer consumer) {
    return consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet().stream()
        .filter(queue -> queue.getTopic().equals("Send")).count();
  }

  /** Sync, async, oneway, a batch, a large body and one of a chosen queue. */
  static void send() throws Exception {
    told("sync", producer.send(message("Send", "sync")));
    CountDownLatch answered = new CountDownLatch(2);
    for (int n = 0; n < 2; n++)
      producer.send(message("Send", "async" + n), new SendCallback() {
        public void onSuccess(SendResult result) { told("async", result); answered.countDown(); }
        public void onException(Throwable error) { line("FAILED", "" + error); answered.countDown(); }
      });
    answered.await(PATIENCE_MS, TimeUnit.MILLISECONDS);
    for (int n = 0; n < 2; n++) producer.sendOneway(message("Send", "oneway" + n));
    List<Message> batch = new ArrayList<>();
    for (int n = 0; n < 6; n++) batch.add(message("Send", "batch" + n));
    told("batch", producer.send(batch));
    told("large", producer.send(message("Send", "large" + String.join("", Collections.nCopies(5000, "x")))));
    told("chosen", producer.send(message("Send", "chosen"), new MessageQueue("Send", "broker-a", 3)));
  }

  /** The third of queue 0 is handed out twice: its first time suspends the queue. */
  static void orderly() throws Exception {
    DefaultMQPushConsumer consumer = consumer("one", "CG-orderly", "Orderly");
    AtomicInteger suspended = new AtomicInteger();
    consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
      context.setSuspendCurrentQueueTimeMillis(100);
      for (MessageExt message : messages) {
        got("one", message);
        if (body(message).equals("0-2") && suspended.getAndIncrement() == 0) return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
      }
      return ConsumeOrderlyStatus.SUCCESS;
    });
    consumer.start();
  }

  /** One is committed, one rolled back, and of one the broker has to ask. */
  static void transactions() throws Exception {
    TransactionMQProducer producer = new TransactionMQProducer("PG-transaction");
    producer.setTransactionListener(new TransactionListener() {
      public LocalTransactionState executeLocalTransaction(Message message, Object state) { return (LocalTransactionState) state; }
      public LocalTransactionState checkLocalTransaction(MessageExt message) {
        line("ASKED", body(message));
        return LocalTransactionState.COMMIT_MESSAGE;
      }
    });
    started(producer);
    told("transaction", producer.sendMessageInTransaction(message("Transaction", "commit"), LocalTransactionState.COMMIT_MESSAGE));
    told("transaction", producer.sendMessageInTransaction(message("Transaction", "rollback"), LocalTransactionState.ROLLBACK_MESSAGE));
    told("transaction", producer.sendMessageInTransaction(message("Transaction", "unknown"), LocalTransactionState.UNKNOW));
  }

  static void replies() throws Exception {
    DefaultMQProducer answering = started(new DefaultMQProducer("PG-reply"));
    push("one", "CG-request", "Request", MessageModel.CLUSTERING, message -> {
      answering.send(MessageUtil.createReplyMessage(message, ("answer to " + body(message)).getBytes(StandardCharsets.UTF_8)), PATIENCE_MS);
      return true;
    });
  }

  static DefaultLitePullConsumer pull() throws Exception {
    DefaultLitePullConsumer consumer = new DefaultLitePullConsumer("CG-pull");
    consumer.setNamesrvAddr(names);
    consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
    consumer.subscribe("Pull", "*");
    consumer.start();
    return consumer;
  }

  /** One send and one consumer for each of KEY SECRET TOPIC GROUP; the lines tell which it was, the first of number 0. */
  static void keys(String[] args) throws Exception {
    left = new CountDownLatch(Math.min(2, args.length / 4));
    for (int at = 2; at < args.length; at += 4) {
      String who = "" + (at - 2) / 4;
      AclClientRPCHook hook = new AclClientRPCHook(new SessionCredentials(args[at], args[at + 1]));
      DefaultMQProducer producer = new DefaultMQProducer("PG" + who, hook);
      producer.setInstanceName("producer" + who);
      try {
        told(who, started(producer).send(message(args[at + 2], "by " + who)));
      } catch (Exception error) {
        Throwable cause = error;
        while (cause.getCause() != null && !(cause instanceof MQBrokerException)) cause = cause.getCause();
        line("REFUSED", who, ("" + cause).replace('\n', ' '));
      }
      DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(null, args[at + 3], hook);
      consumer.setNamesrvAddr(names);
      consumer.setInstanceName("consumer" + who);
      consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
      consumer.subscribe(args[at + 2], "*");
      consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
        for (MessageExt message : messages) got(who, message);
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
      });
      consumer.start();
    }
    left.await(2 * PATIENCE_MS, TimeUnit.MILLISECONDS);
    Thread.sleep(1000);
  }

  static <P extends DefaultMQProducer> P started(P producer) throws Exception {
    producer.setNamesrvAddr(names);
    producer.setSendMsgTimeout(PATIENCE_MS);
    producer.start();
    return producer;
  }

  static DefaultMQPushConsumer consumer(String who, String group, String topic) throws Exception {
    DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
    consumer.setNamesrvAddr(names);
    consumer.setPollNameServerInterval(500);
    // a heart-beat after a rebalance is left out while another one is sent; pulls are refused until the next
    consumer.setHeartbeatBrokerInterval(500);
    consumer.setInstanceName(group + who);
    consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
    consumer.subscribe(topic, "*");
    return consumer;
  }

  static DefaultMQPushConsumer push(String who, String group, String topic, MessageModel model, Taken taken) throws Exception {
    DefaultMQPushConsumer consumer = consumer(who, group, topic);
    consumer.setMessageModel(model);
    consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
      boolean all = true;
      for (MessageExt message : messages) {
        got(who, message);
        try { all &= taken.by(message); } catch (Exception error) { line("FAILED", "" + error); }
      }
      return all ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER;
    });
    consumer.start();
    return consumer;
  }

  static Message message(String topic, String body) {
    return new Message(topic, "TagA", body.substring(0, Math.min(20, body.length())), body.getBytes(StandardCharsets.UTF_8));
  }

  static String body(MessageExt message) { return new String(message.getBody(), StandardCharsets.UTF_8); }

  static void told(String how, SendResult result) { line("SENT", how, "" + result.getSendStatus()); }

  static void got(String who, MessageExt message) {
    long later = System.currentTimeMillis() - message.getBornTimestamp();
    line("GOT", message.getTopic(), who, body(message), "" + message.getReconsumeTimes(), "" + message.getQueueId(), "" + later);
    left.countDown();
  }

  static synchronized void line(String... words) { System.out.println(String.join("\t", words)); }
}
