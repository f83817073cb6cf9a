package org.apache.rocketmq.test.base;

import java.io.File;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.attribute.CQType;
import org.apache.rocketmq.common.attribute.TopicMessageType;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.logging.org.slf4j.Logger;
import org.apache.rocketmq.logging.org.slf4j.LoggerFactory;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.test.util.MQAdminTestUtils;

/**
 * Stands in front of the class of the tests' own jar, which starts a name server and brokers in Java: these say where
 * those of rmqcore are, and serve nothing themselves.
 */
public class IntegrationTestBase {
    public static Logger logger = LoggerFactory.getLogger(IntegrationTestBase.class);
    protected static final String SEP = File.separator;
    protected static final AtomicInteger BROKER_INDEX = new AtomicInteger(0);
    protected static final List<File> TMPE_FILES = new ArrayList<>();
    protected static final int TOPIC_WITHIN_S = 30;
    public static volatile int commitLogSize = 1024 * 1024 * 100;

    public static String createBaseDir() {
        try {
            return Files.createTempDirectory("it").toString();
        } catch (java.io.IOException e) {
            throw new java.io.UncheckedIOException(e);
        }
    }

    public static NamesrvController createAndStartNamesrv() {
        NettyServerConfig server = new NettyServerConfig();
        server.setListenPort(Integer.getInteger("it.namesrv"));
        return new NamesrvController(new NamesrvConfig(), server);
    }

    public static BrokerController createAndStartBroker(String namesrv) {
        int number = BROKER_INDEX.getAndIncrement();
        BrokerConfig config = new BrokerConfig();
        config.setBrokerName("TestBrokerName_" + (number + 1));
        config.setBrokerIP1("127.0.0.1");
        config.setNamesrvAddr(namesrv);
        NettyServerConfig server = new NettyServerConfig();
        server.setListenPort(Integer.parseInt(System.getProperty("it.brokers").split(",")[number]));
        MessageStoreConfig store = new MessageStoreConfig();
        store.setStorePathRootDir(createBaseDir());
        return new RemoteBroker(config, server, store);
    }

    public static BrokerController createAndStartBroker(MessageStoreConfig store, BrokerConfig config) {
        throw new UnsupportedOperationException("this test starts a broker in Java");
    }

    public static boolean initTopic(String topic, String namesrv, String cluster, int queues, CQType cqType) {
        return initTopic(topic, namesrv, cluster, queues, cqType, TopicMessageType.NORMAL);
    }

    public static boolean initTopic(
        String topic, String namesrv, String cluster, int queues, CQType cqType, TopicMessageType type) {
        Map<String, String> attributes = new HashMap<>();
        if (cqType != CQType.SimpleCQ) {
            attributes.put("+queue.type", cqType.toString());
        }
        if (type != TopicMessageType.NORMAL) {
            attributes.put("+message.type", type.toString());
        }
        return MQAdminTestUtils.createTopic(namesrv, cluster, topic, queues, attributes, TOPIC_WITHIN_S);
    }

    public static boolean initTopic(String topic, String namesrv, String cluster, CQType cqType) {
        return initTopic(topic, namesrv, cluster, BaseConf.QUEUE_NUMBERS, cqType);
    }

    public static boolean initTopic(String topic, String namesrv, String cluster, TopicMessageType type) {
        return initTopic(topic, namesrv, cluster, BaseConf.QUEUE_NUMBERS, CQType.SimpleCQ, type);
    }

    public static void initMQAdmin(String namesrv) {
        try {
            MQAdminTestUtils.startAdmin(namesrv);
        } catch (org.apache.rocketmq.client.exception.MQClientException e) {
            throw new IllegalStateException(e);
        }
    }
}
