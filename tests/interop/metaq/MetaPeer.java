import com.taobao.metamorphosis.Message;
import com.taobao.metamorphosis.client.MessageSessionFactory;
import com.taobao.metamorphosis.client.MetaClientConfig;
import com.taobao.metamorphosis.client.MetaMessageSessionFactory;
import com.taobao.metamorphosis.client.consumer.ConsumerConfig;
import com.taobao.metamorphosis.client.consumer.MessageConsumer;
import com.taobao.metamorphosis.client.consumer.MessageListener;
import com.taobao.metamorphosis.client.producer.MessageProducer;
import com.taobao.metamorphosis.client.producer.SendMessageCallback;
import com.taobao.metamorphosis.client.producer.SendResult;
import com.taobao.metamorphosis.server.assembly.MetaMorphosisBroker;
import com.taobao.metamorphosis.server.utils.MetaConfig;
import com.taobao.metamorphosis.utils.ZkUtils;
import java.io.File;
import java.net.InetSocketAddress;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executor;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.zookeeper.server.NIOServerCnxnFactory;
import org.apache.zookeeper.server.ZooKeeperServer;

/**
 * MetaQ's own client and broker, and ZooKeeper. `zookeeper DIR PORT` and `broker INI` print their port and run
 * until standard input ends. `client WHERE TOPIC COUNT` sends, tries what may be refused, sends again and consumes;
 * `async WHERE TOPIC COUNT SIZE ROUNDS` sends without waiting and prints rates. WHERE is an address of ZooKeeper, or
 * a broker as meta://host:port.
 */
public class MetaPeer {
    public static void main(String[] a) throws Exception {
        switch (a[0]) {
        case "zookeeper": zookeeper(new File(a[1]), Integer.parseInt(a[2])); break;
        case "broker": broker(a[1]); break;
        case "client": client(a[1], a[2], Integer.parseInt(a[3])); break;
        case "async": async(a[1], a[2], Integer.parseInt(a[3]), Integer.parseInt(a[4]), Integer.parseInt(a[5])); break;
        default: throw new IllegalArgumentException(a[0]);
        }
        Runtime.getRuntime().halt(0);
    }

    static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    static void zookeeper(File dir, int port) throws Exception {
        NIOServerCnxnFactory factory = new NIOServerCnxnFactory();
        factory.configure(new InetSocketAddress("127.0.0.1", port), 100);
        factory.startup(new ZooKeeperServer(dir, dir, 500));
        say("" + factory.getLocalPort());
        System.in.read();
    }

    static void broker(String ini) throws Exception {
        MetaConfig config = new MetaConfig();
        config.loadFromFile(ini);
        new MetaMorphosisBroker(config).start();
        say("" + config.getServerPort());
        System.in.read();
    }

    static MessageSessionFactory connect(String where) throws Exception {
        MetaClientConfig config = new MetaClientConfig();
        if (where.startsWith("meta://")) {
            config.setServerUrl(where);
        } else {
            ZkUtils.ZKConfig zk = new ZkUtils.ZKConfig();
            zk.zkConnect = where;
            config.setZkConfig(zk);
        }
        return new MetaMessageSessionFactory(config);
    }

    static void send(MessageProducer producer, Message message) throws Exception {
        SendResult result = producer.sendMessage(message, 60, TimeUnit.SECONDS);
        String error = result.getErrorMessage() == null ? "" : result.getErrorMessage().split("Detail:")[1];
        say("sent " + result.isSuccess() + " " + (result.isSuccess() ? result.getPartition() : error));
    }

    static void client(String where, String topic, int count) throws Exception {
        MessageSessionFactory factory = connect(where);
        MessageProducer producer = factory.createProducer();
        producer.publish(topic);
        for (int i = 0; i < count; i++) {
            send(producer, new Message(topic, ("m" + i).getBytes("UTF-8"), i % 2 == 0 ? "attribute " + i : null));
        }
        MessageProducer other = factory.createProducer();
        other.publish(topic);
        producer.beginTransaction();
        try {
            producer.sendMessage(new Message(topic, "in a transaction".getBytes()));
            say("transaction true");
        } catch (Exception e) {
            say("transaction false " + e.getMessage());
        }
        try {
            producer.rollback();
        } catch (Exception e) {
            say("rollback " + e.getMessage());
        }
        send(other, new Message(topic, new byte[2097153]));
        send(other, new Message(topic, "last".getBytes("UTF-8")));
        CountDownLatch all = new CountDownLatch(count + 1);
        MessageConsumer consumer = factory.createConsumer(new ConsumerConfig("group"));
        consumer.subscribe(topic, 1024 * 1024, new MessageListener() {
            public void recieveMessages(Message m) {
                synchronized (all) {
                    say("got " + new String(m.getData()) + " / " + m.getAttribute());
                }
                all.countDown();
            }

            public Executor getExecutor() {
                return null;
            }
        });
        consumer.completeSubscribe();
        say("all " + all.await(100, TimeUnit.SECONDS));
    }

    static void async(String where, String topic, int count, int size, int rounds) throws Exception {
        MessageProducer producer = connect(where).createProducer();
        producer.publish(topic);
        byte[] body = new byte[size];
        AtomicInteger failed = new AtomicInteger();
        for (int round = 0; round < rounds; round++) {
            Semaphore window = new Semaphore(1000);
            long begin = System.nanoTime();
            for (int i = 0; i < count; i++) {
                window.acquire();
                producer.sendMessage(new Message(topic, body), new SendMessageCallback() {
                    public void onMessageSent(SendResult r) {
                        if (!r.isSuccess()) {
                            failed.incrementAndGet();
                        }
                        window.release();
                    }

                    public void onException(Throwable e) {
                        failed.incrementAndGet();
                        window.release();
                    }
                }, 30, TimeUnit.SECONDS);
            }
            window.acquire(1000);
            say(Math.round(count / ((System.nanoTime() - begin) / 1e9)) + " a second, " + failed + " failed");
        }
    }
}
