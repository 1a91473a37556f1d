//! Formats AMQP tables as `rabbitmqctl` prints them: an Erlang list of pairs.

use serde_json::Value as Json;

/// `{"a": {"b": true}, "c": "d"}` becomes `[{"a",[{"b",true}]},{"c","d"}]`.
pub(crate) fn table(value: &Json) -> String {
    match value {
        Json::Object(members) => {
            let pairs = members.iter();
            list(pairs.map(|(key, value)| format!("{{{},{}}}", string(key), table(value))))
        }
        Json::Array(items) => list(items.iter().map(table)),
        Json::String(text) => string(text),
        Json::Null => "undefined".to_owned(),
        other => other.to_string(),
    }
}

fn list(terms: impl Iterator<Item = String>) -> String {
    format!("[{}]", terms.collect::<Vec<_>>().join(","))
}

fn string(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod unit {
    use super::*;
    use serde_json::json;

    #[test]
    fn table_is_formatted_as_list_of_pairs() {
        let properties = json!({
            "capabilities": {"basic.nack": true},
            "connection_name": "a \"b\"\\",
            "versions": [1, null],
        });
        assert_eq!(
            table(&properties),
            r#"[{"capabilities",[{"basic.nack",true}]},{"connection_name","a \"b\"\\"},{"versions",[1,undefined]}]"#
        );
        assert_eq!(table(&json!({})), "[]");
    }
}
