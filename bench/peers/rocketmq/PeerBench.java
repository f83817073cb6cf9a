import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.config.FlushDiskType;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * Apache RocketMQ's own store, doing what it is told: one command a line on standard input, `NAME key=value ...`,
 * one answer a line on standard output, `ANSWER {json}` or `FAILED reason`. bench/peers/engine.py is its twin.
 */
public final class PeerBench {
    private static DefaultMessageStore store;
    private static Map<String, String> args;

    private PeerBench() { }

    public static void main(String[] ignored) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err);
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.trim().split(" ");
            args = new HashMap<>();
            for (int i = 1; i < words.length; i++) args.put(words[i].split("=", 2)[0], words[i].split("=", 2)[1]);
            try {
                out.println("ANSWER {" + run(words[0]) + "}");
            } catch (Throwable error) {
                error.printStackTrace();
                out.println("FAILED " + error.toString().replace('\n', ' '));
            }
            out.flush();
        }
        System.exit(0);
    }

    private static String run(String command) throws Exception {
        switch (command) {
            case "open": return open();
            case "put": return put();
            case "batch": return batch();
            case "get": return get();
            case "query": return query();
            case "verify": return verify();
            case "pace": return pace();
            case "latency": return latency();
            case "settle": return settle();
            case "close": store.shutdown(); store = null; System.gc(); return "";
            default: throw new IllegalArgumentException(command);
        }
    }

    private static long number(String name) { return Long.parseLong(args.get(name)); }

    private static String json(Object... pairs) {
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < pairs.length; i += 2) {
            text.append(i == 0 ? "" : ", ").append('"').append(pairs[i]).append("\": ");
            text.append(pairs[i + 1] instanceof Double ? String.format(Locale.ROOT, "%.9f", (Double) pairs[i + 1]) : pairs[i + 1]);
        }
        return text.toString();
    }

    private static double since(long began) { return (System.nanoTime() - began) / 1e9; }

    private static void dispatched() throws InterruptedException {
        while (store.dispatchBehindBytes() > 0) LockSupport.parkNanos(100_000);
    }

    private static String open() throws Exception {
        String dir = args.get("dir");
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(dir);
        config.setStorePathCommitLog(dir + File.separator + "commitlog");
        config.setMappedFileSizeCommitLog((int) number("log"));
        config.setFlushDiskType(args.get("flush").equals("SYNC") ? FlushDiskType.SYNC_FLUSH : FlushDiskType.ASYNC_FLUSH);
        config.setWarmMapedFileEnable(args.get("warm").equals("1"));
        config.setDiskMaxUsedSpaceRatio(99);
        config.setCleanFileForciblyEnable(false);
        config.setOsPageCacheBusyTimeOutMills(60_000);
        config.setHaListenPort(Integer.getInteger("ha.port"));
        long began = System.nanoTime();
        store = new DefaultMessageStore(config, new BrokerStatsManager("peer", false), (t, q, o, c, s, b, p) -> { },
            new BrokerConfig(), new ConcurrentHashMap<>());
        if (!store.load()) throw new IllegalStateException("load");
        store.start();
        dispatched();
        return json("seconds", since(began), "end", store.getMaxPhyOffset());
    }

    private static void check(PutMessageResult result) {
        if (!result.isOk()) throw new IllegalStateException("put: " + result);
    }

    /** One message a call: by `threads` callers, built in the loop or before it. */
    private static String put() throws Exception {
        String topic = args.get("topic");
        long start = number("start");
        int count = (int) number("count"), threads = (int) number("threads"), queues = (int) number("queues");
        byte[] filler = Work.filler((int) number("body"));
        MessageExtBrokerInner[] ready = null;
        if (args.get("ready").equals("1")) {
            ready = new MessageExtBrokerInner[count];
            for (int i = 0; i < count; i++) ready[i] = Work.message(topic, start + i, filler, queues);
        }
        MessageExtBrokerInner[] made = ready;
        long before = store.getMaxPhyOffset(), began = System.nanoTime();
        inThreads(threads, worker -> {
            for (int i = worker; i < count; i += threads)
                check(store.putMessage(made == null ? Work.message(topic, start + i, filler, queues) : made[i]));
        });
        double seconds = since(began);
        dispatched();
        return json("seconds", seconds, "dispatched", since(began), "messages", count, "bytes", store.getMaxPhyOffset() - before);
    }

    private interface Part { void run(int worker) throws Exception; }

    private static void inThreads(int threads, Part part) throws Exception {
        if (threads == 1) { part.run(0); return; }
        AtomicReference<Throwable> failure = new AtomicReference<>();
        CountDownLatch done = new CountDownLatch(threads);
        for (int k = 0; k < threads; k++) {
            int worker = k;
            new Thread(() -> {
                try { part.run(worker); } catch (Throwable error) { failure.set(error); }
                done.countDown();
            }).start();
        }
        done.await();
        if (failure.get() != null) throw new IllegalStateException(failure.get());
    }

    /** Batches of 64: bodies encoded before the loop, or lists of messages that are encoded in it. */
    private static String batch() throws Exception {
        String topic = args.get("topic");
        int batches = (int) number("count") / Work.BATCH;
        boolean encoded = args.get("encoded").equals("1");
        byte[] filler = Work.filler((int) number("body"));
        byte[][] bodies = new byte[batches][];
        Object[] lists = new Object[batches];
        for (int i = 0; i < batches; i++) {
            List<Message> list = Work.list(topic, number("start") + (long) i * Work.BATCH, filler);
            if (encoded) bodies[i] = MessageDecoder.encodeMessages(list); else lists[i] = list;
        }
        long before = store.getMaxPhyOffset(), began = System.nanoTime();
        for (int i = 0; i < batches; i++) {
            @SuppressWarnings("unchecked") byte[] body = encoded ? bodies[i] : MessageDecoder.encodeMessages((List<Message>) lists[i]);
            check(store.putMessages(Work.batch(topic, body, i & 3)));
        }
        double seconds = since(began);
        dispatched();
        return json("seconds", seconds, "dispatched", since(began), "messages", batches * Work.BATCH, "bytes", store.getMaxPhyOffset() - before);
    }

    private interface Batch { void read(GetMessageResult result); }

    private static void gets(String topic, Batch batch) throws Exception {
        for (int queue = 0; queue < store.getQueueStore().getConsumeQueueTable().get(topic).size(); queue++) {
            long offset = 0, end = store.getMaxOffsetInQueue(topic, queue);
            while (offset < end) {
                GetMessageResult result = store.getMessage("peer", topic, queue, offset, 32, null);
                if (result.getMessageCount() == 0) throw new IllegalStateException(queue + "@" + offset + ": " + result);
                batch.read(result);
                offset = result.getNextBeginOffset();
                result.release();
            }
        }
    }

    /** The whole topic, 32 a call. */
    private static String get() throws Exception {
        long[] sums = new long[3];
        boolean decode = args.get("decode").equals("1");
        long began = System.nanoTime();
        gets(args.get("topic"), decode ? result -> {
            for (ByteBuffer record : result.getMessageBufferList()) {
                MessageExt message = MessageDecoder.decode(record);
                sums[0]++;
                sums[1] += message.getBody().length + message.getQueueOffset() + message.getCommitLogOffset();
                sums[2] += message.getTopic().length() + message.getTags().length() + message.getKeys().length();
            }
        } : result -> {
            for (SelectMappedBufferResult record : result.getMessageMapedList()) { sums[0]++; sums[1] += record.getSize(); }
        });
        return json("seconds", since(began), "messages", sums[0], "sum", sums[1], "letters", sums[2]);
    }

    /** Look-ups of random keys of messages start to start + range, the keys made in the loop of numbers drawn before. */
    private static String query() throws Exception {
        String topic = args.get("topic");
        long start = number("start"), range = number("range"), hits = 0, bytes = 0;
        Random random = new Random(number("seed"));
        int count = (int) number("count");
        long[] numbers = new long[count];
        for (int i = 0; i < count; i++) numbers[i] = start + random.nextInt((int) range);
        long began = System.nanoTime();
        for (int i = 0; i < count; i++) {
            QueryMessageResult result = store.queryMessage(topic, "K" + numbers[i], 32, 0, Long.MAX_VALUE);
            hits += result.getMessageBufferList().size();
            bytes += result.getBufferTotalSize();
            result.release();
        }
        return json("seconds", since(began), "messages", count, "hits", hits, "bytes", bytes);
    }

    /** Every message of a topic, read back and compared with what was put. */
    private static String verify() throws Exception {
        String topic = args.get("topic");
        byte[] filler = Work.filler((int) number("body"));
        long[] sums = new long[2];
        gets(topic, result -> {
            for (ByteBuffer record : result.getMessageBufferList()) {
                MessageExt message = MessageDecoder.decode(record);
                long number = ByteBuffer.wrap(message.getBody()).getLong();
                if (!Arrays.equals(message.getBody(), Work.body(number, filler)) || !message.getKeys().equals("K" + number)
                    || !message.getTags().equals("TagA") || !message.getTopic().equals(topic)
                    || !message.getProperty("UNIQ_KEY").equals(Work.uniqueKey(number)))
                    throw new IllegalStateException("message " + number + " is not what was put: " + message);
                sums[0]++;
                sums[1] += number;
            }
        });
        return json("messages", sums[0], "sum", sums[1]);
    }

    /** Puts at a steady rate, `rate` a second. */
    private static String pace() throws Exception {
        byte[] filler = Work.filler((int) number("body"));
        long count = number("count"), start = number("start"), rate = number("rate"), began = System.nanoTime();
        for (long i = 0; i < count; i++) {
            if (i % 64 == 0) LockSupport.parkNanos(began + i * 1_000_000_000L / rate - System.nanoTime());
            check(store.putMessage(Work.message(args.get("topic"), start + i, filler, 4)));
        }
        double seconds = since(began);
        dispatched();
        return json("seconds", seconds, "messages", count);
    }

    /** Nanoseconds of each put; `rate` 0 is as fast as it goes; with `flusher` another thread flushes without end. */
    private static String latency() throws Exception {
        byte[] filler = Work.filler((int) number("body"));
        int count = (int) number("count");
        long start = number("start"), rate = number("rate");
        long[] taken = new long[count];
        AtomicBoolean stop = new AtomicBoolean();
        Thread flusher = new Thread(() -> { while (!stop.get()) { store.flush(); Thread.yield(); } });
        if (args.get("flusher").equals("1")) flusher.start();
        long began = System.nanoTime();
        for (int i = 0; i < count; i++) {
            if (rate > 0 && i % 16 == 0) LockSupport.parkNanos(began + i * 1_000_000_000L / rate - System.nanoTime());
            MessageExtBrokerInner message = Work.message(args.get("topic"), start + i, filler, 4);
            long at = System.nanoTime();
            check(store.putMessage(message));
            taken[i] = System.nanoTime() - at;
        }
        double seconds = since(began);
        stop.set(true);
        flusher.join();
        Arrays.sort(taken);
        return json("seconds", seconds, "messages", count, "p50", taken[count / 2], "p99", taken[(int) (count * 0.99)],
            "p999", taken[(int) (count * 0.999)], "max", taken[count - 1]);
    }

    /** Dispatched, on the disk, and no thread at work: so that one side's background work is not in the other's time. */
    private static String settle() throws Exception {
        dispatched();
        store.flush();
        com.sun.management.OperatingSystemMXBean system =
            (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        for (int i = 0; i < 300; i++) {
            long before = system.getProcessCpuTime();
            Thread.sleep(100);
            if (system.getProcessCpuTime() - before < 20_000_000) break;
        }
        return json("end", store.getMaxPhyOffset());
    }
}
