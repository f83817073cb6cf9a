package org.apache.rocketmq.test.grpc.v2;

import io.grpc.Channel;
import javax.net.ssl.SSLException;

/** ClusterGrpcIT whose channels are connected before a test begins: it gives the first receive one second for that, too. */
public class PatientClusterGrpcIT extends ClusterGrpcIT {
    @Override
    protected Channel createChannel(int port) throws SSLException {
        return OwnProxyGrpcIT.connected(super.createChannel(port));
    }
}
