"""gRPC for RocketMQ 5's own clients, in front of a broker of this process or of a cluster.

What others use: `Service`, which answers every RPC of `apache.rocketmq.v2`; what it stands on,
`LocalBroker` or `RemoteCluster`; `GrpcServer`, a port for it. Below: `http2` makes calls of a
connection, `messages` are the definition's, `callers` knows who calls; the RPCs are in `routes`,
`producing`, `consuming`, `settling`, `offsets` and `clients`.

It speaks requests and answers of the remoting protocol to brokers, and never knows a store. It
needs the extra `[grpc]`.

Floor: beside, on remoting/.
"""

from rmqcore.proxy.http2_settings import Http2Settings
from rmqcore.proxy.local_broker import LocalBroker
from rmqcore.proxy.remote_cluster import RemoteCluster
from rmqcore.proxy.server import GrpcServer
from rmqcore.proxy.service import Service

__all__ = ["GrpcServer", "Http2Settings", "LocalBroker", "RemoteCluster", "Service"]
