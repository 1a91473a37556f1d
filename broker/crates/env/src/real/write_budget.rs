//! Reports when so many bytes were written that free space should be checked again.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering};

/// Called when the budget is spent, on the thread that wrote; it must not block.
type BudgetCallback = Box<dyn Fn() + Send + Sync>;

/// Bytes that may be written before free space is checked again. Writes of all threads count.
pub struct WriteBudget {
    left: AtomicI64,
    on_spent: OnceLock<BudgetCallback>,
}

impl Default for WriteBudget {
    fn default() -> WriteBudget {
        WriteBudget {
            left: AtomicI64::new(i64::MAX),
            on_spent: OnceLock::new(),
        }
    }
}

impl std::fmt::Debug for WriteBudget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WriteBudget")
            .field("left", &self.left)
            .finish_non_exhaustive()
    }
}

impl WriteBudget {
    /// Sets the function that is called once per spent budget. Only the first call has an effect.
    pub fn on_spent(&self, call: impl Fn() + Send + Sync + 'static) {
        let _ = self.on_spent.set(Box::new(call));
    }

    /// Starts a new budget.
    pub fn set(&self, bytes: u64) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.left.store(bytes, Ordering::Relaxed);
    }

    pub(super) fn spend(&self, bytes: usize) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let before = self.left.fetch_sub(bytes, Ordering::Relaxed);
        if before > 0
            && before <= bytes
            && let Some(call) = self.on_spent.get()
        {
            call();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn spent_budget_is_reported_once() {
        let budget = WriteBudget::default();
        let calls = Arc::new(AtomicU64::new(0));
        let counter = calls.clone();
        budget.on_spent(move || {
            counter.fetch_add(1, Ordering::Relaxed);
        });
        budget.spend(1 << 40);
        budget.set(100);
        budget.spend(99);
        assert_eq!(calls.load(Ordering::Relaxed), 0);
        for _ in 0..3 {
            budget.spend(50);
        }
        assert_eq!(calls.load(Ordering::Relaxed), 1);
        budget.set(10);
        budget.spend(10);
        assert_eq!(calls.load(Ordering::Relaxed), 2);
    }
}
