import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/** The same load on whatever broker a name server knows: BrokerLoad NAMESRV BROKER_PID SCALE. One JSON object a phase. */
public class BrokerLoad {
    static final String TOPIC = "BrokerLoad", PACED = "BrokerLoadPaced";
    static final int BODY = 256, THREADS = 8, OUTSTANDING = 1024, BATCH = 32, RATE = 500;
    static String pid;
    static DefaultMQProducer producer;
    static long stored;

    interface Work { long run() throws Exception; }

    public static void main(String[] args) {
        try {
            run(args);
            System.out.flush();
            Runtime.getRuntime().halt(0);
        } catch (Throwable failure) {
            // threads of the client would keep the process
            failure.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
    }

    static void run(String[] args) throws Exception {
        pid = args[1];
        double scale = Double.parseDouble(args[2]);
        producer = new DefaultMQProducer("BrokerLoadProducer");
        producer.setNamesrvAddr(args[0]);
        producer.setRetryTimesWhenSendFailed(0);
        producer.setRetryTimesWhenSendAsyncFailed(0);
        producer.start();
        for (String topic : new String[] {TOPIC, PACED}) send(topic);
        // both virtual machines compile what is hot; the other broker has its files and pages ready
        stored += 1 + sync(3000) + async((int) (60_000 * scale)) + batch((int) (1500 * scale));
        measure("sync", () -> sync((int) (60_000 * scale)));
        measure("async", () -> async((int) (300_000 * scale)));
        measure("batch", () -> batch((int) (16_000 * scale)));
        measure("consume", () -> consume(args[0]));
        endToEnd(args[0], (int) (20 * RATE * scale));
    }

    static void measure(String phase, Work work) throws Exception {
        long ticks = ticks(), began = System.nanoTime();
        long messages = work.run();
        double seconds = (System.nanoTime() - began) / 1e9;
        if (!phase.equals("consume")) stored += messages;
        System.out.printf("{\"phase\":\"%s\",\"messages\":%d,\"seconds\":%.4f,\"cpu_seconds\":%.2f}%n",
            phase, messages, seconds, (ticks() - ticks) / 100.0);
    }

    /** User and system time of the broker, in ticks of 10 ms. */
    static long ticks() throws Exception {
        String text = Files.readString(Paths.get("/proc/" + pid + "/stat"));
        String[] fields = text.substring(text.lastIndexOf(')') + 2).split(" ");
        return Long.parseLong(fields[11]) + Long.parseLong(fields[12]);
    }

    static void send(String topic) throws Exception { taken(producer.send(new Message(topic, new byte[BODY]))); }

    /** A SYNC_MASTER stores, and says that its slave was late. */
    static void taken(SendResult result) {
        if (result.getSendStatus() != SendStatus.SEND_OK) throw new IllegalStateException(result.toString());
    }

    static long sync(int count) throws Exception {
        AtomicInteger failed = new AtomicInteger();
        List<Thread> threads = new ArrayList<>();
        for (int t = 0; t < THREADS; t++) {
            Thread thread = new Thread(() -> {
                for (int i = 0; i < count / THREADS; i++) {
                    try { send(TOPIC); } catch (Exception e) { failed.incrementAndGet(); }
                }
            });
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) thread.join();
        return none(failed, count / THREADS * THREADS);
    }

    static long async(int count) throws Exception {
        Semaphore free = new Semaphore(OUTSTANDING);
        AtomicInteger failed = new AtomicInteger();
        for (int i = 0; i < count; i++) {
            free.acquire();
            producer.send(new Message(TOPIC, new byte[BODY]), new SendCallback() {
                public void onSuccess(SendResult result) {
                    if (result.getSendStatus() != SendStatus.SEND_OK) failed.incrementAndGet();
                    free.release();
                }
                public void onException(Throwable error) { failed.incrementAndGet(); free.release(); }
            });
        }
        free.acquire(OUTSTANDING);
        return none(failed, count);
    }

    static long batch(int count) throws Exception {
        for (int i = 0; i < count; i++) {
            List<Message> messages = new ArrayList<>(BATCH);
            for (int j = 0; j < BATCH; j++) messages.add(new Message(TOPIC, new byte[BODY]));
            taken(producer.send(messages));
        }
        return (long) count * BATCH;
    }

    static DefaultMQPushConsumer consumer(String address, String topic, MessageListenerConcurrently listener) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(topic + System.nanoTime());
        consumer.setNamesrvAddr(address);
        consumer.subscribe(topic, "*");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(BATCH);
        consumer.registerMessageListener(listener);
        return consumer;
    }

    static long consume(String address) throws Exception {
        CountDownLatch left = new CountDownLatch((int) stored);
        DefaultMQPushConsumer consumer = consumer(address, TOPIC, (messages, context) -> {
            for (int i = 0; i < messages.size(); i++) left.countDown();
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        if (!left.await(120, TimeUnit.SECONDS)) throw new IllegalStateException(left.getCount() + " messages did not come");
        new Thread(consumer::shutdown).start();
        return stored;
    }

    /** A message every 2 ms, from its send to its listener. */
    static void endToEnd(String address, int count) throws Exception {
        long[] nanos = new long[count];
        AtomicInteger came = new AtomicInteger();
        AtomicLong first = new AtomicLong();
        CountDownLatch left = new CountDownLatch(count);
        DefaultMQPushConsumer consumer = consumer(address, PACED, (messages, context) -> {
            long now = System.nanoTime();
            messages.forEach(message -> {
                long sent = ByteBuffer.wrap(message.getBody()).getLong();
                if (sent == 0) { first.set(now); return; }
                if (sent > 1) { int at = came.getAndIncrement(); if (at < count) nanos[at] = now - sent; left.countDown(); }
            });
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        while (first.get() == 0) Thread.sleep(10);
        Thread.sleep(500);
        long ticks = ticks(), began = System.nanoTime();
        for (int i = 0; i < count; i++) {
            long due = began + i * (1_000_000_000L / RATE);
            while (System.nanoTime() < due) Thread.sleep(0, 100_000);
            byte[] body = new byte[BODY];
            ByteBuffer.wrap(body).putLong(System.nanoTime());
            taken(producer.send(new Message(PACED, body)));
        }
        if (!left.await(30, TimeUnit.SECONDS)) throw new IllegalStateException(left.getCount() + " messages did not come");
        Arrays.sort(nanos);
        System.out.printf("{\"phase\":\"end to end\",\"messages\":%d,\"p50_us\":%d,\"p99_us\":%d,\"p999_us\":%d,\"cpu_seconds\":%.2f}%n", count,
            nanos[count / 2] / 1000, nanos[(int) (count * 0.99)] / 1000, nanos[(int) (count * 0.999)] / 1000, (ticks() - ticks) / 100.0);
    }

    static long none(AtomicInteger failed, long count) {
        if (failed.get() > 0) throw new IllegalStateException(failed + " sends failed");
        return count;
    }
}
