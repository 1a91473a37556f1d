// Package conformance pins the client whose own tests run here.
package conformance

import (
	// The tests of these packages run; nothing here calls them.
	_ "github.com/rabbitmq/rabbitmq-stream-go-client/pkg/ha"
	// The same.
	_ "github.com/rabbitmq/rabbitmq-stream-go-client/pkg/stream"
)
