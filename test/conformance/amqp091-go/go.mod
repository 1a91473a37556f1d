module posthorn.io/posthorn/test/conformance/amqp091-go

go 1.26.0

require github.com/rabbitmq/amqp091-go v1.16.0

require go.uber.org/goleak v1.3.0 // of its tests
