//! Bounded single-producer rings between threads. Items are never lost while the receiver exists.

use crate::wake::ThreadWaker;
use std::collections::VecDeque;
use std::sync::Arc;

/// The sending end. Items wait here, in order, while the ring is full. Producers check
/// [`Sender::backlog`] and accept less input while it is long, which bounds it.
pub struct Sender<T> {
    ring: rtrb::Producer<T>,
    waiting: VecDeque<T>,
    wake: Arc<ThreadWaker>,
    unannounced: bool,
}

/// The receiving end.
pub struct Receiver<T> {
    ring: rtrb::Consumer<T>,
}

/// Creates a ring for `capacity` items that wakes its receiver through `wake`.
pub fn ring<T>(capacity: usize, wake: Arc<ThreadWaker>) -> (Sender<T>, Receiver<T>) {
    let (producer, consumer) = rtrb::RingBuffer::new(capacity.max(1));
    let sender = Sender {
        ring: producer,
        waiting: VecDeque::new(),
        wake,
        unannounced: false,
    };
    (sender, Receiver { ring: consumer })
}

impl<T> Sender<T> {
    /// Sends an item. The receiver is woken by [`Sender::flush`], not before. The item is dropped
    /// if the receiver is gone.
    pub fn send(&mut self, item: T) {
        if self.ring.is_abandoned() {
            self.waiting.clear();
            return;
        }
        if !self.waiting.is_empty() {
            self.waiting.push_back(item);
            return;
        }
        match self.ring.push(item) {
            Ok(()) => self.unannounced = true,
            Err(rtrb::PushError::Full(item)) => self.waiting.push_back(item),
        }
    }

    /// Moves waiting items into the ring and wakes the receiver. Called once per turn.
    pub fn flush(&mut self) {
        while let Some(item) = self.waiting.pop_front() {
            match self.ring.push(item) {
                Ok(()) => self.unannounced = true,
                Err(rtrb::PushError::Full(item)) => {
                    self.waiting.push_front(item);
                    break;
                }
            }
        }
        if std::mem::take(&mut self.unannounced) {
            self.wake.wake();
        }
    }

    /// Number of items that wait for space in the ring.
    pub fn backlog(&self) -> usize {
        self.waiting.len()
    }
}

impl<T> Receiver<T> {
    /// Takes the next item.
    pub fn receive(&mut self) -> Option<T> {
        self.ring.pop().ok()
    }

    /// Returns true if the ring is empty.
    pub fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// Returns true if the sender is gone. Items in the ring can still be received.
    pub fn is_closed(&self) -> bool {
        self.ring.is_abandoned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    #[test]
    fn order_is_kept_across_overflow() {
        let (mut tx, mut rx) = ring(4, Arc::new(ThreadWaker::for_thread()));
        for i in 0..10 {
            tx.send(i);
        }
        assert_eq!(tx.backlog(), 6);
        let mut received = Vec::new();
        while received.len() < 10 {
            while let Some(i) = rx.receive() {
                received.push(i);
            }
            tx.flush();
        }
        assert_eq!(received, (0..10).collect::<Vec<_>>());
        assert_eq!(tx.backlog(), 0);
    }

    #[test]
    fn items_for_a_dropped_receiver_are_dropped() {
        let (mut tx, rx) = ring(2, Arc::new(ThreadWaker::for_thread()));
        drop(rx);
        for i in 0..100 {
            tx.send(i);
        }
        assert_eq!(tx.backlog(), 0);
    }

    #[test]
    fn receiver_is_woken_for_every_item() {
        let wake = Arc::new(ThreadWaker::for_thread());
        let (mut tx, mut rx) = ring(8, wake.clone());
        let reader = std::thread::spawn(move || {
            let mut sum = 0u64;
            let mut count = 0;
            while count < 10_000 {
                while let Some(i) = rx.receive() {
                    sum += i;
                    count += 1;
                }
                if count < 10_000 {
                    // A lost wake-up would block the test for hours.
                    wake.wait(Duration::from_secs(3600));
                }
            }
            sum
        });
        for i in 0..10_000u64 {
            tx.send(i);
            tx.flush();
        }
        while tx.backlog() > 0 {
            tx.flush();
            std::thread::yield_now();
        }
        assert_eq!(reader.join().ok(), Some(9_999 * 10_000 / 2));
    }

    proptest! {
        #[test]
        fn ring_is_fifo_for_any_interleaving(steps in proptest::collection::vec(0u8..3, 1..200)) {
            let (mut tx, mut rx) = ring(3, Arc::new(ThreadWaker::for_thread()));
            let (mut sent, mut received) = (0u32, 0u32);
            for step in steps {
                match step {
                    0 => { tx.send(sent); sent += 1; }
                    1 => tx.flush(),
                    _ => if let Some(item) = rx.receive() { prop_assert_eq!(item, received); received += 1; },
                }
            }
            loop {
                tx.flush();
                let Some(item) = rx.receive() else { break };
                prop_assert_eq!(item, received);
                received += 1;
            }
            prop_assert_eq!(sent, received);
        }
    }
}
