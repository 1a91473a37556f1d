// Package conformance pins the client whose own tests run here.
package conformance

import _ "github.com/rabbitmq/rabbitmq-amqp-go-client/pkg/rabbitmqamqp"
