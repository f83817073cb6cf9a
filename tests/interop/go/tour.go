// What rocketmq-client-go offers, once each: tour NAMESRV KEY SECRET; a line of tabs tells what was sent (SENT) and
// consumed (GOT, by whom).
package main

import (
	"context"
	"fmt"
	"os"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

var names primitive.NamesrvAddr
var key primitive.Credentials
var lines sync.Mutex
var got int

func line(words ...any) {
	lines.Lock()
	defer lines.Unlock()
	if words[0] == "GOT" {
		got++
	}
	var texts []string
	for _, word := range words {
		texts = append(texts, strings.ReplaceAll(fmt.Sprint(word), "\n", " "))
	}
	fmt.Println(strings.Join(texts, "\t"))
}

func told(how string, result *primitive.SendResult, err error) {
	if err != nil {
		line("FAILED", how, err)
	} else {
		line("SENT", how, int(result.Status))
	}
}

func message(topic, body string) *primitive.Message {
	return primitive.NewMessage(topic, []byte(body)).WithTag("TagA").WithKeys([]string{body})
}

// shared waits until consumers have so many queues of a topic; what is sent while a queue goes from one to the other
// may come to both.
func shared(topic string, each int, consumers ...rocketmq.PushConsumer) {
	for n := 0; n < 1000; n++ {
		all := true
		for _, c := range consumers {
			info := reflect.ValueOf(c).MethodByName("GetConsumerRunningInfo").Call([]reflect.Value{reflect.ValueOf(false)})
			queues := 0
			for _, queue := range info[0].Elem().FieldByName("MQTable").MapKeys() {
				if queue.Interface().(primitive.MessageQueue).Topic == topic {
					queues++
				}
			}
			all = all && queues == each
		}
		if all {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	line("FAILED", topic, "is not shared")
}

func consume(who, group, topic string, options ...consumer.Option) rocketmq.PushConsumer {
	options = append(options, consumer.WithGroupName(group), consumer.WithInstance(group+who), consumer.WithNameServer(names),
		consumer.WithCredentials(key), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	c, err := rocketmq.NewPushConsumer(options...)
	if err == nil {
		err = c.Subscribe(topic, consumer.MessageSelector{}, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, m := range messages {
				line("GOT", topic, who, string(m.Body), m.ReconsumeTimes, m.Queue.QueueId, time.Now().UnixMilli()-m.BornTimestamp)
			}
			return consumer.ConsumeSuccess, nil
		})
	}
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		line("FAILED", group, err)
	}
	return c
}

type deciding struct{}

func (deciding) ExecuteLocalTransaction(m *primitive.Message) primitive.LocalTransactionState {
	switch string(m.Body) {
	case "commit":
		return primitive.CommitMessageState
	case "rollback":
		return primitive.RollbackMessageState
	}
	return primitive.UnknowState
}

func (deciding) CheckLocalTransaction(m *primitive.MessageExt) primitive.LocalTransactionState {
	line("ASKED", string(m.Body))
	return primitive.CommitMessageState
}

func main() {
	rlog.SetLogLevel("fatal")
	names, key = primitive.NamesrvAddr{os.Args[1]}, primitive.Credentials{AccessKey: os.Args[2], SecretKey: os.Args[3]}
	background := context.Background()
	start := func(group string) rocketmq.Producer {
		p, err := rocketmq.NewProducer(producer.WithGroupName(group), producer.WithInstanceName(group), producer.WithNameServer(names),
			producer.WithCredentials(key), producer.WithQueueSelector(producer.NewManualQueueSelector()), producer.WithSendMsgTimeout(time.Minute))
		if err == nil {
			err = p.Start()
		}
		if err != nil {
			line("FAILED", group, err)
		}
		return p
	}
	p := start("PG")
	at := func(m *primitive.Message, queue int) *primitive.Message {
		m.Queue = &primitive.MessageQueue{Topic: m.Topic, BrokerName: "broker-a", QueueId: queue}
		return m
	}
	one := consume("one", "CG-share", "Send")
	shared("Send", 4, one)
	two := consume("two", "CG-share", "Send")
	shared("Send", 2, one, two)
	for _, who := range []string{"one", "two"} {
		consume(who, "CG-cast", "Cast", consumer.WithConsumerModel(consumer.BroadCasting))
	}
	consume("one", "CG-delay", "Delay")
	consume("one", "CG-transaction", "Transaction")
	consume("one", "CG-orderly", "Orderly", consumer.WithConsumerOrder(true))

	result, err := p.SendSync(background, at(message("Send", "sync"), 0))
	told("sync", result, err)
	answered := make(chan bool)
	p.SendAsync(background, func(_ context.Context, result *primitive.SendResult, err error) {
		told("async", result, err)
		answered <- true
	}, at(message("Send", "async"), 1))
	<-answered
	if err = p.SendOneWay(background, at(message("Send", "oneway"), 2)); err != nil {
		line("FAILED", "oneway", err)
	}
	var batch []*primitive.Message
	for n := 0; n < 4; n++ {
		batch = append(batch, at(message("Send", fmt.Sprint("batch", n)), 3))
	}
	result, err = p.SendSync(background, batch...)
	told("batch", result, err)
	for n := 0; n < 4; n++ {
		result, err = p.SendSync(background, at(message("Cast", fmt.Sprint("c", n)), n))
		told("cast", result, err)
	}
	for n := 0; n < 6; n++ {
		result, err = p.SendSync(background, at(message("Orderly", fmt.Sprint(n%2, "-", n/2)), n%2))
		told("orderly", result, err)
	}
	result, err = p.SendSync(background, at(message("Delay", "level 2").WithDelayTimeLevel(2), 0))
	told("delay", result, err)
	t, err := rocketmq.NewTransactionProducer(deciding{}, producer.WithGroupName("PG-t"), producer.WithInstanceName("PG-t"),
		producer.WithNameServer(names), producer.WithCredentials(key), producer.WithSendMsgTimeout(time.Minute))
	if err == nil {
		err = t.Start()
	}
	for _, body := range []string{"commit", "rollback", "unknown"} {
		if err == nil {
			var sent *primitive.TransactionSendResult
			if sent, err = t.SendMessageInTransaction(background, message("Transaction", body)); err == nil {
				told("transaction", sent.SendResult, nil)
			}
		}
	}
	if err != nil {
		line("FAILED", "transaction", err)
	}
	enough := 7 + 2*4 + 6 + 1 + 2
	for n := 0; n < 1000; n++ {
		lines.Lock()
		done := got >= enough
		lines.Unlock()
		if done {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	time.Sleep(300 * time.Millisecond)
}
