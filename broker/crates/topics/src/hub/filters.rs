//! A client's subscriptions. Most clients have none, or one.

use crate::Subscription;
use std::collections::BTreeMap;

#[derive(Default)]
#[expect(clippy::box_collection, reason = "most clients have no more than one")]
pub(super) enum Filters {
    #[default]
    None,
    One(Box<(Box<str>, Subscription)>),
    Many(Box<BTreeMap<Box<str>, Subscription>>),
}

impl Filters {
    pub fn len(&self) -> usize {
        match self {
            Filters::None => 0,
            Filters::One(_) => 1,
            Filters::Many(many) => many.len(),
        }
    }

    pub fn get(&self, filter: &str) -> Option<Subscription> {
        match self {
            Filters::None => None,
            Filters::One(one) => (*one.0 == *filter).then_some(one.1),
            Filters::Many(many) => many.get(filter).copied(),
        }
    }

    /// What was there before.
    pub fn insert(&mut self, filter: &str, subscription: Subscription) -> Option<Subscription> {
        match std::mem::take(self) {
            Filters::None => *self = Filters::One(Box::new((filter.into(), subscription))),
            Filters::One(mut one) if *one.0 == *filter => {
                let old = std::mem::replace(&mut one.1, subscription);
                *self = Filters::One(one);
                return Some(old);
            }
            Filters::One(one) => {
                let many = BTreeMap::from([*one, (filter.into(), subscription)]);
                *self = Filters::Many(Box::new(many));
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

    pub fn remove(&mut self, filter: &str) -> Option<Subscription> {
        match self {
            Filters::None => None,
            Filters::One(one) if *one.0 == *filter => {
                let subscription = one.1;
                *self = Filters::None;
                Some(subscription)
            }
            Filters::One(_) => None,
            Filters::Many(many) => {
                let removed = many.remove(filter);
                if many.len() == 1
                    && let Some(last) = many.pop_first()
                {
                    *self = Filters::One(Box::new(last));
                }
                removed
            }
        }
    }

    /// In the order of the filters.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Subscription)> {
        let (one, many) = match self {
            Filters::None => (None, None),
            Filters::One(one) => (Some((&*one.0, one.1)), None),
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
        fn they_are_a_map(steps in proptest::collection::vec(("[abc]", any::<Option<u32>>()), 0..40)) {
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
