module posthorn.io/posthorn/test/conformance/go-amqp

go 1.26.0

require github.com/Azure/go-amqp v1.7.0
