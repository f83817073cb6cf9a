// Producers and consumers of rocketmq-client-go that go on until they are told to end: going NAMESRV WHAT...; the words
// and the lines are those of Going.java.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const queues = 4

var names primitive.NamesrvAddr
var lines sync.Mutex
var stopping atomic.Bool
var producers sync.WaitGroup

func line(words ...any) {
	lines.Lock()
	defer lines.Unlock()
	texts := []string{strconv.FormatInt(time.Now().UnixMilli(), 10)}
	for _, word := range words {
		texts = append(texts, strings.ReplaceAll(fmt.Sprint(word), "\n", " "))
	}
	fmt.Println(strings.Join(texts, "\t"))
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func message(topic string, n int) *primitive.Message {
	return primitive.NewMessage(topic, []byte(strconv.Itoa(n))).WithTag("TagA").WithKeys([]string{strconv.Itoa(n)})
}

// send reports whether a message was answered SEND_OK.
func send(p rocketmq.Producer, m *primitive.Message) bool {
	result, err := p.SendSync(context.Background(), m)
	if err != nil {
		line("FAILED", m.Topic, string(m.Body), err)
		return false
	}
	status := map[primitive.SendStatus]string{primitive.SendOK: "SEND_OK", primitive.SendFlushSlaveTimeout: "FLUSH_SLAVE_TIMEOUT",
		primitive.SendFlushDiskTimeout: "FLUSH_DISK_TIMEOUT", primitive.SendSlaveNotAvailable: "SLAVE_NOT_AVAILABLE"}[result.Status]
	line("SENT", m.Topic, string(m.Body), status, result.QueueOffset, "")
	return result.Status == primitive.SendOK
}

func going(what string, one func(p rocketmq.Producer, n int)) {
	p, err := rocketmq.NewProducer(producer.WithGroupName("P-"+what), producer.WithInstanceName("P-"+what), producer.WithNameServer(names),
		producer.WithQueueSelector(selector(what)))
	check(err)
	check(p.Start())
	producers.Add(1)
	go func() {
		defer producers.Done()
		for n := 0; !stopping.Load(); n++ {
			one(p, n)
			time.Sleep(20 * time.Millisecond)
		}
	}()
}

// bySharding sends what has the same number modulo the queues to the same queue.
type bySharding struct{}

func (bySharding) Select(m *primitive.Message, found []*primitive.MessageQueue, _ string) *primitive.MessageQueue {
	n, _ := strconv.Atoi(string(m.Body))
	for _, queue := range found {
		if queue.QueueId == n%queues {
			return queue
		}
	}
	return nil
}

func selector(what string) producer.QueueSelector {
	if what == "ordered" {
		return bySharding{}
	}
	return producer.NewRoundRobinQueueSelector()
}

func consume(group, topic string, taken func(n int, tries int32) bool, options ...consumer.Option) {
	options = append(options, consumer.WithGroupName(group), consumer.WithInstance(group), consumer.WithNameServer(names),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	c, err := rocketmq.NewPushConsumer(options...)
	check(err)
	check(c.Subscribe(topic, consumer.MessageSelector{}, func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		all := true
		for _, m := range messages {
			n, _ := strconv.Atoi(string(m.Body))
			line("GOT", group, n, m.ReconsumeTimes, m.Queue.QueueId, m.QueueOffset)
			all = taken(n, m.ReconsumeTimes) && all
		}
		if all {
			return consumer.ConsumeSuccess, nil
		}
		if later, ok := primitive.GetConcurrentlyCtx(ctx); ok {
			later.DelayLevelWhenNextConsume = 1
		}
		return consumer.ConsumeRetryLater, nil
	}))
	check(c.Start())
}

func always(int, int32) bool { return true }

func begin(what string) {
	switch what {
	case "plain":
		consume("G-plain", "Plain", always)
		going(what, func(p rocketmq.Producer, n int) { send(p, message("Plain", n)) })
	case "ordered":
		consume("G-ordered", "Ordered", always, consumer.WithConsumerOrder(true))
		going(what, func(p rocketmq.Producer, n int) {
			for !send(p, message("Ordered", n)) && !stopping.Load() {
				time.Sleep(100 * time.Millisecond)
			}
		})
	case "retried":
		consume("G-retried", "Retried", func(n int, tries int32) bool { return n%10 != 3 || tries > 0 })
		going(what, func(p rocketmq.Producer, n int) { send(p, message("Retried", n)) })
	case "delayed":
		consume("G-delayed", "Delayed", always)
		going(what, func(p rocketmq.Producer, n int) { send(p, message("Delayed", n).WithDelayTimeLevel(1+n%3)) })
	default:
		panic(what)
	}
}

func main() {
	rlog.SetLogLevel("fatal")
	names = strings.Split(os.Args[1], ";")
	for _, what := range os.Args[2:] {
		begin(what)
	}
	line("READY")
	for told := bufio.NewScanner(os.Stdin); told.Scan() && told.Text() != "end"; {
		if told.Text() == "stop" {
			stopping.Store(true)
			producers.Wait()
			line("STOPPED")
		}
	}
}
