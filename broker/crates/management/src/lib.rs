//! The HTTP API with RabbitMQ's paths and JSON
