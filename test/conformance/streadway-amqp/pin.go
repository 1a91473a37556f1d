// Package conformance pins the client whose own tests are run here.
package conformance

import _ "github.com/streadway/amqp"
