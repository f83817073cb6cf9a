import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;

/** The messages that both sides put: body, tag, key and unique key differ with the number, and only with it. */
final class Work {
    static final int BATCH = 64;
    private static final byte[] HEX = "0123456789ABCDEF".getBytes();
    private static final InetSocketAddress HOST = new InetSocketAddress("127.0.0.1", 10911);
    private static final InetSocketAddress BORN = new InetSocketAddress("127.0.0.1", 0);

    private Work() { }

    /** The number as 8 bytes, big end first, then 'x'. */
    static byte[] body(long number, byte[] filler) {
        byte[] body = filler.clone();
        ByteBuffer.wrap(body).putLong(number);
        return body;
    }

    static byte[] filler(int size) {
        byte[] filler = new byte[size];
        java.util.Arrays.fill(filler, (byte) 'x');
        return filler;
    }

    /** 7F000001 and the number as 24 hexadecimal digits. */
    @SuppressWarnings("deprecation")
    static String uniqueKey(long number) {
        byte[] text = {'7', 'F', '0', '0', '0', '0', '0', '1', '0', '0', '0', '0', '0', '0', '0', '0',
            '0', '0', '0', '0', '0', '0', '0', '0', '0', '0', '0', '0', '0', '0', '0', '0'};
        for (int at = 31; number != 0; at--, number >>>= 4) text[at] = HEX[(int) number & 15];
        return new String(text, 0);
    }

    static MessageExtBrokerInner message(String topic, long number, byte[] filler, int queues) {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setTopic(topic);
        message.setBody(body(number, filler));
        message.setTags("TagA");
        message.setKeys("K" + number);
        MessageAccessor.putProperty(message, MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, uniqueKey(number));
        message.setQueueId((int) (number % queues));
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(BORN);
        message.setStoreHost(HOST);
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        return message;
    }

    /** A batch as the producer makes it; without the property WAIT, which single messages have not either. */
    static List<Message> list(String topic, long first, byte[] filler) {
        List<Message> messages = new ArrayList<>(BATCH);
        for (long number = first; number < first + BATCH; number++) {
            Message message = new Message(topic, "TagA", "K" + number, body(number, filler));
            MessageAccessor.clearProperty(message, MessageConst.PROPERTY_WAIT_STORE_MSG_OK);
            MessageAccessor.putProperty(message, MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, uniqueKey(number));
            messages.add(message);
        }
        return messages;
    }

    /** A batch as the broker hands it to the store. */
    static MessageExtBatch batch(String topic, byte[] encoded, int queue) {
        MessageExtBatch batch = new MessageExtBatch();
        batch.setTopic(topic);
        batch.setQueueId(queue);
        batch.setBody(encoded);
        batch.setBornTimestamp(System.currentTimeMillis());
        batch.setBornHost(BORN);
        batch.setStoreHost(HOST);
        return batch;
    }
}
