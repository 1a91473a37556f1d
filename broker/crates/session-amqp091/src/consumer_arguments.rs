//! Arguments of `basic.consume`, with RabbitMQ's 406 error texts.

use crate::failure::{Failure, refuse};
use message::Table;
use metadata::{QueueType, check_consumer_timeout};

/// Arguments of a consumer, with the queue that error texts name.
pub(crate) struct ConsumerArguments<'a> {
    pub arguments: &'a Table,
    pub queue: &'a str,
    pub kind: QueueType,
    pub vhost: &'a str,
}

impl ConsumerArguments<'_> {
    /// The priority, or 0. Refuses arguments that only streams have, on other queues.
    pub(crate) fn priority(&self) -> Result<i32, Failure> {
        for key in [
            "x-stream-offset",
            "x-stream-filter",
            "x-stream-match-unfiltered",
        ] {
            if self.arguments.get(key).is_some() && !self.kind.descriptor().cursors {
                return self.refuse_misplaced(key);
            }
        }
        let Some(value) = self.arguments.get("x-priority") else {
            return Ok(0);
        };
        match value.as_integer() {
            // Clients send any width. Values outside 32 bits are clamped.
            Some(n) => Ok(i32::try_from(n).unwrap_or(if n < 0 { i32::MIN } else { i32::MAX })),
            None => {
                let reason = format!("\"expected integer, got {}\"", value.type_name());
                self.refuse_value("x-priority", &reason)
            }
        }
    }

    /// Refuses an acknowledgement timeout that is invalid, or that the queue's type does not have.
    pub(crate) fn check_timeout(&self) -> Result<(), Failure> {
        let key = "x-consumer-timeout";
        match self.arguments.get(key) {
            None => Ok(()),
            Some(_) if !self.kind.descriptor().consumers.own_timeout => self.refuse_misplaced(key),
            Some(value) => match check_consumer_timeout(value) {
                Ok(()) => Ok(()),
                Err(reason) => self.refuse_value(key, &reason),
            },
        }
    }

    fn refuse_misplaced<T>(&self, key: &str) -> Result<T, Failure> {
        refuse!(
            PreconditionFailed,
            "invalid arg '{key}' for queue '{}' in vhost '{}' of queue type {}",
            self.queue,
            self.vhost,
            self.kind.module()
        )
    }

    fn refuse_value<T>(&self, key: &str, reason: &str) -> Result<T, Failure> {
        refuse!(
            PreconditionFailed,
            "invalid arg '{key}' for queue '{}' in vhost '{}': {reason}",
            self.queue,
            self.vhost
        )
    }
}
