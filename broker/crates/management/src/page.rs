//! Query strings, and lists cut into pages as RabbitMQ's clients ask for them.

use crate::error::ApiError;
use auth::Pattern;
use axum::response::{IntoResponse as _, Response};
use percent_encoding::percent_decode_str;
use serde_json::{Value as Json, json};

/// Items of a page when the request does not say, and at the most.
const PAGE: usize = 100;
const MAX_PAGE: usize = 500;
/// Parameters looked at.
const MAX_PARAMETERS: usize = 32;

/// The decoded query string.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn parse(raw: Option<&str>) -> Query {
        let decode = |text: &str| {
            let text = text.replace('+', " ");
            percent_decode_str(&text).decode_utf8_lossy().into_owned()
        };
        let pairs = raw.unwrap_or("").split('&').filter(|p| !p.is_empty());
        Query(
            pairs
                .take(MAX_PARAMETERS)
                .map(|pair| {
                    let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
                    (decode(key), decode(value))
                })
                .collect(),
        )
    }

    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(k, _)| k == key)
            .map(|(_, v)| v.as_str())
    }

    pub(crate) fn is_true(&self, key: &str) -> bool {
        self.get(key) == Some("true")
    }

    fn number(&self, key: &str, default: usize) -> Result<usize, ApiError> {
        match self.get(key) {
            None => Ok(default),
            Some(text) => text.parse().ok().filter(|n| *n > 0).ok_or_else(|| {
                ApiError::bad_request(format!("{key} is no number above 0: '{text}'"))
            }),
        }
    }
}

/// Which part of a list is wanted.
pub(crate) struct Window {
    filter: Option<Pattern>,
    paged: Option<(usize, usize)>,
}

impl Window {
    pub(crate) fn of(query: &Query) -> Result<Window, ApiError> {
        let filter = match query.get("name") {
            None | Some("") => None,
            Some(name) => Some(if query.is_true("use_regex") {
                Pattern::compile(name)
                    .map_err(|e| ApiError::bad_request(format!("name is no pattern: {e}")))?
            } else {
                Pattern::Literal {
                    text: name.into(),
                    start: false,
                    end: false,
                }
            }),
        };
        let paged = match query.get("page").is_some() || query.get("page_size").is_some() {
            false => None,
            true => {
                let size = query.number("page_size", PAGE)?;
                if size > MAX_PAGE {
                    let why = format!("page_size is {MAX_PAGE} at the most");
                    return Err(ApiError::bad_request(why));
                }
                Some((query.number("page", 1)?, size))
            }
        };
        Ok(Window { filter, paged })
    }

    /// Whether only a page is wanted.
    pub(crate) fn is_paged(&self) -> bool {
        self.paged.is_some()
    }

    /// The part of a list that is wanted: to be turned into JSON and given to [`Cut::respond`].
    pub(crate) fn cut<T>(
        &self,
        mut items: Vec<T>,
        name: impl Fn(&T) -> &str,
    ) -> Result<(Vec<T>, Cut), ApiError> {
        let total = items.len();
        if let Some(filter) = &self.filter {
            items.retain(|item| filter.matches(name(item)));
        }
        let filtered = items.len();
        let Some((page, size)) = self.paged else {
            return Ok((items, Cut(None)));
        };
        let pages = filtered.div_ceil(size);
        if page > pages.max(1) {
            return Err(ApiError::bad_request(format!(
                "Page out of range, page: {page} page size: {size}, len: {filtered}"
            )));
        }
        let part: Vec<T> = items
            .into_iter()
            .skip((page - 1) * size)
            .take(size)
            .collect();
        let about = json!({
            "total_count": total,
            "filtered_count": filtered,
            "item_count": part.len(),
            "page": page,
            "page_size": size,
            "page_count": pages.max(1),
        });
        Ok((part, Cut(Some(about))))
    }
}

/// What goes around a page; nothing around a whole list.
pub(crate) struct Cut(Option<Json>);

impl Cut {
    pub(crate) fn respond(self, items: Vec<Json>) -> Response {
        match self.0 {
            None => axum::Json(items).into_response(),
            Some(mut about) => {
                about["items"] = Json::Array(items);
                axum::Json(about).into_response()
            }
        }
    }
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn query_strings_are_decoded() {
        let query = Query::parse(Some("a=1&name=%2F+x&flag&if-empty=true"));
        assert_eq!(query.get("name"), Some("/ x"));
        assert_eq!(query.get("flag"), Some(""));
        assert!(query.is_true("if-empty") && !query.is_true("a"));
        assert_eq!(query.get("none"), None);
    }

    #[test]
    fn pages_are_cut() {
        let names: Vec<String> = (0..25).map(|n| format!("q{n:02}")).collect();
        let cut = |text: &str| {
            let query = Query::parse(Some(text));
            let window = Window::of(&query)?;
            let (part, cut) = window.cut(names.clone(), |n| n)?;
            Ok::<_, ApiError>((part.len(), cut.0.map(|a| a["page_count"].clone())))
        };
        assert_eq!(cut("").unwrap(), (25, None));
        assert_eq!(cut("name=q1").unwrap(), (10, None));
        assert_eq!(cut("page=3&page_size=10").unwrap(), (5, Some(json!(3))));
        assert_eq!(
            cut("page=1&page_size=10&name=^q0&use_regex=true").unwrap(),
            (10, Some(json!(1)))
        );
        for bad in [
            "page=4&page_size=10",
            "page=0",
            "page=x",
            "page_size=501",
            "name=(&use_regex=true",
        ] {
            assert!(cut(bad).is_err(), "{bad}");
        }
    }
}
