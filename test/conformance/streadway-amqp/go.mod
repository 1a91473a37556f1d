module posthorn.io/posthorn/test/conformance/streadway-amqp

go 1.26.0

require github.com/streadway/amqp v1.1.0
