module posthorn.io/posthorn/test/faults

go 1.26.0

require (
	github.com/rabbitmq/amqp091-go v1.16.0
	golang.org/x/sys v0.46.0
	posthorn.io/posthorn/test/bench v0.0.0
)

require github.com/HdrHistogram/hdrhistogram-go v1.4.0 // indirect

replace posthorn.io/posthorn/test/bench => ../bench
