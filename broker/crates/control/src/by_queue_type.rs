//! Values by queue type as a map from the type's name, so that nodes of different versions understand each other: a type
//! that this version does not know is skipped, and a type that the other version does not know has the default value.

use queue::{ByQueueType, QueueType};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;

pub(crate) fn serialize<T, S>(values: &ByQueueType<T>, serializer: S) -> Result<S::Ok, S::Error>
where
    T: Serialize + Default + PartialEq,
    S: Serializer,
{
    serializer.collect_map(values.iter_compatible().map(|(t, value)| (t.name(), value)))
}

pub(crate) fn deserialize<'de, T, D>(deserializer: D) -> Result<ByQueueType<T>, D::Error>
where
    T: DeserializeOwned + Default,
    D: Deserializer<'de>,
{
    let mut named = BTreeMap::<String, T>::deserialize(deserializer)?;
    Ok(ByQueueType::from_fn(|t: QueueType| {
        named.remove(t.name()).unwrap_or_default()
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Counts {
        #[serde(with = "super")]
        by_queue_type: ByQueueType<u64>,
    }

    #[test]
    fn values_survive_a_round_trip() {
        let mut next = 0;
        let by_queue_type = ByQueueType::from_fn(|_| {
            next += 1;
            next
        });
        let counts = Counts { by_queue_type };
        let json = serde_json::to_string(&counts).unwrap();
        assert_eq!(serde_json::from_str::<Counts>(&json).unwrap(), counts);
    }

    #[test]
    fn values_without_streams_are_written_as_before_streams_existed() {
        let mut by_queue_type = ByQueueType::default();
        by_queue_type[QueueType::Quorum] = 3;
        let json = serde_json::to_string(&Counts { by_queue_type }).unwrap();
        assert_eq!(json, r#"{"by_queue_type":{"classic":0,"quorum":3}}"#);
    }

    #[test]
    fn unknown_types_are_skipped_and_missing_types_are_zero() {
        let json = r#"{"by_queue_type": {"quorum": 3, "tape": 4}}"#;
        let counts: Counts = serde_json::from_str(json).unwrap();
        assert_eq!(counts.by_queue_type[QueueType::Quorum], 3);
        assert_eq!(counts.by_queue_type[QueueType::Classic], 0);
    }
}
