// Package conformance pins the client whose own tests run here.
package conformance

// Their tests run; nothing here calls them.
import (
	_ "github.com/rabbitmq/rabbitmq-stream-go-client/pkg/ha"
	_ "github.com/rabbitmq/rabbitmq-stream-go-client/pkg/stream"
)
