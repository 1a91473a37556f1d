//! The AMQP 0.9.1 session: a sans-io state machine
