package org.apache.rocketmq.test.base;

import java.nio.file.Files;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.logging.InternalLogger;
import org.apache.rocketmq.logging.InternalLoggerFactory;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.test.util.MQAdmin;
import org.junit.Assert;

/** As that of 5.x, for the names that 4.x has. */
public class IntegrationTestBase {
    public static InternalLogger logger = InternalLoggerFactory.getLogger(IntegrationTestBase.class);
    protected static final AtomicInteger BROKER_INDEX = new AtomicInteger(0);

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
        return new BrokerController(config, server, new NettyClientConfig(), store);
    }

    public static BrokerController createAndStartBroker(MessageStoreConfig store, BrokerConfig config) {
        throw new UnsupportedOperationException("this test starts a broker in Java");
    }

    public static boolean initTopic(String topic, String namesrv, String cluster, int queues) {
        for (int tries = 0; tries < 60; tries++) {
            if (MQAdmin.createTopic(namesrv, cluster, topic, queues)) {
                return true;
            }
        }
        Assert.fail("no topic " + topic);
        return false;
    }

    public static boolean initTopic(String topic, String namesrv, String cluster) {
        return initTopic(topic, namesrv, cluster, 8);
    }
}
