package org.apache.rocketmq.test.grpc.v2;

import static org.awaitility.Awaitility.await;

import io.grpc.Channel;
import io.grpc.ConnectivityState;
import io.grpc.ManagedChannel;
import java.lang.reflect.Field;
import java.time.Duration;
import javax.net.ssl.SSLException;
import org.apache.rocketmq.proxy.config.ConfigurationManager;
import org.junit.Before;
import org.junit.Test;

/**
 * The tests of GrpcBaseIT at the port for gRPC of rmqcore that -Dit.grpc names, in the place of a proxy in Java; but for the one
 * that is ignored there, as proxies refuse a NORMAL message with a time.
 */
public class OwnProxyGrpcIT extends GrpcBaseIT {
    private static final int PORT = Integer.getInteger("it.grpc", 0);

    static Channel connected(Channel channel) {
        ManagedChannel managed = (ManagedChannel) channel;
        await().atMost(Duration.ofSeconds(60)).until(() -> managed.getState(true) == ConnectivityState.READY);
        return channel;
    }

    @Override
    protected Channel createChannel(int port) throws SSLException {
        return connected(super.createChannel(port));
    }

    @Before
    @Override
    public void setUp() throws Exception {
        super.setUp();
        ConfigurationManager.getProxyConfig().setGrpcServerPort(PORT);
        // a proxy in Java tells other clients of its process
        System.setProperty("rocketmq.namesrv.addr", NAMESRV_ADDR);
        Field port = GrpcBaseIT.class.getDeclaredField("port");
        port.setAccessible(true);
        port.setInt(this, PORT);
        blockingStub = createBlockingStub(createChannel(PORT));
        stub = createStub(createChannel(PORT));
    }

    @Test
    public void testQueryRoute() throws Exception {
        assertQueryRoute(blockingStub.queryRoute(buildQueryRouteRequest(initTopic())), BROKER_NUM * DEFAULT_QUEUE_NUMS);
    }

    @Test
    @Override
    public void testQueryAssignment() throws Exception {
        super.testQueryAssignment();
    }

    @Test
    @Override
    public void testQueryFifoAssignment() throws Exception {
        super.testQueryFifoAssignment();
    }

    @Test
    @Override
    public void testTransactionCheckThenCommit() {
        super.testTransactionCheckThenCommit();
    }

    @Test
    @Override
    public void testSimpleConsumerSendAndRecallDelayMessage() throws Exception {
        super.testSimpleConsumerSendAndRecallDelayMessage();
    }

    @Test
    @Override
    public void testSimpleConsumerSendAndRecvBigMessage() throws Exception {
        super.testSimpleConsumerSendAndRecvBigMessage();
    }

    @Test
    @Override
    public void testSimpleConsumerSendAndRecv() throws Exception {
        super.testSimpleConsumerSendAndRecv();
    }

    @Test
    @Override
    public void testSimpleConsumerToDLQ() throws Exception {
        super.testSimpleConsumerToDLQ();
    }

    @Test
    @Override
    public void testConsumeOrderly() throws Exception {
        super.testConsumeOrderly();
    }

    @Test
    @Override
    public void testSimpleConsumerSendAndRecvPriorityMessage() throws Exception {
        super.testSimpleConsumerSendAndRecvPriorityMessage();
    }
}
