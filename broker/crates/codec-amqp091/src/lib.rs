//! AMQP 0.9.1 bytes to frames and back; no I/O
