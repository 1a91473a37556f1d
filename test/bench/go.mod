module posthorn.io/posthorn/test/bench

go 1.26.0

require (
	github.com/HdrHistogram/hdrhistogram-go v1.4.0
	github.com/rabbitmq/amqp091-go v1.16.0
)
