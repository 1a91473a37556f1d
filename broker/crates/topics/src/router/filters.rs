//! The subscriptions of one client. Optimised for clients with none or one.

use crate::Subscription;
use std::collections::BTreeMap;

#[derive(Default)]
pub(super) enum Filters {
    #[default]
    None,
    One(Box<str>, Subscription),
    Many(BTreeMap<Box<str>, Subscription>),
}

impl Filters {
    pub(super) fn len(&self) -> usize {
        match self {
            Filters::None => 0,
            Filters::One(..) => 1,
            Filters::Many(many) => many.len(),
        }
    }

    pub(super) fn get(&self, filter: &str) -> Option<Subscription> {
        match self {
            Filters::None => None,
            Filters::One(one, subscription) => (**one == *filter).then_some(*subscription),
            Filters::Many(many) => many.get(filter).copied(),
        }
    }

    /// Returns the previous subscription.
    pub(super) fn insert(
        &mut self,
        filter: &str,
        subscription: Subscription,
    ) -> Option<Subscription> {
        match std::mem::take(self) {
            Filters::None => *self = Filters::One(filter.into(), subscription),
            Filters::One(one, old) if *one == *filter => {
                *self = Filters::One(one, subscription);
                return Some(old);
            }
            Filters::One(one, first) => {
                let many = BTreeMap::from([(one, first), (filter.into(), subscription)]);
                *self = Filters::Many(many);
            }
            Filters::Many(mut many) => {
                let old = match many.get_mut(filter) {
                    Some(there) => Some(std::mem::replace(there, subscription)),
                    None => many.insert(filter.into(), subscription),
                };
                *self = Filters::Many(many);
                return old;
            }
        }
        None
    }

    pub(super) fn remove(&mut self, filter: &str) -> Option<Subscription> {
        match self {
            Filters::None => None,
            Filters::One(one, subscription) if **one == *filter => {
                let subscription = *subscription;
                *self = Filters::None;
                Some(subscription)
            }
            Filters::One(..) => None,
            Filters::Many(many) => {
                let removed = many.remove(filter);
                if many.len() == 1
                    && let Some((last, subscription)) = many.pop_first()
                {
                    *self = Filters::One(last, subscription);
                }
                removed
            }
        }
    }

    /// Iterates in the order of the filters.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, Subscription)> {
        let (one, many) = match self {
            Filters::None => (None, None),
            Filters::One(one, subscription) => (Some((&**one, *subscription)), None),
            Filters::Many(many) => (None, Some(many.iter().map(|(f, s)| (&**f, *s)))),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn filters_behave_like_a_map(steps in proptest::collection::vec(("[abc]", any::<Option<u32>>()), 0..40)) {
            let mut filters = Filters::default();
            let mut model: BTreeMap<String, Subscription> = BTreeMap::new();
            for (filter, identifier) in steps {
                let subscription = identifier.map(|identifier| Subscription { identifier, ..Subscription::default() });
                match subscription {
                    Some(new) => prop_assert_eq!(filters.insert(&filter, new), model.insert(filter.clone(), new)),
                    None => prop_assert_eq!(filters.remove(&filter), model.remove(&filter)),
                }
                prop_assert_eq!(filters.get(&filter), model.get(&filter).copied());
                prop_assert_eq!(filters.len(), model.len());
                prop_assert!(filters.iter().eq(model.iter().map(|(f, s)| (&**f, *s))));
            }
        }
    }
}
