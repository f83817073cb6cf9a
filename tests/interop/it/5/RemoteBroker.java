package org.apache.rocketmq.test.base;

import java.io.IOException;
import java.util.Properties;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.offset.ConsumerOffsetManager;
import org.apache.rocketmq.broker.subscription.SubscriptionGroupManager;
import org.apache.rocketmq.broker.topic.TopicConfigManager;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.remoting.protocol.header.QueryConsumerOffsetRequestHeader;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.mockito.Mockito;
import org.mockito.invocation.InvocationOnMock;

/** A broker of another process, of which some tests ask more than clients can: what the wire can tell is asked there. */
class RemoteBroker extends BrokerController {
    private static final long TIMEOUT_MS = 10_000;
    private DefaultMQAdminExt admin;
    private BrokerConfig settings;
    private MessageStore store;
    private TopicConfigManager topics;
    private SubscriptionGroupManager groups;
    private ConsumerOffsetManager offsets;

    RemoteBroker(BrokerConfig config, NettyServerConfig server, MessageStoreConfig storeConfig) {
        super(config, server, new NettyClientConfig(), storeConfig);
        getBrokerOuterAPI().start();
        getBrokerOuterAPI().updateNameServerAddressList(config.getNamesrvAddr());
        admin = new DefaultMQAdminExt(TIMEOUT_MS);
        admin.setNamesrvAddr(config.getNamesrvAddr());
        admin.setInstanceName("RemoteBroker-" + config.getBrokerName());
        told(() -> {
            admin.start();
            return null;
        });
        settings = Mockito.mock(
            BrokerConfig.class, Mockito.withSettings().spiedInstance(config).stubOnly().defaultAnswer(this::changed));
        store = told(() -> new RemoteStore(storeConfig));
        topics = new TopicConfigManager(this) {
            @Override
            public ConcurrentMap<String, TopicConfig> getTopicConfigTable() {
                return new ConcurrentHashMap<>() {
                    @Override
                    public TopicConfig get(Object topic) {
                        return told(() -> admin.examineTopicConfig(getBrokerAddr(), (String) topic));
                    }
                };
            }

            @Override
            public void updateTopicConfig(TopicConfig changed) {
                told(() -> {
                    admin.createAndUpdateTopicConfig(getBrokerAddr(), changed);
                    return null;
                });
            }
        };
        groups = new SubscriptionGroupManager(this) {
            @Override
            public SubscriptionGroupConfig findSubscriptionGroupConfig(String group) {
                SubscriptionGroupConfig found = told(() -> admin.examineSubscriptionGroupConfig(getBrokerAddr(), group));
                if (found != null) {
                    return found;
                }
                // a broker makes a group of which it is asked in its own process
                SubscriptionGroupConfig made = new SubscriptionGroupConfig();
                made.setGroupName(group);
                updateSubscriptionGroupConfig(made);
                return made;
            }

            @Override
            public void updateSubscriptionGroupConfig(SubscriptionGroupConfig changed) {
                told(() -> {
                    admin.createAndUpdateSubscriptionGroupConfig(getBrokerAddr(), changed);
                    return null;
                });
            }
        };
        offsets = new ConsumerOffsetManager(this) {
            @Override
            public long queryOffset(String group, String topic, int queueId) {
                QueryConsumerOffsetRequestHeader header = new QueryConsumerOffsetRequestHeader();
                header.setConsumerGroup(group);
                header.setTopic(topic);
                header.setQueueId(queueId);
                return told(() -> {
                    try {
                        return admin.getDefaultMQAdminExtImpl().getMqClientInstance().getMQClientAPIImpl()
                            .queryConsumerOffset(getBrokerAddr(), header, TIMEOUT_MS);
                    } catch (MQBrokerException none) {
                        return -1L;
                    }
                });
            }
        };
    }

    /** The store of the other process; it is neither loaded nor started here. */
    private class RemoteStore extends DefaultMessageStore {
        RemoteStore(MessageStoreConfig config) throws IOException {
            super(config, RemoteBroker.this.getBrokerStatsManager(), null, RemoteBroker.this.brokerConfig, new ConcurrentHashMap<>());
        }

        @Override
        public long dispatchBehindBytes() {
            // dispatch follows a put within 50 ms
            told(() -> {
                Thread.sleep(200);
                return null;
            });
            return 0;
        }

        @Override
        public long getMaxOffsetInQueue(String topic, int queueId) {
            return told(() -> admin.maxOffset(new MessageQueue(topic, brokerConfig.getBrokerName(), queueId)));
        }

        @Override
        public long getMinOffsetInQueue(String topic, int queueId) {
            return told(() -> admin.minOffset(new MessageQueue(topic, brokerConfig.getBrokerName(), queueId)));
        }
    }

    /** A call of the settings; a change is one of the other process's, too. */
    private Object changed(InvocationOnMock call) throws Throwable {
        Object done = call.callRealMethod();
        String method = call.getMethod().getName();
        if (method.startsWith("set") && call.getArguments().length == 1) {
            Properties change = new Properties();
            change.setProperty(Character.toLowerCase(method.charAt(3)) + method.substring(4), String.valueOf(call.<Object>getArgument(0)));
            try {
                admin.updateBrokerConfig(getBrokerAddr(), change);
            } catch (MQBrokerException refused) {
                // one of those that say how Java's broker goes about it
                System.out.println("NOT CHANGED " + change + " " + refused.getErrorMessage());
            }
        }
        return done;
    }

    private static <T> T told(Callable<T> question) {
        try {
            return question.call();
        } catch (Exception e) {
            throw new IllegalStateException(e);
        }
    }

    @Override
    public BrokerConfig getBrokerConfig() {
        return settings == null ? super.getBrokerConfig() : settings;
    }

    @Override
    public void registerBrokerAll(boolean checkOrderConfig, boolean oneway, boolean forceRegister) {
        // the other process has done so
    }

    @Override
    public MessageStore getMessageStore() {
        return store;
    }

    @Override
    public TopicConfigManager getTopicConfigManager() {
        return topics == null ? super.getTopicConfigManager() : topics;
    }

    @Override
    public SubscriptionGroupManager getSubscriptionGroupManager() {
        return groups == null ? super.getSubscriptionGroupManager() : groups;
    }

    @Override
    public ConsumerOffsetManager getConsumerOffsetManager() {
        return offsets == null ? super.getConsumerOffsetManager() : offsets;
    }
}
